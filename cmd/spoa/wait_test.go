package main

import (
	"os"
	"reflect"
	"regexp"
	"testing"
	"time"
)

// HAProxy as shipped waits longer for a verdict than the agent takes for one at most, with
// a third of it left for the way: a request that the agent refuses must not pass because
// the answer came late.
func TestVerdictComesBeforeHAProxyGivesUp(t *testing.T) {
	file, err := os.ReadFile("../../haproxy/spoe.cfg")
	if err != nil {
		t.Fatal(err)
	}
	shipped := regexp.MustCompile(`timeout processing "\$\{SLUICE_VERDICT_TIMEOUT-(\w+)\}"`).FindSubmatch(file)
	if shipped == nil {
		t.Fatal("spoe.cfg has no timeout for a verdict")
	}
	timeout, err := time.ParseDuration(string(shipped[1]))
	if err != nil {
		t.Fatal(err)
	}
	field, _ := reflect.TypeFor[options]().FieldByName("MaxWait")
	wait, err := time.ParseDuration(field.Tag.Get("default"))
	if err != nil {
		t.Fatal(err)
	}
	if wait <= 0 || 3*wait > 2*timeout {
		t.Errorf("the agent takes up to %v for a verdict, HAProxy waits %v for it; want two thirds of that at most", wait, timeout)
	}
}
