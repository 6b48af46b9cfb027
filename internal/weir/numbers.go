package weir

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// fitRange brings a number into the range of a limit, and says what changed.
func fitRange(field string, n, was float64, most int64) (int64, []string) {
	switch {
	// A limit of nothing cannot be written here: nobody could be served.
	case n < 1:
		return 1, []string{fmt.Sprintf("%s was %s, which lets next to nothing through; 1 is the least here", field, formatNumber(was))}
	case n > float64(most):
		return most, []string{fmt.Sprintf("%s was %s; this is the most here", field, formatNumber(was))}
	case n != was:
		return int64(n), []string{fmt.Sprintf("%s was %s", field, formatNumber(was))}
	}
	return int64(n), nil
}

// formatSize writes megabytes, of 1024×1024 bytes, as a size.
func formatSize(field string, megabytes float64) (string, []string) {
	// Fractions of a byte come from megabytes such as 0.1.
	bytes := math.Round(megabytes * (1 << 20))
	n, note := fitRange(field, bytes, bytes, limits.MaxBandwidth)
	if note != nil {
		return strconv.FormatInt(n, 10), []string{strings.Replace(note[0], formatNumber(bytes), formatNumber(megabytes)+" MB", 1)}
	}
	// People wrote megabytes, and should find them again.
	if n%(1<<20) == 0 {
		return strconv.FormatInt(n>>20, 10) + "MiB", nil
	}
	return strconv.FormatInt(n, 10), []string{fmt.Sprintf("%s was %s MB", field, formatNumber(megabytes))}
}

func formatNumber(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }
