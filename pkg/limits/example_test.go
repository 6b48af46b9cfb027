package limits_test

import (
	"fmt"
	"slices"

	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

func ExampleSet_User() {
	set, err := limitfile.Parse("limits.yaml", []byte(`
version: 1
default_tier: free
tiers:
  free: {requests: {GET: 100, "*": 200}, concurrent: 10}
  pro: {requests: {GET: 1000}, concurrent: 100}
users:
  alice: pro
  bob: {tier: pro, concurrent: 250}
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, name := range []string{"alice", "bob", "carol"} {
		of := set.User(limits.Key(name))
		fmt.Println(name, of.Tier, of.Concurrent, slices.Collect(of.Rates()))
	}
	// Output:
	// alice pro 100 [{GET second 1000 0 enforce <nil>}]
	// bob pro 250 [{GET second 1000 0 enforce <nil>}]
	// carol free 10 [{* second 200 0 enforce <nil>} {GET second 100 0 enforce <nil>}]
}

func ExampleLimits_AppendRates() {
	of := limits.Limits{Tier: "free", Lists: &limits.Lists{Rates: []limits.Rate{
		{Class: limits.All, Max: 200},
		{Class: "GET", Max: 100},
		{Class: "GET", Window: limits.Minute, Max: 1000},
	}}}
	for _, rate := range of.AppendRates(nil, "GET", "") {
		fmt.Println(rate.Name(), rate.Max)
	}
	for _, rate := range of.AppendRates(nil, "PUT", "") {
		fmt.Println(rate.Name(), rate.Max)
	}
	// Output:
	// GET 100
	// GET/minute 1000
	// * 200
	// * 200
}

// A Set without a limit file, as tests of what decides about requests make one.
func ExampleNew() {
	free := &limits.Limits{Tier: "free", Concurrent: 10}
	set := limits.NewSet(limits.Content{
		DefaultTier: "free",
		Tiers:       map[string]*limits.Entry{"free": {Limits: free}},
	})
	fmt.Println(set.User("alice").Concurrent)
	// Output: 10
}

func ExampleKey() {
	fmt.Println(limits.Key("alice"))
	fmt.Println(limits.Key("~alice"))
	// Output:
	// alice
	// ~67C23011661547FAB264F9BC56F9C851C15178FF4EE6E3C0B82A8E980560873F
}
