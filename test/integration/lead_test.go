package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/cluster"
	"github.com/sluice-qos/sluice/test/scene"
)

const (
	takeoverWithin = 3 * time.Second // what DESIGN.md and README.md promise
	leadFor        = 2 * time.Second // after which a standby leads though nobody resigned
)

// The API, the page and overrides are the same at a standby as at the polygen that leads. When that one is killed, the standby
// leads within three seconds, with the overrides; when it ends in order, at once.
func TestStandbyLeads(t *testing.T) {
	t.Parallel()
	s := scene.Start(t, cluster.Options{Polygens: 2, Limits: "version: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: 5}}}\n"})
	// listed are the overrides as a polygen answers, and which polygen that is.
	listed := func(p *cluster.Polygen) (list api.Overrides, err error) {
		text, err := cluster.Get(p.Admin, "/api/v1/overrides")
		if err == nil {
			err = json.Unmarshal([]byte(text), &list)
		}
		return list, err
	}
	var leader, standby *cluster.Polygen
	testkit.Eventually(t, "one leads, and answers for both", func() error {
		for i, p := range s.Polygens {
			if list, err := listed(p); err != nil || !list.Leading {
				return fmt.Errorf("%s answers %+v, %w", p.Name, list.From, err)
			} else if list.Polygen == p.Name {
				leader, standby = p, s.Polygens[1-i]
			}
		}
		return nil
	})
	scene.Told(t, standby, "PUT", "/api/v1/overrides/alice", `{"for":"10m","reason":"a test","limits":{"requests":{"GET":50}}}`)
	if list, err := listed(standby); err != nil || list.Polygen != leader.Name || len(list.Overrides) != 1 {
		t.Fatalf("the standby answers %+v, %v, want that %s has the override", list, err, leader.Name)
	}
	res, err := http.Get("http://" + standby.Admin + "/")
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if kind := res.Header.Get("Content-Type"); res.StatusCode != http.StatusOK || !strings.HasPrefix(kind, "text/html") {
		t.Errorf("the page of the standby is %s, %s", res.Status, kind)
	}
	for path, want := range map[string]string{"/metrics": "sluice_polygen_leading 0", "/-/ready": "ready"} {
		if text, err := cluster.Get(standby.Admin, path); err != nil || !strings.Contains(text, want) {
			t.Errorf("%s of the standby has no %q, %v", path, want, err)
		}
	}
	// takesOver waits until the standby leads, with the override.
	takesOver := func(ended time.Time, within time.Duration) {
		t.Helper()
		testkit.Eventually(t, "the standby leads", func() error {
			list, err := listed(standby)
			if err != nil || !list.Leading || list.Polygen != standby.Name || len(list.Overrides) != 1 {
				return fmt.Errorf("it answers %+v, %w", list, err)
			}
			return nil
		})
		took := time.Since(ended)
		t.Logf("the standby led after %v", took)
		if took > within {
			t.Errorf("the standby led after %v, want %v at most", took, within)
		}
	}
	killed := time.Now()
	leader.Kill()
	takesOver(killed, takeoverWithin)
	s.Polygens = append(s.Polygens, s.StartPolygen(t, 2))
	leader, standby = standby, s.Polygens[2]
	testkit.Eventually(t, "the new one has a standby", func() error {
		list, err := listed(standby)
		if err != nil || list.Polygen != leader.Name {
			return fmt.Errorf("it answers %+v, %w", list.From, err)
		}
		return nil
	})
	stopped := time.Now()
	leader.Stop()
	takesOver(stopped, leadFor)
	scene.Told(t, standby, "DELETE", "/api/v1/overrides/alice", "")
}
