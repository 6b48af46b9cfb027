package up

import (
	"cmp"
	"context"
	"log/slog"
	"reflect"
	"slices"
	"time"

	"github.com/sluice-qos/sluice/haproxy"
	"github.com/sluice-qos/sluice/internal/polygen"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// warnOfLimits tells of every version of the limit file that wants another HAProxy
// configuration than the one of the first, or that names users whom HAProxy never finds.
func warnOfLimits(ctx context.Context, o Options, w *polygen.LimitWatcher, first *limits.Set) error {
	warnOfNames(o, first)
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	// A version is warned of once. To go back to the first one needs no warning, and ends it.
	warned := first.Version()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		// Looked at rather than told of: a second later is early enough for a person.
		set := w.Set()
		if set.Version() != warned && !sameForHAProxy(set, first) {
			o.Logger.Warn("classes, exempt addresses or paths, limits of addresses, or the first limit of bandwidth have changed: start sluice up again for HAProxy to know them",
				slog.String("version", set.Version()))
		}
		if set.Version() != warned {
			warnOfNames(o, set)
		}
		warned = set.Version()
	}
}

// warnOfNames tells of users whose limits never count, because no request is found to be theirs.
func warnOfNames(o Options, set *limits.Set) {
	names, err := haproxy.NeverFound(cmp.Or(o.Identify, haproxy.TryOut), set)
	if err != nil || len(names) == 0 {
		// An error is of the chain, with which HAProxy's configuration was written: there is none.
		return
	}
	o.Logger.Warn("users are named with capital letters, and the identify chain finds names in small letters only: write them small, or add :exact in the chain",
		slog.String("identify", o.Identify), slog.String("first", names[0]), slog.Int("users", len(names)))
}

// sameForHAProxy reports whether set makes the HAProxy configuration that first has made, or one that does no less.
func sameForHAProxy(set, first *limits.Set) bool {
	// Exempt users, limits and tiers are the agent's: a change of theirs HAProxy needs not know. A limit of
	// bandwidth that was there at the start and is gone costs HAProxy a little, and takes nothing from anybody.
	x, y := set.Exempt(), first.Exempt()
	return reflect.DeepEqual(set.Classes(), first.Classes()) &&
		slices.Equal(x.Addresses, y.Addresses) && slices.Equal(x.Paths, y.Paths) && set.AddressLimits() == first.AddressLimits() &&
		(first.LimitsBandwidth() || !set.LimitsBandwidth())
}
