package redisbus

import "time"

// SetSilence is for buses of which no subscription has begun.
func (b *Bus) SetSilence(d time.Duration) { b.silenceLimit = d }
