package haproxy

import (
	_ "embed"
	"regexp"
	"slices"
	"strings"
	"text/template"

	"github.com/sluice-qos/sluice/pkg/limits"
)

//go:embed haproxy.cfg.tmpl
var source string

// actionLine is a line with actions alone: its end is no part of the output.
var actionLine = regexp.MustCompile(`(?m)^(\{\{.*\}\})\n`)

var tmpl = template.Must(template.New("haproxy.cfg").Parse(actionLine.ReplaceAllString(source, "$1")))

// view is what haproxy.cfg.tmpl renders.
type view struct {
	Identify, Classify string
	Credit             creditRules
	Address            addressRules
	Limits             limits.AddressLimits
	Costs              costRules

	Hold               bool // some user's bandwidth is limited
	LendsShares        bool // credit has shares of bandwidth
	ShareDown, ShareUp int  // elements of the shares in an entry of sluice_credit
	AddressesLimited   bool // the limits of addresses use sticky counter 2
	AddressTickets     bool // addresses draw tickets: tables are asked first, and no short way
	UnheardCounter     int  // sticky counter for users about whom no agent answered
	SmallBuffers       int  // bytes of a buffer before HAProxy 2.7

	ShortFirst         bool   // health checks come after the short way
	NameInline         bool   // the short way reads the user's name in its header
	Header, HeaderCase string // of NameInline
	ReadsCredentials   bool   // credentials may be unreadable, and names may need a digest

	ExemptAddresses, ExemptPaths, ExemptBelow, ExemptHere bool
}

// newView returns the view of c. The rules of the credit, of addresses and of costs are set by the caller.
func (c Config) newView(chain []Identifier) view {
	v := view{
		Limits: c.Addresses, Hold: !c.Fitted || c.Bandwidth, LendsShares: c.lendsShares(), AddressesLimited: c.Addresses != (limits.AddressLimits{}),
		AddressTickets: c.Addresses.Requests+c.Addresses.Concurrent > 0, UnheardCounter: 2, SmallBuffers: 65536,
		ReadsCredentials: !c.Fitted || slices.ContainsFunc(chain, Identifier.readsCredentials),
		ExemptAddresses:  !c.Fitted || len(c.Exempt.Addresses) > 0,
	}
	v.ShareDown, v.ShareUp = shareElements(len(c.creditClasses()))
	v.ShortFirst = c.Fitted && !v.AddressesLimited
	if v.ShortFirst && len(chain) == 1 && chain[0].Kind == "header" && !v.Hold {
		header := kinds["header"]
		v.NameInline, v.Header, v.HeaderCase = true, header.paramDefault, header.caseDefault
		if chain[0].Param != "" {
			v.Header = chain[0].Param
		}
		if chain[0].Case != "" {
			v.HeaderCase = chain[0].Case
		}
	}
	// Sticky counter 2 belongs to the addresses: users about whom no agent answered have counter 0.
	if v.AddressesLimited {
		v.UnheardCounter = 0
	}
	// HAProxy's own buffers are enough where no body is held.
	if !v.Hold {
		v.SmallBuffers = 16384
	}
	folder := func(path string) bool { return strings.HasSuffix(path, "*") }
	v.ExemptBelow = !c.Fitted || slices.ContainsFunc(c.Exempt.Paths, folder)
	v.ExemptPaths = !c.Fitted || slices.ContainsFunc(c.Exempt.Paths, func(path string) bool { return !folder(path) })
	v.ExemptHere = v.ExemptAddresses || v.ExemptPaths
	return v
}

func (v view) render() (string, error) {
	var b strings.Builder
	err := tmpl.Execute(&b, v)
	return b.String(), err
}
