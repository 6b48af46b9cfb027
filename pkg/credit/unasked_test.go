package credit

import "testing"

func TestUnasked(t *testing.T) {
	for _, tt := range []struct {
		tier             string
		instances        int
		requests, places int
	}{
		{"{}", 1, 0, 0},
		{`{requests: {GET: 0, PUT: 10}}`, 1, 10, 0},
		{`{requests: {GET: 10, "*": 20}, concurrent: 5}`, 1, 10, 5},
		{`{requests: {GET: 10, "*": 20}, concurrent: 5}`, 4, 2, 1},
		{`{requests: {GET: 3}, concurrent: 3}`, 10, 1, 1},
		{`{requests: {GET: {second: 100, minute: 1000}}, concurrent: 50, bandwidth: {down: 1MB}, priority: 1}`, 2, 50, 25},
		{`{requests: {GET: {minute: 1000}}}`, 1, 0, 0},
		{`{requests: {GET: {second: 10, burst: 5}}}`, 1, 15, 0},
		{`{requests: {GET: 10}, concurrent: 5, mode: dry-run}`, 1, 0, 0},
		{`{concurrent: 10, over_limit: {concurrent: wait 2s}}`, 2, 0, 5},
	} {
		requests, places := Unasked(limitsOf(t, tt.tier), tt.instances)
		if requests != tt.requests || places != tt.places {
			t.Errorf("Unasked(%s, %d) = %d a second, %d in progress; want %d and %d", tt.tier, tt.instances, requests, places, tt.requests, tt.places)
		}
	}
}
