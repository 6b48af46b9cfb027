package jobs

// MaxNames is how many names NamedTiers remember at most.
const MaxNames = maxNames

// Remembered is how many names are remembered.
func (n *NamedTiers) Remembered() int { return len(n.young) + len(n.old) }
