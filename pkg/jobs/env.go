package jobs

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

// Env is what environment variables say of fairness.
type Env struct {
	// Enabled is FAIRNESS_ENABLED: true if it is not set.
	Enabled bool

	// Totals are FAIRNESS_FREE_LIMIT, FAIRNESS_PRO_LIMIT, FAIRNESS_PRO_PLUS_LIMIT and
	// FAIRNESS_ENTERPRISE_LIMIT, by the names of the tiers, for FileTiers. Those that are
	// not set are not there, but for pro_plus, which then has that of pro.
	Totals map[string]int

	// Snooze and Jitter are FAIRNESS_SNOOZE_DURATION and FAIRNESS_SNOOZE_JITTER, for RunnerConfig.Snooze: how long
	// a job over the limit sleeps, and how much longer at most. 30 s
	// and 10 s if they are not set.
	Snooze, Jitter time.Duration
}

// maxSnooze is the longest snooze and jitter.
const maxSnooze = 24 * time.Hour

func lookUpIn(environ []string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for _, entry := range environ {
			if text, ok := strings.CutPrefix(entry, name+"="); ok {
				return text, true
			}
		}
		return "", false
	}
}

// ineffective returns the variables that are set and change nothing: limits of tiers that there are not, and times to
// sleep where jobs are parked.
func ineffective(cfg RunnerConfig) (names []string) {
	tiers, known := cfg.Tiers.(interface{ hasTotal(tier string) bool })
	for _, entry := range cfg.Environ {
		name, text, _ := strings.Cut(entry, "=")
		rest, ours := strings.CutPrefix(name, "FAIRNESS_")
		tier, limit := strings.CutSuffix(rest, "_LIMIT")
		if ours && text != "" && (limit && known && !tiers.hasTotal(strings.ToLower(tier)) || strings.HasPrefix(rest, "SNOOZE_") && !cfg.Snooze) {
			names = append(names, name)
		}
	}
	return names
}

// FromEnv reads them. lookup is like os.LookupEnv; a variable that is empty is not set.
// The error tells everything that is wrong, by the names of the variables.
func FromEnv(lookup func(string) (string, bool)) (Env, error) {
	e := Env{Enabled: true, Totals: map[string]int{}, Snooze: 30 * time.Second, Jitter: 10 * time.Second}
	var errs []error
	read := func(name string, parse func(text string) error) {
		text, _ := lookup(name)
		// As in a Compose file, where a variable that is passed on is set and empty.
		if text == "" {
			return
		}
		if err := parse(text); err != nil {
			errs = append(errs, fmt.Errorf("%s=%q: %w", name, text, err))
		}
	}
	read("FAIRNESS_ENABLED", func(text string) (err error) {
		e.Enabled, err = parseSwitch(text)
		return err
	})
	for _, tier := range []string{"free", "pro", "pro_plus", "enterprise"} {
		read("FAIRNESS_"+strings.ToUpper(tier)+"_LIMIT", func(text string) error {
			n, err := limitfile.ParseJobs(text)
			if err == nil {
				e.Totals[tier] = n
			}
			return err
		})
	}
	// Both have the same number where nobody states one, and a change of one alone would make
	// the tier above it the smaller one.
	if _, set := e.Totals["pro_plus"]; !set && e.Totals["pro"] > 0 {
		e.Totals["pro_plus"] = e.Totals["pro"]
	}
	read("FAIRNESS_SNOOZE_DURATION", func(text string) (err error) {
		e.Snooze, err = parseSpan(text, time.Millisecond)
		return err
	})
	read("FAIRNESS_SNOOZE_JITTER", func(text string) (err error) {
		e.Jitter, err = parseSpan(text, 0)
		return err
	})
	// Nothing of it counts then: a limit that was meant must not be the default by a slip.
	if len(errs) > 0 {
		return Env{}, errors.Join(errs...)
	}
	return e, nil
}

func parseSwitch(text string) (bool, error) {
	switch strings.ToLower(text) {
	case "true", "1", "yes", "on":
		return true, nil
	case "false", "0", "no", "off":
		return false, nil
	}
	return false, errors.New("must be true or false")
}

// parseSpan reads a duration such as 30s or 1m30s, or seconds.
func parseSpan(text string, least time.Duration) (time.Duration, error) {
	seconds := text
	// Seconds are what most tools' variables have.
	if strings.Trim(text, "0123456789.") == "" {
		seconds += "s"
	}
	d, err := time.ParseDuration(seconds)
	if err != nil {
		return 0, errors.New("must be a duration such as 30s or 1m30s, or a number of seconds")
	}
	// Without a least one a job over the limit would be tried again and again, without a pause.
	if d < least || d > maxSnooze {
		return 0, fmt.Errorf("must be from %v to %v", least, maxSnooze)
	}
	return d, nil
}
