package judge

import (
	"fmt"
	"math"
	"time"
)

// Property is what is judged.
type Property int

const (
	Requests          Property = iota // admitted requests of a window ÷ limit
	InProgress                        // requests in progress ÷ limit
	Bytes                             // bytes of a second ÷ limit
	Costs                             // what the admitted requests of a window cost ÷ limit
	Failed                            // requests without an answer, or with one that an origin did not give
	RefusedRate                       // the share of a rate limit that a refused user had used
	RefusedInProgress                 // the share of the limit of requests in progress that a refused user had in use
	RefusedCost                       // the share of a limit of costs that a refused user may have been charged, the refused request included
	Waited                            // time until an answer ÷ time within which it must come
	Memory                            // of a process ÷ what it may have
	Leaked                            // what is held after a quiet time
	Exact                             // seconds from the end of a fault until everything was exact again
	properties
)

var propertyNames = [properties]string{
	"requests ÷ limit", "in progress ÷ limit", "bytes ÷ limit", "cost ÷ limit", "failed", "refused at (rate)", "refused at (in progress)", "refused at (cost)",
	"waited", "memory", "leaked", "exact after",
}

// String returns the head of the property's column.
func (p Property) String() string { return propertyNames[p] }

// lowerIsWorse reports whether a bound is the least value that is allowed.
func (p Property) lowerIsWorse() bool {
	return p == RefusedRate || p == RefusedInProgress || p == RefusedCost
}

func (p Property) ofLimit() bool { return p <= Costs || p == Waited || p == Memory || p.lowerIsWorse() }

// counted reports whether a cell shows how many there were in all, and not the worst one.
func (p Property) counted() bool { return p == Failed || p == Leaked }

func (p Property) looser(a, b float64) bool {
	if p.lowerIsWorse() {
		return a < b
	}
	return a > b
}

func (p Property) format(v float64) string {
	switch {
	case math.IsInf(v, 1):
		return "any"
	case p == Exact:
		return fmt.Sprintf("%.1f s", v)
	case p.ofLimit():
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// An Observation is one value that was seen: a good one or a bad one.
type Observation struct {
	Property   Property
	User       string
	Instance   int    // through which it came; -1: it concerns no single one
	What       string // what was counted: "GET in a second"
	Begin, End time.Time
	Count      float64
	Limit      float64 // +Inf: there is none
	Default    float64 // the same limit of the default tier; +Inf: it has none
}

// Value is what the matrix shows.
func (o *Observation) Value() float64 {
	if o.Property.ofLimit() {
		return o.Count / o.Limit
	}
	return o.Count
}

// within reports whether the value keeps a bound. Parts of limits are rounded as instances round them: there is no
// half request.
func (o *Observation) within(bound float64) bool {
	const tiny = 1e-9
	switch {
	case o.Property == Bytes || o.Property == Waited || o.Property == Memory:
		return o.Count <= o.Limit*bound
	case o.Property.lowerIsWorse():
		return bound == 0 || o.Count >= math.Floor(o.Limit*bound+tiny)
	case o.Property.ofLimit():
		return o.Count <= math.Ceil(o.Limit*bound-tiny)
	}
	return o.Count <= bound
}
