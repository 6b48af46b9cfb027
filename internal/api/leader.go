package api

// Leader is the polygen that leads.
type Leader struct {
	Name    string
	Address string // of its admin API, as a URL
}
