package judge

import (
	"fmt"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/test/longrun/history"
)

// begin is when the scenes begin: a full minute.
var begin = time.Date(2026, 11, 23, 21, 0, 0, 0, time.UTC)

// scene is a history made by hand. Times are in milliseconds from its begin.
type scene struct{ history.History }

func newScene() *scene {
	s := &scene{}
	s.Run = history.Run{Seed: 7, Store: "single", Instances: 3, Begin: begin}
	return s
}

func ms(at int) time.Time { return begin.Add(time.Duration(at) * time.Millisecond) }

// limit gives a user limits of GET, and of all requests together, from the begin on.
func (s *scene) limit(user string, get, concurrent int, down int64) *scene {
	s.Limits = append(s.Limits, history.Limit{User: user, Class: "GET", Requests: map[string]int{"second": get}, Concurrent: concurrent, Down: down, From: begin})
	return s
}

// admit has a request answered that the origin had from at to over.
func (s *scene) admit(user string, at, over int) *scene {
	id := fmt.Sprint(len(s.Requests))
	s.Requests = append(s.Requests, history.Request{User: user, Method: "GET", ID: id, Sent: ms(at - 1), Done: ms(over + 1), Status: 200})
	s.Arrivals = append(s.Arrivals, history.Arrival{ID: id, User: user, Method: "GET", At: ms(at), Ended: ms(over)})
	return s
}

// admits has n of them, one a millisecond from at on. Each takes about half a millisecond.
func (s *scene) admits(user string, n, at int) *scene {
	for i := range n {
		s.admit(user, at+i, at+i+1)
	}
	return s
}

// late has the last n requests come to the origin at a later time.
func (s *scene) late(n, at int) *scene {
	for i := range n {
		a, r := &s.Arrivals[len(s.Arrivals)-1-i], &s.Requests[len(s.Requests)-1-i]
		a.At, a.Ended, r.Done = ms(at), ms(at+1), ms(at+2)
	}
	return s
}

func (s *scene) request(user string, at int, change func(*history.Request)) *scene {
	r := history.Request{User: user, Method: "GET", ID: fmt.Sprint(len(s.Requests)), Sent: ms(at), Done: ms(at + 2)}
	change(&r)
	s.Requests = append(s.Requests, r)
	return s
}

func (s *scene) refuse(user string, at int, reason string) *scene {
	return s.request(user, at, func(r *history.Request) { r.Status, r.Reason = 429, reason })
}

// costs gives a user a limit of costs in a second and in a minute, from the begin on; 0 is none.
func (s *scene) costs(user string, second, minute int, debt bool) *scene {
	s.Limits = append(s.Limits, history.Limit{User: user, Costs: map[string]int{"second": second, "minute": minute}, Debt: debt, From: begin})
	return s
}

// spends has n requests answered, one a millisecond from at on, with an announced and a real cost: 0 if no answer reports one.
func (s *scene) spends(user string, n, at, estimate, cost int) *scene {
	s.admits(user, n, at)
	for i := range n {
		s.Requests[len(s.Requests)-1-i].Estimate, s.Arrivals[len(s.Arrivals)-1-i].Cost = int64(estimate), int64(cost)
	}
	return s
}

// overspend has a request with an announced cost refused.
func (s *scene) overspend(user string, at, estimate int) *scene {
	return s.request(user, at, func(r *history.Request) { r.Status, r.Reason, r.Estimate = 429, "cost", int64(estimate) })
}

// crowd has n requests arrive in a second that were sent in another one.
func (s *scene) crowd(user string, sent, at int64, n int) *scene {
	s.Crowds = append(s.Crowds, history.Crowd{User: user, Method: "GET", Sent: begin.Unix() + sent, At: begin.Unix() + at, Requests: n})
	return s
}

// within has a request answered that must be answered within a second.
func (s *scene) within(user string, took int) *scene {
	s.admit(user, 51, 51+took)
	r := &s.Requests[len(s.Requests)-1]
	r.Done, r.Within = r.Sent.Add(time.Duration(took)*time.Millisecond), time.Second
	return s
}

// memory is a sample of a process, in MiB. Agents may have 500.
func (s *scene) memory(part string, mib float64) *scene {
	s.Run.Memory = map[string]float64{"agent": 500}
	s.Samples = append(s.Samples, history.Sample{At: begin, Part: part, Values: map[string]float64{"memory": mib * (1 << 20)}})
	return s
}

func (s *scene) problem(what string) *scene {
	s.Problems = append(s.Problems, history.Problem{At: begin, What: what})
	return s
}

func (s *scene) fault(name, target string, from, to int) *scene {
	s.Faults = append(s.Faults, history.Fault{Name: name, Target: target, Begin: ms(from), End: ms(to)})
	return s
}

// judged is the violations of a scene, a line each.
func (s *scene) judged() string {
	r, err := Judge(&s.History)
	if err != nil {
		return "error: " + err.Error()
	}
	var lines []string
	for _, v := range r.Violations {
		lines = append(lines, v.String())
	}
	for _, u := range r.Unbounded {
		lines = append(lines, "unbounded: "+u)
	}
	for _, p := range r.Problems {
		lines = append(lines, "problem: "+p)
	}
	if passed := r.Word() == "PASS"; passed != (len(lines) == 0 && r.Requests > 0) {
		lines = append(lines, r.Verdict())
	}
	return strings.Join(lines, "\n")
}
