package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/apitest"
)

func TestLimitsOf(t *testing.T) {
	for _, tt := range []struct{ name, words, want string }{
		{"a tier", "tier=pro", `{"tier":"pro"}`},
		{"a tier of digits", "tier=7", `{"tier":"7"}`},
		{"numbers, and what is none", "concurrent=50 priority=-5 bandwidth.down=10MiB mode=off", `{"bandwidth":{"down":"10MiB"},"concurrent":50,"mode":"off","priority":-5}`},
		{"more than one class", "requests.GET=200 requests.*=unlimited", `{"requests":{"*":"unlimited","GET":200}}`},
		{"nothing at all", "requests=0", `{"requests":0}`},
		{"a window, as it is printed", "requests.GET/minute=1000", `{"requests":{"GET":{"minute":1000}}}`},
		{"a second and a minute", "requests.GET=7 requests.GET/minute=9 requests.GET.burst=3", `{"requests":{"GET":{"burst":3,"minute":9,"second":7}}}`},
		{"in the other order", "requests.GET.burst=3 requests.GET=7", `{"requests":{"GET":{"burst":3,"second":7}}}`},
		{"costs", "costs.tokens.day=1M costs.tokens/minute=20000 costs.pages=unlimited", `{"costs":{"pages":"unlimited","tokens":{"day":"1M","minute":20000}}}`},
		{"a value with an equals sign", "over_limit.concurrent=a=b", `{"over_limit":{"concurrent":"a=b"}}`},
		{"what polygen will not take", "concurrent=007", `{"concurrent":"007"}`},
		{"twice", "concurrent=1 concurrent=2", `"concurrent=2": concurrent has a value already`},
		{"above and below", "bandwidth=unlimited bandwidth.up=1", `"bandwidth.up=1": bandwidth has a value already`},
		{"below and above", "bandwidth.up=1 bandwidth=unlimited", `"bandwidth=unlimited": bandwidth has a value already`},
		{"a second twice", "requests.GET=7 requests.GET.second=8", `"requests.GET.second=8": requests.GET.second has a value already`},
		{"no value", "concurrent", `"concurrent": want FIELD=VALUE, such as concurrent=50 or requests.GET=200`},
		{"an empty value", "concurrent=", `"concurrent=": want FIELD=VALUE, such as concurrent=50 or requests.GET=200`},
		{"no field", "=5", `"=5": want FIELD=VALUE, such as concurrent=50 or requests.GET=200`},
		{"an empty part", "requests..GET=5", `"requests..GET=5": want FIELD=VALUE, such as concurrent=50 or requests.GET=200`},
	} {
		limits, err := limitsOf(strings.Fields(tt.words))
		got := ""
		if err != nil {
			got = err.Error()
		} else {
			data, err := json.Marshal(limits)
			testkit.Must(t, err)
			got = string(data)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: limitsOf(%s) (-want +got):\n%s", tt.name, tt.words, diff)
		}
	}
}

// What the other side says is printed so that a terminal bears it.
func TestOverrideListIsPrintable(t *testing.T) {
	s := apitest.Serve(apitest.Cluster())
	defer s.Close()
	var out, errs strings.Builder
	if code := runCommand([]string{"override", "--list", "--admin", s.Listener.Addr().String()}, &out, &errs); code != 0 {
		t.Fatalf("it ended with %d: %s", code, &errs)
	}
	if err := apitest.PrintableOnly(out.String()); err != nil {
		t.Errorf("%v in %s", err, &out)
	}
}
