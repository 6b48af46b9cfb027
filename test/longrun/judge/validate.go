package judge

import (
	"errors"
	"fmt"
	"time"

	"github.com/sluice-qos/sluice/test/longrun/history"
)

// longest is how long a run may take: what is counted is counted by the second.
const longest = 5 * time.Hour

// validate finds times that cannot be of the run.
func validate(h *history.History) error {
	if h.Run.Begin.IsZero() {
		return errors.New("the history does not say when the run began")
	}
	check := func(what string, n int, times ...time.Time) error {
		for _, at := range times {
			if d := at.Sub(h.Run.Begin); d < -time.Hour || d > longest {
				return fmt.Errorf("%s %d: %s is not within the %s after the run's begin, %s", what, n+1, at, longest, h.Run.Begin)
			}
		}
		return nil
	}
	var errs []error
	for i, r := range h.Requests {
		errs = append(errs, check("request", i, r.Sent, r.Done))
	}
	for i, a := range h.Arrivals {
		errs = append(errs, check("arrival", i, a.At, a.Ended))
	}
	for i, x := range h.Transfers {
		errs = append(errs, check("transfer", i, x.At))
	}
	for i, f := range h.Faults {
		errs = append(errs, check("fault", i, f.Begin, f.End))
	}
	for i, l := range h.Leaks {
		errs = append(errs, check("leak", i, l.At))
	}
	for _, err := range errs {
		if err != nil {
			return err // the first one says enough
		}
	}
	return nil
}
