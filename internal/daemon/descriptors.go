package daemon

import "syscall"

const (
	// mostAdmin connections of an admin API are open at a time: 64 streams, and as many
	// others.
	mostAdmin = 128
	// mostSPOE is how many connections an agent needs at most: HAProxy from 3.1 on opens
	// one for each question under way.
	mostSPOE = 16384
	// EnoughSPOE is how many it should have.
	EnoughSPOE = 1024
	// mostDescriptors is more than any process needs.
	mostDescriptors = 1 << 20

	// Of what is neither: the log, files that are read, and for each agent its connections
	// to Redis and HAProxy's peers.
	common   = 64
	perAgent = 32
)

// Descriptors is how many file descriptors this process may have (ulimit -n). Go has
// raised the soft limit to the hard one when it started.
func Descriptors() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Cur > mostDescriptors {
		return mostDescriptors
	}
	return int(limit.Cur)
}

// ForAdmin is the bound of the admin API's connections: small, because it is the part of
// a process that others can reach.
func ForAdmin(descriptors int) int { return min(mostAdmin, descriptors/8) }

// ForSPOE is the bound of each of so many agents' connections with HAProxy: what the rest
// of the process cannot need, of which a demo origin has as much as all agents.
func ForSPOE(descriptors, agents int, origin bool) int {
	left := descriptors - ForAdmin(descriptors) - min(common+perAgent*agents, descriptors/4)
	if origin {
		left /= 2
	}
	return max(1, min(mostSPOE, left/agents))
}
