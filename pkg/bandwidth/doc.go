// Package bandwidth divides a user's bytes per second among the instances that
// move them.
//
// Every HAProxy holds a user's transfers to a share of the limit, by itself and
// exactly; a share that changes applies to transfers already under way. Who gets
// which share is decided here, in two halves: an Agent sees what its HAProxy has
// in progress and moves, finds out how much it can use, and reports both; a Watch,
// in polygen, divides the limit in proportion to the requests in progress, and gives
// what some cannot use to those who can.
//
// An instance that cannot use its share keeps 5 % more than it moves and half a per
// cent of the limit, to show when it can: so much of the limit is lost while
// another one wants it.
//
// Shares of a user never add up to more than the limit. What the cluster moves
// can, for the moment between two shares taking effect, and by the default shares
// of instances that have only just begun.
//
// The package has no clock and does no I/O: every call takes the time.
package bandwidth
