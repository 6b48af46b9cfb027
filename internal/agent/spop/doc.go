// Package spop is the SPOE edge of the agent: the server that HAProxy asks
// about each request over the Stream Processing Offload Protocol (SPOP 2.0,
// section 3 of HAProxy's doc/SPOE.txt).
//
// The protocol itself is spoken by github.com/negasus/haproxy-spoe-go. That
// library trusts its peer: a malformed frame panics its read loop, a length is
// allocated as claimed, every NOTIFY starts a goroutine and every ACK is a
// write of its own. So it never sees the socket. It gets a connection of this
// package, which
//   - bounds a frame's length before it allocates, and parses the whole frame
//     before it passes on a byte; a bad frame ends its connection and no other;
//   - hands over no more NOTIFYs than may be handled at a time, and reads no
//     further meanwhile, so that HAProxy feels it and uses another connection;
//   - puts deadlines on reads and writes;
//   - sends the ACKs that are ready together with one write.
//
// The HELLO and DISCONNECT that the library sees are written anew from what was
// understood of HAProxy's; NOTIFYs pass as they came.
//
// What the package does not do: fragmented frames (no HAProxy sends them),
// authentication (SPOP has none: listen on a unix socket or loopback), and
// answers on another connection than the question's, which is why "option
// async" gains nothing here.
package spop
