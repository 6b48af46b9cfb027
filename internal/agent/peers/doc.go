// Package peers is an endpoint of HAProxy's peers protocol 2.1. Over one
// connection to HAProxy's local peer it learns HAProxy's stick tables, change by
// change (those with string or binary keys, and their plain numbers), and teaches HAProxy's tables entries that end by themselves.
//
// The endpoint dials, so that it has HAProxy's state again as soon as it is up:
// HAProxy itself would try every few seconds. Values are absolute, never
// differences. That makes it safe to send only the last of several changes and
// to teach everything once more after a reconnect, and so nothing is lost but
// time. An entry that HAProxy evicts because its table is full is not noticed.
//
// The protocol knows no authentication. It belongs on a unix socket or on
// loopback. It cannot delete an entry: teach a value that means nothing, or let
// the entry end.
//
// The wire format is that of HAProxy 2.6 to 3.4, as measured; HAProxy's own
// doc/peers-v2.0.txt describes an older one, its varints are the same.
package peers
