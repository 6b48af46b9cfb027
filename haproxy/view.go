package haproxy

import (
	"cmp"
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"text/template"

	"github.com/sluice-qos/sluice/pkg/limits"
)

//go:embed haproxy.cfg.tmpl
var haproxySource string

//go:embed identify.cfg.tmpl
var identifySource string

//go:embed classify.cfg.tmpl
var classifySource string

//go:embed spoe.cfg.tmpl
var spoeSource string

var (
	haproxyTemplate = parse(haproxySource + identifySource + classifySource)
	spoeTemplate    = parse(spoeSource)
)

func parse(source string) *template.Template {
	return template.Must(template.New("whole").Funcs(stickyCounters(0)).Funcs(classFuncs).Parse(source))
}

// stickyCounters has the function of the templates for the number of a sticky counter, of which the first is ours.
func stickyCounters(first int) template.FuncMap {
	return template.FuncMap{"sc": func(n int) int { return first + n }}
}

// view is what the templates render.
type view struct {
	// Into is whether the rules are for a configuration of somebody's own, which has its own access log, servers and defaults.
	Into    bool
	Folder  string // of the files that the rules read, if the environment does not name one
	Process        // of that configuration

	Fitted   bool // only what the limit file and the chain need
	Chain    []chainLink
	Classify string
	Credit   creditRules
	Limits   limits.AddressLimits
	Costs    costView

	Hold        bool   // some user's bandwidth is limited
	LendsShares bool   // credit has shares of bandwidth
	Pad         string // fills the keys of sluice_seconds, with a byte that no name has

	AddressesLimited bool  // the limits of addresses use sticky counter 2
	AddressTickets   bool  // addresses draw tickets: tables are asked first
	CreditFirst      bool  // credit is looked at before the request has a class: neither addresses nor operations have tickets
	AddressExpire    int64 // seconds of an entry of sluice_address
	Answers          []addressAnswer

	NameInline         bool   // the rules of users with credit read the name in its header
	Header, HeaderCase string // of NameInline
	Converter          string // see Reading
	ReadsCredentials   bool   // credentials may be unreadable, and names may need a digest

	ExemptAddresses, ExemptPaths, ExemptBelow, ExemptHere bool
}

// newView returns the view of c, or which field of it is wrong.
func (c Config) newView() (view, error) {
	v := view{
		Folder: ".", Fitted: c.Fitted, Limits: c.Addresses, Hold: !c.Fitted || c.Bandwidth,
		LendsShares: c.Addresses == (limits.AddressLimits{}) && (!c.Fitted || c.Bandwidth), // a sticky counter is free for them
		Pad:         strings.Repeat(`\x7f`, 100), ExemptAddresses: !c.Fitted || len(c.Exempt.Addresses) > 0,
	}
	chain, err := ParseIdentify(cmp.Or(c.Identify, TryOut))
	if err != nil {
		return v, err
	}
	if v.Classify, err = Classify(c.Classes); err != nil {
		return v, err
	}
	v.Classify = strings.TrimSuffix(v.Classify, "\n") // the template has the line's end
	if c.CreditClasses == nil {
		c.CreditClasses = creditClasses()
	}
	if v.Credit, err = newCreditRules(c.CreditClasses, c.Classes, v.LendsShares); err != nil {
		return v, err
	}
	if v.Costs, err = newCostView(c.Costs); err != nil {
		return v, err
	}
	v.addressLimits()
	v.ReadsCredentials = !c.Fitted || slices.ContainsFunc(chain, Identifier.readsCredentials)
	for _, i := range chain {
		v.Chain = append(v.Chain, chainLink{
			Kind: i.Kind, Param: cmp.Or(i.Param, kinds[i.Kind].paramDefault), Case: cmp.Or(i.Case, kinds[i.Kind].caseDefault),
			Presigned: !c.Fitted || slices.ContainsFunc(chain, func(i Identifier) bool { return i.Kind == "s3" }), Alone: c.Fitted && len(chain) == 1 && !i.readsCredentials(),
		})
	}
	v.CreditFirst = !v.AddressTickets && len(v.Credit.Fast) > 0
	if c.Fitted && v.CreditFirst && len(chain) == 1 && chain[0].Kind == "header" && !v.Hold {
		v.NameInline, v.Header, v.HeaderCase = true, v.Chain[0].Param, v.Chain[0].Case
	}
	folder := func(path string) bool { return strings.HasSuffix(path, "*") }
	v.ExemptBelow = !c.Fitted || slices.ContainsFunc(c.Exempt.Paths, folder)
	v.ExemptPaths = !c.Fitted || slices.ContainsFunc(c.Exempt.Paths, func(path string) bool { return !folder(path) })
	v.ExemptHere = v.ExemptAddresses || v.ExemptPaths
	return v, nil
}

// addressAnswer is a backend that refuses for one reason, so that HAProxy's own metrics count these
// refusals apart. A limit of requests in progress has no window.
type addressAnswer struct {
	Backend, Reason string
	Limit           int
	Window          int64
}

// addressLimits fills in what the limits of each address need. Without limits there is not even a table: each
// tracked entry costs every request.
func (v *view) addressLimits() {
	a := v.Limits
	v.AddressesLimited, v.AddressTickets = a != (limits.AddressLimits{}), a.Requests+a.Concurrent > 0
	v.AddressExpire = 10
	window := int64(0)
	if a.FailedAuth > 0 {
		// A rate of HAProxy's own: it needs no rules that begin and end a window, and looks back at the period before this one.
		window = a.FailedAuthWindow.Seconds()
		v.AddressExpire = max(v.AddressExpire, 2*window)
	}
	v.Answers = slices.DeleteFunc([]addressAnswer{
		{"sluice_refused_failed_auth", "failed-authentication", a.FailedAuth, window},
		{"sluice_refused_address_concurrent", "address-concurrent-requests", a.Concurrent, 0},
		{"sluice_refused_address_requests", "address-request-rate", a.Requests, 1},
	}, func(a addressAnswer) bool { return a.Limit == 0 })
}

// HeldLater is whether requests that credit admits are allowed by later rules, which hold their bodies: those with a body, in a frontend of
// somebody's own.
func (v view) HeldLater() bool { return v.Into && v.LendsShares }

// Reading is v for a rule that reads the name in its header, which goes through a converter.
func (v view) Reading(converter string) view {
	v.Converter = converter
	return v
}

// render executes a block of a template with sticky counters from first on.
func render(t *template.Template, block string, of any, first int) (string, error) {
	t, err := t.Clone()
	if err != nil {
		return "", fmt.Errorf("template: %w", err)
	}
	var b strings.Builder
	if err := t.Funcs(stickyCounters(first)).ExecuteTemplate(&b, block, of); err != nil {
		return "", fmt.Errorf("template: %w", err)
	}
	return b.String(), nil
}
