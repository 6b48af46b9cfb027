package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

// source answers as a test wants, and counts.
type source struct {
	mu    sync.Mutex
	tier  string
	err   error
	takes time.Duration
	deaf  bool // does not heed the context
	asked int
}

func (s *source) record(ctx context.Context, _ string) (jobs.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	ended := ctx.Done()
	if s.deaf {
		ended = nil
	}
	select {
	case <-time.After(s.takes):
		return jobs.Record{Tier: s.tier}, s.err
	case <-ended:
		return jobs.Record{}, ctx.Err()
	}
}

var errDown = errors.New("down")

// TestCache is a history: what is asked when, what the source would say then, and what
// comes of it.
func TestCache(t *testing.T) {
	cfg := jobs.CacheConfig{TTL: time.Minute, NotFoundTTL: 10 * time.Second, Retry: 5 * time.Second}
	synctest.Test(t, func(t *testing.T) {
		s := &source{}
		c := jobs.NewCache(s.record, cfg)
		for i, step := range []struct {
			name  string
			after time.Duration
			says  string
			fails error
			want  string
			err   error
			asked int // so far
		}{
			{"the first time it asks", 0, "pro", nil, "pro", nil, 1},
			{"then it knows", time.Minute - 1, "free", nil, "pro", nil, 1},
			{"until the time is over", 1, "free", nil, "free", nil, 2},
			{"when it fails, the last counts", time.Minute, "", errDown, "free", errDown, 3},
			{"and is not asked for again at once", 5*time.Second - 1, "pro", nil, "free", nil, 3},
			{"but soon", 1, "", errDown, "free", errDown, 4},
			{"until it works", 5 * time.Second, "pro", nil, "pro", nil, 5},
			{"one who is gone is known no more", time.Minute, "", nil, "", nil, 6},
			{"which is remembered", 10*time.Second - 1, "pro", nil, "", nil, 6},
			{"for a shorter time", 1, "pro", nil, "pro", nil, 7},
		} {
			time.Sleep(step.after)
			s.tier, s.err = step.says, step.fails
			got, err := c.Record(context.Background(), "paul")
			if got.Tier != step.want || !errors.Is(err, step.err) || (err == nil) != (step.err == nil) || s.asked != step.asked {
				t.Fatalf("step %d, %s: Record = %+v, %v, asked %d times, want %q, %v, %d", i, step.name, got, err, s.asked, step.want, step.err, step.asked)
			}
		}
		if got, want := c.Stats(), (jobs.CacheStats{Hits: 3, Misses: 7, Asked: 7, Errors: 2, Users: 1}); got != want {
			t.Errorf("Stats() = %+v, want %+v", got, want)
		}
	})
}

func TestCacheOfNothingKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{err: errDown, tier: "lies"}
		c := jobs.NewCache(s.record, jobs.CacheConfig{})
		if got, err := c.Record(context.Background(), "paul"); got.Tier != "" || !errors.Is(err, errDown) {
			t.Errorf("Record = %+v, %v, want nothing and the error", got, err)
		}
		if got, err := c.Record(context.Background(), "paul"); got.Tier != "" || err != nil || s.asked != 1 {
			t.Errorf("Record = %+v, %v, asked %d times, want nothing, without asking again", got, err, s.asked)
		}
	})
}

// TestCacheDefaults: the zero CacheConfig.
func TestCacheDefaults(t *testing.T) {
	for _, tt := range []struct {
		name string
		s    *source
		want time.Duration // until it asks again
	}{
		{"a tier", &source{tier: "pro"}, time.Minute},
		{"nobody", &source{}, 10 * time.Second},
		{"an error", &source{err: errDown}, 5 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := jobs.NewCache(tt.s.record, jobs.CacheConfig{})
			_, _ = c.Record(context.Background(), "paul")
			time.Sleep(tt.want - 1)
			if _, _ = c.Record(context.Background(), "paul"); tt.s.asked != 1 {
				t.Errorf("%s: asked %d times before %v, want once", tt.name, tt.s.asked, tt.want)
			}
			time.Sleep(time.Nanosecond)
			if _, _ = c.Record(context.Background(), "paul"); tt.s.asked != 2 {
				t.Errorf("%s: asked %d times after %v, want twice", tt.name, tt.s.asked, tt.want)
			}
		})
	}
}

func TestCacheAsksOnceAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{tier: "pro", takes: time.Second}
		c := jobs.NewCache(s.record, jobs.CacheConfig{})
		hurried, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() { // the first caller, which gives up: the others must still get their answer
			if got, err := c.Record(hurried, "paul"); got.Tier != "" || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("in a hurry: Record = %+v, %v, want nothing and an error", got, err)
			}
		})
		synctest.Wait()
		for range 50 {
			wg.Go(func() {
				if got, err := c.Record(context.Background(), "paul"); got.Tier != "pro" || err != nil {
					t.Errorf("Record = %+v, %v, want pro", got, err)
				}
			})
		}
		wg.Wait()
		if got, want := c.Stats(), (jobs.CacheStats{Misses: 51, Asked: 1, Users: 1}); got != want {
			t.Errorf("Stats() = %+v, want %+v", got, want)
		}
	})
}

// A caller whose context has ended gets what is known, and causes no question.
func TestCacheDoesNotAskForWhoCannotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{tier: "pro"}
		c := jobs.NewCache(s.record, jobs.CacheConfig{TTL: time.Minute})
		over, cancel := context.WithCancel(t.Context())
		cancel()
		for _, step := range []struct {
			name  string
			ctx   context.Context
			after time.Duration
			want  string
			err   error
			asked int
		}{
			{"nothing is known", over, 0, "", context.Canceled, 0},
			{"who can wait asks", t.Context(), 0, "pro", nil, 1},
			{"what is fresh is for everybody", over, 0, "pro", nil, 1},
			{"what is old is all that there is", over, time.Hour, "pro", context.Canceled, 1},
		} {
			time.Sleep(step.after)
			got, err := c.Record(step.ctx, "ann")
			synctest.Wait()
			if got.Tier != step.want || !errors.Is(err, step.err) || s.asked != step.asked {
				t.Errorf("%s: Record() = %+v, %v after %d questions, want %q, %v after %d", step.name, got, err, s.asked, step.want, step.err, step.asked)
			}
		}
	})
}

// A question times out also when its function does not heed its context. A caller who
// comes then does not wait, and the answer counts when it is there.
func TestCacheTimesOut(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := &source{tier: "pro"}
			c := jobs.NewCache(s.record, jobs.CacheConfig{Timeout: time.Second})
			_, _ = c.Record(context.Background(), "paul")
			time.Sleep(time.Minute)
			s.tier, s.takes, s.deaf = "free", time.Hour, deaf
			began := time.Now()
			got, err := c.Record(context.Background(), "paul")
			if got.Tier != "pro" || !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
				t.Errorf("deaf %v: Record = %+v, %v after %v, want pro and an error after 1s", deaf, got, err, time.Since(began))
			}
			if !deaf {
				return
			}
			began = time.Now()
			got, err = c.Record(context.Background(), "paul")
			if got.Tier != "pro" || !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 0 {
				t.Errorf("Record = %+v, %v after %v, want pro and an error at once", got, err, time.Since(began))
			}
			time.Sleep(time.Hour)
			if got, err = c.Record(context.Background(), "paul"); got.Tier != "free" || err != nil {
				t.Errorf("later: Record = %+v, %v, want free", got, err)
			}
		})
	}
}

func TestCacheSurvivesAPanic(t *testing.T) {
	c := jobs.NewCache(func(context.Context, string) (jobs.Record, error) { panic("oh") }, jobs.CacheConfig{})
	if got, err := c.Record(context.Background(), "paul"); got.Tier != "" || fmt.Sprint(err) != "panic: oh" {
		t.Errorf("Record = %+v, %v, want nothing and panic: oh", got, err)
	}
}

func TestCacheCountsEachUserOnce(t *testing.T) {
	s := &source{tier: "pro"}
	c := jobs.NewCache(s.record, jobs.CacheConfig{MaxUsers: 4})
	for _, user := range []string{"a", "b", "c", "a"} {
		_, _ = c.Record(context.Background(), user)
	}
	if got := c.Stats().Users; got != 3 || s.asked != 3 {
		t.Errorf("it remembers %d users and asked %d times, want 3 and 3", got, s.asked)
	}
}

// TestCacheIsBounded: it forgets, and those first who were not asked about.
func TestCacheIsBounded(t *testing.T) {
	for _, most := range []int{1, 2, 10, 101} {
		asked := map[string]int{}
		var mu sync.Mutex
		c := jobs.NewCache(func(_ context.Context, user string) (jobs.Record, error) {
			mu.Lock()
			defer mu.Unlock()
			asked[user]++
			return jobs.Record{Tier: "pro"}, nil
		}, jobs.CacheConfig{MaxUsers: most})
		for i := range 1000 {
			for _, user := range []string{"busy", fmt.Sprint("user-", i)} {
				if got, err := c.Record(context.Background(), user); got.Tier != "pro" || err != nil {
					t.Fatalf("Record(%s) = %+v, %v, want pro", user, got, err)
				}
				if n := c.Stats().Users; n > max(2, most) {
					t.Fatalf("it remembers %d users, want at most %d", n, most)
				}
			}
		}
		if most >= 10 && asked["busy"] != 1 {
			t.Errorf("of %d: who is always there was asked for %d times, want once", most, asked["busy"])
		}
	}
}
