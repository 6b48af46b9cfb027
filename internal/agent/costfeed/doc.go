// Package costfeed hears from HAProxy what requests really cost, where that is not what was charged for them. HAProxy's
// Lua (haproxy/lua/costs.lua) connects to a socket of its own and writes lines. Nothing is answered, so nothing of a
// request waits for it:
//
//	188 1000@1764003600 tokens alice   what it cost, what was charged in which second, the unit, the user: the rest of the line
//	dropped 12                         corrections that HAProxy has dropped
//	unreadable 3                       answers whose cost HAProxy could not read, because they are compressed
//	unheard 81734 alice                the question, and whose, of which HAProxy did not hear the verdict in time
//
// A correction arrives at most once. One that was lost leaves charged what was estimated, which the window's end repairs.
// What is not such a line closes its connection: then the two ends do not understand each other, and a
// correction that is guessed would be worse than none.
package costfeed
