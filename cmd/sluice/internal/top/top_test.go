package top

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/api/client"
	"github.com/sluice-qos/sluice/internal/terminal"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/apitest"
)

// The list for people: units, and no sign of a comment.
func TestTopForPeople(t *testing.T) {
	p := &picture{Users: apitest.Cluster().List, Ranked: []ranked{{Summary: apitest.Cluster().List.Users[0], Nearest: &nearest{"GET", "enforce", 80, 100, 0.8}}}}
	p.Sort, p.Leading, p.Dropped = api.ByRate, false, 3
	p.Ranked[0].Seen = apitest.Noon.Add(-200 * time.Second)
	want := `2026-11-20T12:00:00Z  polygen one, following, limits version 0123456789ab, users seen: 12 (forgotten, because there were too many: 3), by rate
user   tier  state  rate/s  refused/s  in progress      down    up  nearest  used   seen
alice  pro   ok       80.0        0.0            3  1.5MiB/s  0B/s  GET       80%  3m20s`
	if diff := cmp.Diff(want, strings.Join(formatTable(p, true, 0), "\n")); diff != "" {
		t.Errorf("table() (-want +got):\n%s", diff)
	}
}

// A screen is drawn over the one before, and never is larger than the terminal.
func TestTopByCost(t *testing.T) {
	row := func(used, left int64, mode string) *api.Limit {
		return &api.Limit{Name: "tokens/day", Unit: "tokens", Max: 500_000, Window: 86400, Mode: mode, Used: used, Left: &left, Resets: ptr(apitest.Noon.Add(12 * time.Hour))}
	}
	p := &picture{Users: apitest.Cluster().List}
	p.Sort = api.ByCost("tokens")
	for i, cost := range []*api.Limit{row(503_000, 0, "enforce"), row(499_999, 1, "dry-run"), nil} {
		u := p.Users.Users[i]
		u.Cost, u.Seen = cost, apitest.Noon
		p.Ranked = append(p.Ranked, ranked{Summary: u})
	}
	p.Ranked[0].State = api.Spent
	const head = "2026-11-20T12:00:00Z  polygen one, leading, limits version 0123456789ab, users seen: 12, by cost:tokens\n"
	for people, want := range map[bool]string{
		true: head + `user          tier  state      limit                  used      of  part  left  resets in  rate/s  seen
alice         pro   spent      tokens/day           503000  500000  100%     0    12h0m0s    80.0  0.0s
"carol\x20d"  free  throttled  tokens/day(dry-run)  499999  500000   99%     1    12h0m0s     4.2  0.0s
~AB           free  blocked    -                         -       -     -     -          -     0.0  0.0s`,
		false: head + `#user         tier  state      limit                  used     max  used_%  left  resets_s  rate/s  seen_s
alice         pro   spent      tokens/day           503000  500000     100     0     43200    80.0     0.0
"carol\x20d"  free  throttled  tokens/day(dry-run)  499999  500000      99     1     43200     4.2     0.0
~AB           free  blocked    -                         -       -       -     -         -     0.0     0.0`,
	} {
		if diff := cmp.Diff(want, strings.Join(formatTable(p, people, 0), "\n")); diff != "" {
			t.Errorf("for people %v (-want +got):\n%s", people, diff)
		}
	}
}

func ptr[T any](v T) *T { return &v }

// An empty list would not say that a unit's name is wrong.
func TestTopByAnUnknownUnit(t *testing.T) {
	for _, tt := range []struct {
		units []string
		want  string
	}{
		{[]string{"pages", "tokens"}, `unknown unit "token" (valid: pages, tokens)`},
		{nil, `unknown unit "token": the limit file has no costs`},
	} {
		f := apitest.Cluster()
		f.List.Units = tt.units
		server := apitest.Serve(f)
		defer server.Close()
		a, err := client.NewClient(server.Listener.Addr().String(), client.Access{})
		testkit.Must(t, err)
		defer a.Close()
		var out bytes.Buffer
		err = Run(t.Context(), a, Options{Sort: api.ByCost("token"), N: 5, Interval: time.Hour, Once: true}, &out, io.Discard)
		if err == nil || err.Error() != tt.want || out.Len() > 0 {
			t.Errorf("of the units %q: %v, and %q, want %s", tt.units, err, &out, tt.want)
		}
	}
}

func TestScreen(t *testing.T) {
	p := &picture{Users: api.Users{From: api.From{Polygen: "one", Version: "v", Time: apitest.Noon}, Sort: api.ByUp}}
	for _, name := range []string{"a", "a-long-name-of-somebody", "日本語日本語日本語", "d"} {
		p.Ranked = append(p.Ranked, ranked{Summary: api.Summary{Name: api.Name{User: name}, Tier: "t", State: api.OK, Seen: apitest.Noon}})
	}
	columns, rows := 70, 6
	var out bytes.Buffer
	s := &screen{Screen: terminal.Screen{W: &out, Size: func() (int, int) { return columns, rows }}}
	drawn := func(what string, draw error, want string) {
		t.Helper()
		if diff := cmp.Diff(want, out.String()); diff != "" || draw != nil {
			t.Errorf("%s: %v, (-want +got):\n%s", what, draw, diff)
		}
		out.Reset()
	}
	drawn("the first scrolls what was there away, and the last row stays free", s.showPicture(p), strings.Repeat("\n", 5)+
		"\x1b[H\x1b[K2026-11-20T12:00:00Z  polygen one, following, limits version v, users…\n"+
		"\x1b[Kuser      tier  state  rate/s  refused/s  in progress  down    up  ne…\n"+
		"\x1b[Ka         t     ok        0.0        0.0            0  0B/s  0B/s  - …\n"+
		"\x1b[Ka-long-…  t     ok        0.0        0.0            0  0B/s  0B/s  - …\n"+
		"\x1b[K日本語…   t     ok        0.0        0.0            0  0B/s  0B/s  - …\n\x1b[J")
	columns, rows = 20, 4
	small := "\x1b[H\x1b[K2026-11-20T12:00:00…\n\x1b[Kuser      tier  sta…\n\x1b[Ka         t     ok …\n\x1b[J"
	drawn("a terminal that became smaller", s.showPicture(p), small)
	rows = 3
	const lost = "\x1b[H\x1b[K2026-11-20T12:00:00…\n\x1b[Kno answer since 202…\n\x1b[J"
	if err := s.showOutage(apitest.Noon, errors.New("nothing listens")); err != nil || !strings.HasPrefix(out.String(), lost) {
		t.Errorf("while polygen is away: %v, %q, want the time and since when", err, &out)
	}
	out.Reset()
	rows = 1
	drawn("one row", s.showPicture(p), "\x1b[H\x1b[J")
	drawn("the end", s.finish(), "\r\x1b[K")
}

// In a pipe an outage is told once, and its end; there is no list meanwhile.
func TestTopOutageInAPipe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		gone, asked := errors.New("nothing listens"), 0
		answers := []error{nil, nil, gone, gone, nil, gone, nil}
		p := &picture{Users: apitest.Cluster().List}
		ask := func(context.Context) (list, error) {
			asked++
			if asked > len(answers) {
				stop()
				return nil, ctx.Err()
			}
			return p, answers[asked-1]
		}
		var out, errs bytes.Buffer
		if err := (Options{Interval: 3 * time.Second}).follow(ctx, ask, &tables{w: &out, errs: &errs}); err != nil {
			t.Errorf("follow() = %v, want nil after Ctrl-C", err)
		}
		if n := strings.Count(out.String(), "# 2026"); n != 4 {
			t.Errorf("%d lists, want 4:\n%s", n, &out)
		}
		want := `sluice top: no answer since 2000-01-01T00:00:03Z: nothing listens
sluice top: there are answers again, after 9s
sluice top: no answer since 2000-01-01T00:00:12Z: nothing listens
sluice top: there are answers again, after 6s
`
		if diff := cmp.Diff(want, errs.String()); diff != "" {
			t.Errorf("standard error (-want +got):\n%s", diff)
		}
	})
}

// Nobody reads: top ends.
func TestTopEndsWithItsPipe(t *testing.T) {
	r, w, err := os.Pipe()
	testkit.Must(t, err)
	r.Close()
	defer w.Close()
	ask := func(context.Context) (list, error) { return &picture{}, nil }
	if err := (Options{Interval: time.Hour}).follow(t.Context(), ask, &tables{w: w, errs: io.Discard}); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("follow() = %v, want a broken pipe", err)
	}
}
