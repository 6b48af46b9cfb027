// Package judge says of a chaos run what each user got and what they may have, from what the clients and the origin
// wrote down alone: nothing that Sluice says of itself is believed.
//
// It errs towards Sluice. A request was decided at some instant between its client's sending it and its arrival at the
// origin, so a second is called too full only if no way of attributing the requests to seconds explains it; a refusal is
// called too early only if not even everything that may have counted explains it. So each violation is real.
//
// While a fault lasts, and for a stated time afterwards, more is allowed: see the table of allowances. Where faults overlap, the
// one that allows most counts.
//
// The package is pure: no clock, no file, no chance. The same history gives the same report.
package judge
