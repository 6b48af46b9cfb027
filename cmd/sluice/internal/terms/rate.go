package terms

import "fmt"

func FormatShare(n int64) string {
	if n == 0 {
		return "none"
	}
	return PerSecond(n)
}

// PerSecond writes a measured number of bytes per second with one digit after the
// point.
func PerSecond(n int64) string {
	for _, u := range []struct {
		name string
		in   int64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= u.in {
			return fmt.Sprintf("%.1f %s/s", float64(n)/float64(u.in), u.name)
		}
	}
	return fmt.Sprintf("%d B/s", n)
}
