package haproxy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/testkit"
)

// Where requests with a field X-Pause wait for their body, so that a test can act between two rules: above these lines of haproxy.cfg.
var pauses = map[string]string{
	"not-admitted":   "    # What the agent is told: that",
	"claimed":        "    http-request sc-set-gpt(1,1) var(txn.sluice_generation)",
	"before-writing": "    http-request sc-set-gpt(1,0) var(txn.sluice.places)",
	"written":        "    # Withdrawn meanwhile:",
}

// Rules within which a request can stand still as well, as a thread may: between the last ticket and the last look at the
// generation, and between what the rule asks that claims a second, and its write.
var (
	lastLook = regexp.MustCompile(`(?m)^    http-request allow if (.* !sluice_tried .*) sluice_unchanged( .*)?$`)
	claim    = regexp.MustCompile(`(?m)^    http-request sc-set-gpt\(0,1\) var\(txn\.sluice_now\) if (!sluice_opened .*)$`)
)

func withPauses(cfg string) string {
	wait := func(place string) string {
		return "    http-request set-var(proc.test_still) bool(true) if { req.hdr(x-pause) " + place + " }\n" +
			"    http-request wait-for-body time 20s if { req.hdr(x-pause) " + place + " }\n"
	}
	for place, line := range pauses {
		cfg = strings.Replace(cfg, line, wait(place)+line, 1)
	}
	cfg = strings.Replace(cfg, "\nglobal\n", "\nglobal\n    set-var proc.test_still bool(false)\n", 1)
	cfg = lastLook.ReplaceAllString(cfg, "    http-request set-var(txn.test_drew) bool(true) if $1\n"+wait("with-a-ticket")+
		"    http-request allow if { var(txn.test_drew) -m found } sluice_unchanged$2\n"+
		"    http-request unset-var(txn.test_drew)")
	return claim.ReplaceAllString(cfg, "    http-request set-var(txn.test_claims) bool(true) if $1\n"+wait("claiming")+
		"    http-request sc-set-gpt(0,1) var(txn.sluice_now) if { var(txn.test_claims) -m found }")
}

// paused begins a request of alice that waits at a place, and returns what lets it go on. It has a body, so it is a PUT.
func (r *rig) paused(t *testing.T, place string) (goOn func() answer) {
	t.Helper()
	r.cli(t, "set var proc.test_still bool(false)")
	e := r.begin(t, httpRequest("PUT", "/", "X-User: alice", "X-Pause: "+place, "Content-Length: 1"))
	testkit.Eventually(t, "it stands still", func() error {
		if still := r.cli(t, "get var proc.test_still"); !strings.Contains(still, "value=<1>") {
			return errors.New(still)
		}
		return nil
	})
	return func() answer {
		t.Helper()
		e.write("x")
		return e.answer()
	}
}

// awaitEntry waits until alice's entry is as wanted.
func (r *rig) awaitEntry(t *testing.T, what string, wanted func(e map[string]int) bool) {
	t.Helper()
	testkit.Eventually(t, what, func() error {
		if e := r.entry(t, "alice"); !wanted(e) {
			return fmt.Errorf("entry %v", e)
		}
		return nil
	})
}

// awaitSecond waits for the beginning of a second of which alice has no entry yet.
func awaitSecond() {
	time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(1050 * time.Millisecond))) // no thread's clock is behind
}

// A request that has a ticket when its credit is withdrawn is not admitted, because the agent
// may have read the count before; not even if there is credit of another generation by then.
func TestCreditWithdrawnBehindATicket(t *testing.T) {
	t.Parallel()
	for _, again := range []bool{false, true} {
		t.Run(fmt.Sprintf("given again %t", again), func(t *testing.T) {
			r := shared(t, singleLogging) // there each rule can be paused
			r.teachRow(t, generation, 0, 0)
			r.lend(t, "alice", credit(unlimited, nil))
			r.native(t, httpGET("/", "X-User: alice"))
			goOn := r.paused(t, "with-a-ticket")
			r.set(t, "sluice_credit", "alice", "data.gpt 0")
			if again {
				r.lend(t, "alice", credit(unlimited, nil).with("credit", uint32(generation+1)))
			}
			if got := goOn(); got.Status != 200 {
				t.Errorf("status = %d, want 200", got.Status)
			}
			asked := r.takeTold(t)
			if len(asked) != 1 || asked[0].Spent != 0 || asked[0].Drawn != -1 {
				t.Errorf("asked %+v, want one question that says nothing of a ticket", asked)
			}
		})
	}
}

// A request that found no place, and whose credit is withdrawn before it looks
// once more, says nothing of its ticket, which may have been drawn after the agent read the count.
func TestCreditWithdrawnBehindAPlace(t *testing.T) {
	t.Parallel()
	g := newGate()
	r := shared(t, single.with(g.ServeHTTP))
	r.teachRow(t, generation, 0, 0)
	g.let(1)
	r.lend(t, "alice", credit(1, nil))
	running := r.starts("alice", 1)
	g.await(t, 2)
	goOn := r.paused(t, "not-admitted")
	r.set(t, "sluice_credit", "alice", "data.gpt 0")
	g.let(100)
	if got := statuses(running, 1); got[200] != 1 {
		t.Errorf("answers = %v, want 200", got)
	}
	r.awaitEntry(t, "the place becomes free", func(e map[string]int) bool { return e["conn_cur"] == 1 })
	r.takeTold(t)
	if got := goOn(); got.Status != 200 {
		t.Errorf("status = %d, want 200", got.Status)
	}
	if asked := r.takeTold(t); len(asked) != 1 || asked[0].Drawn != -1 {
		t.Errorf("asked %+v, want one question that says nothing of a ticket", asked)
	}
}

// A thread that has seen its generation in force may stand still before it opens the second. When another one tells the
// agent meanwhile that nobody has opened it, the agent has the whole limit of this second: the thread must not have it too.
// Nor may it open the second for credit that was given meanwhile, which begins with the next second.
func TestSecondIsNotOpenedBehindAnotherGeneration(t *testing.T) {
	t.Parallel()
	for _, way := range []struct {
		name, place string
		setup       setup
		lapsed      int64 // what others say of the second meanwhile
	}{
		{"before it is claimed", "claiming", single, generation + 1},
		{"before it is claimed, by class", "claiming", singleLogging, generation + 1},
		{"when it is claimed", "claimed", single, -1},
		{"when it is claimed, by class", "claimed", singleLogging, -1},
	} {
		for _, given := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, given again %t", way.name, given), func(t *testing.T) {
				for !notOpenedBehindAnotherGeneration(t, way.setup, way.place, way.lapsed, given) {
					t.Log("a second ended meanwhile")
				}
			})
		}
	}
}

// notOpenedBehindAnotherGeneration reports whether all happened within one second, and was judged.
func notOpenedBehindAnotherGeneration(t *testing.T, s setup, place string, wantLapsed int64, given bool) bool {
	t.Helper()
	r := shared(t, s)
	r.teachRow(t, generation, 0, 0)
	r.lend(t, "alice", credit(unlimited, nil))
	awaitSecond()
	began := time.Now().Unix()
	goOn := r.paused(t, place)
	r.teachRow(t, generation+1, 0, 0)
	if given {
		r.answerTold(func(told) vars { return credit(unlimited, nil).with("credit", uint32(generation+1)) })
	}
	lapsed, wasAsked := r.lapsed(t, httpGET("/", "X-User: alice"))
	inOne := time.Now().Unix() == began
	r.answerTold(nil)
	got := goOn()
	if !inOne {
		return false
	}
	if !wasAsked || lapsed != wantLapsed {
		t.Errorf("asked: %v, lapsed = %d, want %d", wasAsked, lapsed, wantLapsed)
	}
	if got.Status != 200 {
		t.Errorf("status = %d, want 200", got.Status)
	}
	if asked := r.takeTold(t); len(asked) != 1 {
		t.Errorf("asked %+v, want one question", asked)
	}
	for second, e := range r.seconds(t, "alice") {
		if e["gpt1"] != 0 {
			t.Errorf("second %d is %v, want one that nobody opened", second, e)
		}
	}
	return true
}

// An answer that brings credit comes too late if the agent has withdrawn it since, in the same second
// or a later one, also if that is just when HAProxy writes it. The next second's may bring some.
func TestCreditThatWasWithdrawnMeanwhile(t *testing.T) {
	second := uint32(time.Now().Unix())
	of := func(granted uint32) vars { return credit(unlimited, nil).with("granted", granted) }
	r := shared(t, single)
	r.teachRow(t, generation, 0, 0)
	withdraw := func(user string) {
		r.set(t, "sluice_credit", user, fmt.Sprint("data.gpt 0 data.server_id ", second))
	}
	answered := func(user string, v vars) map[string]int {
		t.Helper()
		r.answerTold(func(told) vars { return v })
		if got := r.get(t, "X-User: "+user); got.Status != 200 {
			t.Errorf("status = %d, want 200", got.Status)
		}
		return r.entry(t, user)
	}
	for _, place := range []string{"before-writing", "written"} {
		r.cli(t, "clear table sluice_credit")
		r.answerTold(func(told) vars { return of(second) })
		goOn := r.paused(t, place)
		withdraw("alice")
		if got := goOn(); got.Status != 200 {
			t.Errorf("status = %d, want 200", got.Status)
		}
		if e := r.entry(t, "alice"); e["gpt0"] != 0 {
			t.Errorf("%s: entry %v, want none with credit", place, e)
		}
	}
	for i, tt := range []struct {
		withdrawn bool
		granted   uint32
		want      int
	}{{true, second - 1, 0}, {true, second, 0}, {true, second + 1, generation}, {false, second, generation}} {
		user := fmt.Sprint("user-", i)
		if tt.withdrawn {
			withdraw(user)
		}
		if e := answered(user, of(tt.granted)); e["gpt0"] != tt.want {
			t.Errorf("withdrawn %t, given in %d: entry %v, want generation %d", tt.withdrawn, tt.granted, e, tt.want)
		}
	}
	// Nor does a late one change credit that was given since.
	withdraw("alice")
	for _, v := range []vars{of(second+1).with("credit", uint32(generation+1)), of(second)} {
		if e := answered("alice", v); e["gpt0"] != generation+1 {
			t.Errorf("entry %v, want generation %d", e, generation+1)
		}
	}
}

// A full table of seconds has requests asked about: no second begins again at 0, because HAProxy forgets none of them.
func TestFullTableOfSeconds(t *testing.T) {
	t.Parallel()
	r := shared(t, setup{Config: lending.Config, edit: func(cfg string) string {
		return secondsExpire.ReplaceAllString(telling(cfg), "table type string len 112 size 4 expire 1m")
	}})
	const users, each = 20, 3
	r.teachRow(t, generation, 0, 0)
	r.answerTold(func(told) vars { return credit(unlimited, nil).with("each_0", uint32(each)) })
	for u := range users {
		r.get(t, fmt.Sprint("X-User: user-", u))
	}
	awaitSecond()
	r.answerTold(spentOrLate)
	admitted := map[string]int{} // by user and second
	r.load(t, 2*users, time.Now().Add(2*time.Second), nil, func(i int) string { return httpGET("/", fmt.Sprint("X-User: user-", i%users)) },
		func(i int, _ time.Time, a answer) {
			if a.Status == 200 {
				admitted[fmt.Sprintf("user-%d in %d", i%users, number(t, a, "X-Now"))]++
			}
		})
	for what, n := range admitted {
		if n > each {
			t.Errorf("%d requests of %s admitted, want %d at most", n, what, each)
		}
	}
	if len(admitted) == 0 || len(r.takeTold(t)) == 0 {
		t.Errorf("%d users and seconds with admitted requests, want some, and questions", len(admitted))
	}
}

// The first requests of a user's second come at the same instant on several threads: they draw from one entry.
func TestFirstRequestsOfASecond(t *testing.T) {
	t.Parallel()
	r := shared(t, lending)
	const users, conns = 200, 8
	r.teachRow(t, generation, 0, 0)
	r.answerTold(func(told) vars { return credit(unlimited, nil).with("each_0", uint32(1)) })
	for u := range users {
		r.get(t, fmt.Sprint("X-User: user-", u))
	}
	awaitSecond()
	r.answerTold(spentOrLate)
	var mu sync.Mutex
	admitted := map[[2]int]int{} // by user and second
	round := make([]chan int, conns)
	var clients, turn sync.WaitGroup
	for i := range round {
		round[i] = make(chan int)
		conn := dial(t, "tcp", r.addr)
		clients.Go(func() {
			defer conn.Close()
			in := bufio.NewReader(conn)
			for u := range round[i] {
				_, _ = io.WriteString(conn, httpGET("/", fmt.Sprint("X-User: user-", u)))
				resp, err := http.ReadResponse(in, nil)
				if err != nil {
					t.Error(err)
					turn.Done()
					continue
				}
				if a := read(t, resp); a.Header.Get("X-Credit") != "" && a.Status == 200 {
					mu.Lock()
					admitted[[2]int{u, number(t, a, "X-Now")}]++
					mu.Unlock()
				}
				turn.Done()
			}
		})
	}
	rounds := 0
	for until := time.Now().Add(3 * time.Second); time.Now().Before(until) || rounds < users; rounds++ {
		turn.Add(conns)
		for _, c := range round {
			c <- rounds % users
		}
		turn.Wait()
	}
	for _, c := range round {
		close(c)
	}
	clients.Wait()
	twice := 0
	for _, n := range admitted {
		if n > 1 {
			twice++
		}
	}
	if twice > 0 || rounds < users {
		t.Errorf("%d rounds: of %d users and seconds with one ticket %d admitted more than one request", rounds, len(admitted), twice)
	}
}
