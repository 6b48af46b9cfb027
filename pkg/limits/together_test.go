package limits

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

const togetherFile = `version: 1
default_tier: free
anonymous_tier: nobody
unreadable: nobody
endpoints: [api, uploads]
exempt: {users: [admin]}
tiers:
  free:
    requests: {GET: 10}
    concurrent: 3
    endpoints:
      "*": {requests: {GET: 100, "*": {second: 200, burst: 50, hour: 10000}}}
      uploads: {requests: {GET: 1}}
  nobody: {requests: {GET: 5}}
  careful: {mode: dry-run, endpoints: {"*": {requests: {GET: 7}}}}
users:
  bob: nobody
  carol: {requests: {GET: 1000}, concurrent: 9, endpoints: {"*": {requests: {PUT: 4}}}}
  dave: {endpoints: {"*": {requests: unlimited}}}
  erin: {tier: nobody, endpoints: {"*": {requests: {GET: 6}}}}
  frank: {mode: dry-run}
  grace: {tier: careful, mode: enforce}
  heidi: careful
  ivan: {endpoints: {"*": {mode: off}}}
  judy: {tier: nobody, endpoints: {"*": {requests: {GET: 6}}}, until: 2026-12-01, then: free}
  "team-*": {endpoints: {"*": {requests: {"*": unlimited}}}}
`

func TestTogether(t *testing.T) {
	set := mustParse(t, togetherFile)
	const free = "* 200+50, */hour 10000, GET 100"
	tests := []struct{ key, together, want string }{
		{"alice", "@*/alice", free},
		{"@uploads/alice", "@*/alice", free},
		{"@unheard-of/alice", "@*/alice", free},
		{"@*/alice", "@*/alice", free},
		{OthersKey, "@*/" + OthersKey, free},
		{Key("~alice"), "@*/" + Key("~alice"), free},
		{"@api/carol", "@*/carol", free + ", PUT 4"},
		{"frank", "@*/frank", "* 200+50 dry-run, */hour 10000 dry-run, GET 100 dry-run"},
		{"grace", "@*/grace", "GET 7"},
		{"heidi", "@*/heidi", "GET 7 dry-run"},
		{"erin", "@*/erin", "GET 6"},
		{"judy", "@*/judy", "GET 6"},
		{"team-1", "@*/team-1", "GET 100"},
		{OthersKey + ":team-*", "@*/" + OthersKey + ":team-*", "GET 100"},
		{"bob", "", ""},
		{"dave", "", ""},
		{"ivan", "", ""},
		{"192.0.2.1", "", ""},
		{"~", "", ""},
		{UnreadableKey, "", ""},
		{"admin", "", ""},
		{"@api/admin", "", ""},
		{ExemptKey, "", ""},
	}
	for _, tt := range tests {
		t.Run(strings.ReplaceAll(tt.key, "/", "|"), func(t *testing.T) {
			together, of, ok := set.Together(tt.key)
			if ok != (tt.want != "") || together != tt.together || ok && ratesText(of) != tt.want {
				t.Fatalf("Together(%q) = %q, %q, %v, want %q, %q", tt.key, together, ratesText(of), ok, tt.together, tt.want)
			}
			_, user := SplitEndpoint(tt.key)
			if got := set.User(EndpointKey(All, user)); ok && got != of || !ok && !got.Unlimited() || got.Tier != set.User(user).Tier {
				t.Errorf("User(%q) = %+v, want %+v", EndpointKey(All, user), got, of)
			}
		})
	}
	if _, of, _ := set.At(time.Date(2026, 12, 2, 0, 0, 0, 0, time.UTC)).Together("judy"); ratesText(of) != free {
		t.Errorf("Together of a user whose entry ended = %q, want %q", ratesText(of), free)
	}
	if endpoint, counted, ok := set.Undeclared("@*/alice"); ok {
		t.Errorf("Undeclared(@*/alice) = %q, %q, true, want false", endpoint, counted)
	}
	if got := set.Endpoints(); !slices.Equal(got, []string{"api", "uploads"}) {
		t.Errorf("Endpoints() = %q, want those that the file declares", got)
	}
}

// ratesText is one word a limit, then what is special about it.
func ratesText(l *Limits) string {
	var all []string
	for _, r := range l.All() {
		text := fmt.Sprintf("%s %d", r.Name(), r.Max)
		if r.Burst > 0 {
			text += fmt.Sprintf("+%d", r.Burst)
		}
		if r.Mode != Enforce {
			text += " " + r.Mode.String()
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}
