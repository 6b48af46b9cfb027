package history

// Names of faults. What each allows is in test/chaos/judge.
const (
	Kill       = "kill"        // and started again at the end
	Stop       = "stop"        // SIGSTOP, and SIGCONT at the end
	Restart    = "restart"     // SIGTERM, and started again
	Reload     = "reload"      // of HAProxy, and of limit files
	Slow       = "slow"        // a link
	Partition  = "partition"   // a link: nothing comes through
	Reset      = "reset"       // a link: its connections are reset, once
	FullDisk   = "full disk"   // of a part
	NoFiles    = "no files"    // EMFILE, of a part
	ClockStep  = "clock step"  // of a part; Parameter is by how much, such as "-5s"
	Replace    = "replace"     // the limit file by other limits
	Break      = "break"       // the limit file
	Empty      = "empty"       // the limit file
	Flush      = "flush"       // Redis
	Failover   = "failover"    // Redis, to a replica
	NoMemory   = "no memory"   // maxmemory is reached
	NeverReads = "never reads" // a client of an admin API
	Join       = "join"        // an instance more
	Crowd      = "crowd"       // connections are opened at once, to a HAProxy; Parameter says how many
	Overload   = "overload"    // requests of many users, as many as the machine serves
	Machine    = "machine"     // stood still
)
