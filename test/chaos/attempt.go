package chaos

// Attempt returns why f failed in a Scene, nil if it did not.
func Attempt(f func()) error { return attempt(f) }
