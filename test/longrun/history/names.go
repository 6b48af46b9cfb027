package history

// Names of faults. The judge's table has what each allows.
const (
	Kill       = "kill"        // and start again at the end
	Stop       = "stop"        // SIGSTOP, and SIGCONT at the end
	Restart    = "restart"     // SIGTERM, and start again
	Reload     = "reload"      // HAProxy
	Slow       = "slow"        // a link
	Partition  = "partition"   // a link: nothing passes
	Reset      = "reset"       // a link: its connections are reset, once
	FullDisk   = "full disk"   // Redis
	NoFiles    = "no files"    // EMFILE, of a part
	ClockStep  = "clock step"  // of a part; Parameter is the step, such as "-5s"
	Replace    = "replace"     // the limit file, by other limits
	Break      = "break"       // the limit file
	Empty      = "empty"       // the limit file
	Flush      = "flush"       // Redis
	Failover   = "failover"    // Redis, to a replica
	NoMemory   = "no memory"   // maxmemory is reached
	NeverReads = "never reads" // a client of an admin API
	Storm      = "storm"       // many connections at once, to one HAProxy or all; Parameter is their number
	Overload   = "overload"    // more requests than the machine serves
	Machine    = "machine"     // stood still
)
