package limitfile

import (
	"reflect"
	"slices"

	"gopkg.in/yaml.v3"
)

// document is a limit file. Its tags name the fields and say what a value must be: forms and each
// (of a mapping's values) for errors, of for how errors name the mapping's values, without for the
// fields that an entry does not have there.
type document struct {
	at            `forms:"a mapping such as {version: 1, default_tier: free, tiers: {free: {concurrent: 10}}}"`
	Version       raw            `yaml:"version"`
	DefaultTier   scalar         `yaml:"default_tier" kind:"tierName"`
	Tiers         table[entry]   `yaml:"tiers" of:"tier" forms:"a mapping such as {free: {concurrent: 10}}" each:"a mapping such as {concurrent: 10}, or {} for no limits" without:"tier group until then"`
	Users         raw            `yaml:"users"`
	Groups        table[entry]   `yaml:"groups" of:"group" forms:"a mapping such as {acme: {concurrent: 200}}" each:"a mapping such as {concurrent: 200}" without:"tier group until then"`
	Mode          scalar         `yaml:"mode" kind:"mode"`
	Windows       calendar       `yaml:"windows"`
	AnonymousTier scalar         `yaml:"anonymous_tier" kind:"tierName"`
	Unreadable    scalar         `yaml:"unreadable" kind:"tierName"`
	Classes       classes        `yaml:"classes"`
	Exempt        exempt         `yaml:"exempt"`
	Costs         table[unit]    `yaml:"costs" most:"4" what:"units" forms:"a mapping such as {tokens: {estimate: {default: 1000}, actual: {header: X-Cost}}}"`
	Queues        table[workers] `yaml:"queues" most:"256" what:"services" forms:"a mapping such as {analysis: {priority: 3, default: 2, scheduled: 1}}"`
	Workers       dedicated      `yaml:"workers"`
	FailedAuth    failedAuth     `yaml:"failed_auth"`
	PerAddress    perAddress     `yaml:"per_address"`
}

// entry is what the file says of a tier, a user or a group, or what an override says.
type entry struct {
	at
	Tier       scalar           `yaml:"tier" kind:"tierName"`
	Group      scalar           `yaml:"group" kind:"groupName"`
	Requests   requests         `yaml:"requests" lifts:"yes" forms:"a mapping such as {GET: 100, \"*\": 200}"`
	Costs      table[costLimit] `yaml:"costs" lifts:"yes" forms:"a mapping such as {tokens: {minute: 20k, day: 500k}}"`
	Concurrent concurrent       `yaml:"concurrent"`
	Bandwidth  bandwidth        `yaml:"bandwidth"`
	OverLimit  overLimit        `yaml:"over_limit"`
	Priority   scalar           `yaml:"priority" kind:"priority"`
	Mode       scalar           `yaml:"mode" kind:"mode"`
	Jobs       jobs             `yaml:"jobs"`
	Comment    scalar           `yaml:"comment" kind:"comment"`
	Until      scalar           `yaml:"until" kind:"until"`
	Then       scalar           `yaml:"then" kind:"tierName"`
}

// userEntry is an entry that may be the name of a tier alone.
type userEntry struct{ entry }

const (
	userTag     reflect.StructTag = `forms:"the name of a tier, or a mapping such as {tier: free, concurrent: 10}" bare:"Tier"`
	overrideTag reflect.StructTag = `forms:"the name of a tier, or a mapping such as {\"tier\": \"pro\", \"concurrent\": 10}" without:"group comment until then" bare:"Tier"`
)

// requests are limits by class. A number alone is the limit of all requests in each second.
type requests struct{ table[rate] }

func (r *requests) decode(d *decoder, n *yaml.Node, where place, tag reflect.StructTag) {
	if n.Kind != yaml.ScalarNode || n.Value == unlimited || isNull(n) {
		r.table.decode(d, n, where, tag)
		return
	}
	r.entries = []named[rate]{{at: d.at(n), name: all}}
	d.decode(n, &r.entries[0].value, where, tag)
}

// window has a limit for each window, and their mode.
type window struct {
	Second scalar `yaml:"second" kind:"amount"`
	Minute scalar `yaml:"minute" kind:"amount"`
	Hour   scalar `yaml:"hour" kind:"amount"`
	Day    scalar `yaml:"day" kind:"amount"`
	Month  scalar `yaml:"month" kind:"amount"`
	Mode   scalar `yaml:"mode" kind:"mode"`
}

// limits are those of each window, as limits.Windows lists them.
func (w window) limits() []scalar { return []scalar{w.Second, w.Minute, w.Hour, w.Day, w.Month} }

func (w window) limited() bool {
	for _, limit := range w.limits() {
		if limit.said() {
			return true
		}
	}
	return false
}

type rate struct {
	at `forms:"a whole number, a mapping such as {second: 10, minute: 100}, or unlimited" bare:"Second"`
	window
	Burst scalar `yaml:"burst" kind:"burst"`
}

type costLimit struct {
	at `forms:"a mapping such as {minute: 20k, day: 500k}, or unlimited" bare:"Unlimited"`
	window
	Unlimited scalar `kind:"lift"`
}

type concurrent struct {
	at     `forms:"a whole number, a mapping such as {limit: 10, mode: dry-run}, or unlimited" bare:"Limit"`
	Limit  scalar `yaml:"limit" kind:"inProgress"`
	Mode   scalar `yaml:"mode" kind:"mode"`
	Except texts  `yaml:"except" items:"class" example:"[STREAM]"`
}

type bandwidth struct {
	at           `forms:"a mapping such as {down: 10MiB, up: 5MiB}" bare:"Unlimited"`
	Unlimited    scalar `kind:"lift"`
	Down         scalar `yaml:"down" kind:"size"`
	Up           scalar `yaml:"up" kind:"size"`
	DefaultShare scalar `yaml:"default_share" kind:"size"`
}

type overLimit struct {
	at         `forms:"a mapping such as {concurrent: wait 2s}"`
	Concurrent scalar `yaml:"concurrent" kind:"wait"`
}

type jobs struct {
	at     `forms:"a whole number, a mapping such as {total: 3, queues: {analysis: 1}}, or unlimited" bare:"Total"`
	Total  scalar        `yaml:"total" kind:"jobCount"`
	Queues table[scalar] `yaml:"queues" kind:"jobCount" lifts:"yes" forms:"a mapping such as {analysis: 1}"`
	Class  scalar        `yaml:"class" kind:"jobsClass"`
}

type calendar struct {
	at          `forms:"a mapping such as {time_zone: Europe/Berlin, day_starts: \"06:00\", month_starts: 15}"`
	TimeZone    scalar `yaml:"time_zone" kind:"timeZone"`
	DayStarts   scalar `yaml:"day_starts" kind:"timeOfDay"`
	MonthStarts scalar `yaml:"month_starts" kind:"dayOfMonth"`
}

// classes are the name of ready-made ones, or a mapping, in which s3 stands for ready-made ones.
type classes struct {
	at
	preset bool
	table  table[class]
}

const classesExample = `{LIST: {methods: [GET], query: [list-type]}}`

func (c *classes) decode(d *decoder, n *yaml.Node, where place, _ reflect.StructTag) {
	if n.Kind == yaml.ScalarNode && n.Value == s3Preset && d.isPlain(n) {
		c.preset = true
		return
	}
	d.decode(n, &c.table, where, `forms:"s3, or a mapping such as `+reflect.StructTag(classesExample)+`" of:"class"`)
	if c.table.isMapping && len(n.Content) == 0 {
		d.errorf(n, "%s is empty; leave it out, or write s3 or a mapping such as %s", where, classesExample)
	}
}

// class is one match, or a list of them.
type class struct {
	at
	any []match
}

func (c *class) decode(d *decoder, n *yaml.Node, where place, tag reflect.StructTag) {
	items := []*yaml.Node{n}
	switch {
	case !d.is(n, where, yaml.MappingNode|yaml.SequenceNode, "a mapping such as {methods: [GET], query: [list-type]}, or a list of such"):
		return
	case n.Kind == yaml.SequenceNode:
		items = n.Content
	}
	if len(items) == 0 || len(items) > maxMatches {
		d.errorf(n, "%s must have 1 to %d matches, got %d", where, maxMatches, len(items))
		return
	}
	c.any = make([]match, len(items))
	for i, item := range items {
		d.decode(item, &c.any[i], where, tag)
	}
}

type match struct {
	at         `forms:"a mapping such as {methods: [GET], path_prefix: /reports/}"`
	Methods    texts         `yaml:"methods" items:"method" most:"64" example:"[GET, HEAD]"`
	Hosts      texts         `yaml:"hosts" items:"host" most:"64" example:"[api.example.com, \"*.api.example.com\"]"`
	Frontends  texts         `yaml:"frontends" items:"frontend" most:"64" example:"[admin]"`
	PathPrefix scalar        `yaml:"path_prefix" kind:"pathPrefix"`
	PathRegex  scalar        `yaml:"path_regex" kind:"pathRegex"`
	Query      texts         `yaml:"query" items:"query" most:"64" example:"[list-type]"`
	NoQuery    texts         `yaml:"no_query" items:"query" most:"64" example:"[acl, policy]"`
	Headers    table[scalar] `yaml:"headers" most:"64" what:"headers" kind:"headerValue" forms:"a mapping such as {X-Kind: report, X-Trace: \"\"}"`
}

type exempt struct {
	at        `forms:"a mapping such as {users: [probe], addresses: [10.0.0.0/8], paths: [/healthz]}"`
	Users     texts `yaml:"users" most:"10000" example:"[probe, \"mon-*\"]"`
	Addresses texts `yaml:"addresses" items:"address" most:"10000" example:"[10.0.0.0/8, 192.0.2.7]"`
	Paths     texts `yaml:"paths" items:"path" most:"1000" example:"[/healthz, \"/static/*\"]"`
}

type failedAuth struct {
	at         `forms:"a mapping such as {per_address: 30/min}"`
	PerAddress scalar `yaml:"per_address" kind:"failureRate"`
}

type perAddress struct {
	at         `forms:"a mapping such as {requests: 100, concurrent: 20}"`
	Requests   scalar `yaml:"requests" kind:"perSecond"`
	Concurrent scalar `yaml:"concurrent" kind:"inProgress"`
}

// unit is something that requests cost.
type unit struct {
	at       `forms:"a mapping such as {estimate: {default: 1000}, actual: {header: X-Cost}}"`
	Actual   actual   `yaml:"actual"`
	Estimate estimate `yaml:"estimate"`
	Classes  texts    `yaml:"classes" items:"class" example:"[CHAT, POST]"`
	Failed   failed   `yaml:"failed"`
}

type actual struct {
	at     `forms:"a mapping such as {json: usage.total_tokens}, or {header: X-Cost}"`
	JSON   actualPaths `yaml:"json"`
	Header scalar      `yaml:"header" kind:"headerName"`
}

type estimate struct {
	at         `forms:"a mapping such as {json: max_tokens, default: 1000}"`
	JSON       paths         `yaml:"json"`
	Header     scalar        `yaml:"header" kind:"headerName"`
	Default    scalar        `yaml:"default" kind:"estimated"`
	Unreadable scalar        `yaml:"unreadable" kind:"estimated"`
	Classes    table[scalar] `yaml:"classes" kind:"estimated" forms:"a mapping such as {CHAT: 4000, GET: 0}"`
}

// paths are one path, or a list of them.
type paths struct {
	at
	items []pathOf
}

// pathOf is a path, and by what its number is multiplied.
type pathOf struct {
	at    `forms:"a path, or a mapping such as {path: usage.output_tokens, times: 4}" bare:"Path"`
	Path  scalar `yaml:"path" kind:"jsonPath"`
	Times scalar `yaml:"times" kind:"times"`
}

// decode reads paths, and with times in the tag mappings that have it.
func (p *paths) decode(d *decoder, n *yaml.Node, where place, tag reflect.StructTag) {
	items := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode && d.isPlain(n) {
		items = n.Content
	}
	if len(items) == 0 || len(items) > maxPathsOfCost {
		d.errorf(n, "%s must have 1 to %d paths, got %d", where, maxPathsOfCost, len(items))
		return
	}
	p.items = make([]pathOf, len(items))
	for i, item := range items {
		if item.Kind == yaml.MappingNode && tag.Get("times") == "" {
			d.errorf(item, "%s must be %s, got a mapping", where, jsonPathForms)
			continue
		}
		d.decode(item, &p.items[i], where, "")
	}
}

// actualPaths are paths of which the first that is found counts, or a sum of them.
type actualPaths struct {
	paths
	Sum paths `yaml:"sum" times:"yes"`
}

func (a *actualPaths) decode(d *decoder, n *yaml.Node, where place, tag reflect.StructTag) {
	if n.Kind != yaml.MappingNode {
		a.paths.decode(d, n, where, tag)
		return
	}
	d.structure(n, a, where, `forms:"a path, a list of them, or a mapping such as {sum: [usage.input_tokens, usage.output_tokens]}"`)
	a.at = d.at(n) // it is there, if wrong
}

// failed is what requests cost that the origin answers with 400 or more: for all, or by status.
type failed struct {
	at    `forms:"free, estimate, or a mapping such as {4xx: estimate, 5xx: free}" bare:"All"`
	All   scalar `kind:"failedCost"`
	Of4xx scalar `yaml:"4xx" kind:"failedCost"`
	Of5xx scalar `yaml:"5xx" kind:"failedCost"`
}

// workers are those of a service's queues.
type workers struct {
	at        `forms:"{priority: 3, default: 2, scheduled: 1}, or [3, 2, 1] in this order"`
	Priority  scalar `yaml:"priority" kind:"workerCount"`
	Default   scalar `yaml:"default" kind:"workerCount"`
	Scheduled scalar `yaml:"scheduled" kind:"workerCount"`
}

const workersForms = "{priority: 3, default: 2, scheduled: 1}, or [3, 2, 1] in this order"

func (w *workers) numbers() []*scalar {
	return []*scalar{&w.Priority, &w.Default, &w.Scheduled}
}

// decode also reads a list of the numbers, and {3, 2, 1}, which YAML takes for {3: null, 2: null,
// 1: null}: it has no number twice.
func (w *workers) decode(d *decoder, n *yaml.Node, where place, tag reflect.StructTag) {
	list := bareNumbers(n)
	if n.Kind == yaml.SequenceNode {
		list = n.Content
	}
	if list == nil || !d.isPlain(n) {
		d.structure(n, w, where, tag)
		return
	}
	var written []string
	for _, item := range list {
		written = append(written, item.Value)
	}
	if slices.Sort(written); len(list) != len(w.numbers()) || n.Kind == yaml.MappingNode && len(slices.Compact(written)) < len(list) {
		d.errorf(n, "%s must be %s, got %d numbers", where, workersForms, len(list))
		w.wrong = true
		return
	}
	for i, item := range list {
		d.decode(item, w.numbers()[i], where.below(classesOfQueues[i]), `kind:"workerCount"`)
	}
}

// bareNumbers are the names in a mapping that has nothing but numbers for names.
func bareNumbers(n *yaml.Node) (bare []*yaml.Node) {
	for key, value := range children(n) {
		if key.ShortTag() != "!!int" || !isNull(value) {
			return nil
		}
		bare = append(bare, key)
	}
	return bare
}

// dedicated are workers for a tier or a user alone.
type dedicated struct {
	at
	tiers, users table[dedicatedTo]
}

type dedicatedTo struct {
	at        `forms:"a mapping such as {priority: 10}"`
	Priority  scalar `yaml:"priority" kind:"dedicatedCount"`
	Default   scalar `yaml:"default" kind:"dedicatedCount"`
	Scheduled scalar `yaml:"scheduled" kind:"dedicatedCount"`
}

func (w *dedicated) decode(d *decoder, n *yaml.Node, where place, _ reflect.StructTag) {
	if !d.is(n, where, yaml.MappingNode, "a mapping such as {enterprise: {priority: 10}}") {
		return
	}
	for key, value := range d.pairs(n, where) {
		if key.Value == workersForUsers {
			d.decode(value, &w.users, where.below(key.Value), `forms:"a mapping such as {alice: {default: 2}}"`)
			continue
		}
		w.tiers.entries = append(w.tiers.entries, named[dedicatedTo]{at: d.at(key), name: key.Value})
		d.decode(value, &w.tiers.entries[len(w.tiers.entries)-1].value, where.below(key.Value), "")
	}
}

// raw is what is decoded later.
type raw struct {
	at
	node *yaml.Node
}

func (r *raw) decode(_ *decoder, n *yaml.Node, _ place, _ reflect.StructTag) { r.node = n }
