package limits_test

import (
	"slices"
	"testing"
)

func TestSecondClasses(t *testing.T) {
	set := mustParse(t, `
version: 1
default_tier: free
classes:
  LIST: [{path_prefix: /list}]
  SCAN: [{path_prefix: /scan}]
tiers:
  free: {requests: {GET: 10, DELETE: {minute: 10}}}
  pro: {requests: {HEAD: {second: 5, hour: 10}, POST: 5}}
users:
  alice: {tier: free, requests: {PUT: 5}}
  bob: {tier: free, requests: {PATCH: 5}, until: 2000-01-02}
  carol-*: {tier: free, requests: {LIST: 5}}
`)
	want := []string{"GET", "HEAD", "LIST", "PATCH", "POST", "PUT"}
	if got := set.SecondClasses(); !slices.Equal(got, want) {
		t.Errorf("SecondClasses() = %q, want %q", got, want)
	}
	if got := mustParse(t, "version: 1\ndefault_tier: free\ntiers: {free: {}}\n").SecondClasses(); len(got) != 0 {
		t.Errorf("SecondClasses() = %q without limits, want none", got)
	}
}

func TestLimitsBandwidth(t *testing.T) {
	const head = "version: 1\ndefault_tier: free\n"
	for text, want := range map[string]bool{
		head + "tiers: {free: {requests: {GET: 10}}}\n":                                                  false,
		head + "tiers: {free: {}, pro: {bandwidth: {down: 1MiB}}}\n":                                     true,
		head + "tiers: {free: {}}\nusers: {a-*: {tier: free, bandwidth: {up: 1MiB}}}\n":                  true,
		head + "tiers: {free: {}}\nusers: {a: {tier: free, bandwidth: {up: 1MiB}, until: 2000-01-02}}\n": true,
	} {
		if got := mustParse(t, text).LimitsBandwidth(); got != want {
			t.Errorf("LimitsBandwidth() = %t, want %t, of\n%s", got, want, text)
		}
	}
}
