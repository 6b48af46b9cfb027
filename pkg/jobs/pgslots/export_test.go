package pgslots

// SetOldestServer changes which servers Migrate takes, and returns what undoes that.
func SetOldestServer(version int) (undo func()) {
	before := oldestServer
	oldestServer = version
	return func() { oldestServer = before }
}
