package riverqos

import "time"

// AnsweredWithin is the configuration with so much time for a statement, and for a call of the Slots.
func (c Config) AnsweredWithin(d time.Duration) Config {
	c.Runner.AnswerTimeout = d
	return c
}

// TiersWithin is the configuration with so much time for Tiers that do not answer.
func (c Config) TiersWithin(d time.Duration) Config {
	c.Runner.TierTimeout = d
	return c
}
