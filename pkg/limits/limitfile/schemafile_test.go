package limitfile

import (
	"encoding/json"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// What this file describes is written to config/limits.schema.json, which sluice schema
// prints. It is a test's, so that no program links the library, and next to the parser, whose
// names and bounds it takes.
//
//go:generate go test -run ^TestSchemaIsCurrent$ -update .

// writeSchema returns the JSON Schema (draft 2020-12) of the limit file, for editors
// and for checks that know JSON Schema only. It accepts every file that Parse
// accepts. It refuses less: what it cannot see is whether a tier, a unit of
// cost or an operation class exists, how a number is written (0x10), aliases, tags and names
// that are there twice, a default_share or a size with a unit or a number with a suffix that is too large, a time zone that does not exist, an estimate that no limit has room for, which headers are about one connection, a
// regular expression, an address or a day that is none, and what other files say.
func writeSchema(t *testing.T) []byte {
	t.Helper()
	data, err := json.MarshalIndent(schemaFile(), "", "  ")
	testkit.Must(t, err)
	return append(data, '\n')
}

// schema is short for the library's type. One may be in one place only, so that all that is
// used twice is a function.
type schema = jsonschema.Schema

// The patterns of what is text in a limit file. They mean the same in Go and in
// ECMAScript, which JSON Schema uses.
const (
	unlimitedPattern = `^unlimited$`
	sizePattern      = `^[1-9][0-9]*(kB|MB|GB|KiB|MiB|GiB|TiB)?$`
	failuresPattern  = `^(unlimited|(1000000000|[1-9][0-9]{0,8})/(s|min|hour))$` // up to MaxPerSecond
	workersPattern   = `^(0|[1-9][0-9]{0,3}|10000)$`
	tierNamePattern  = `^[^~\x00-\x1f\x7f][^\x00-\x1f\x7f]{0,99}$`

	// From 1ms to 30000ms, or from 0.001s to 30s.
	waitPattern = `^(refuse|wait (([1-9][0-9]{0,3}|[12][0-9]{4}|30000)ms` +
		`|(([1-9]|[12][0-9])(\.[0-9]{1,3})?|30(\.0{1,3})?|0\.([1-9][0-9]{0,2}|0[1-9][0-9]?|00[1-9]))s))$`
)

// schemaFile describes the whole file. Its field names are those that limitfile.go
// lists.
func schemaFile() *schema {
	return &schema{
		Schema:      "https://json-schema.org/draft/2020-12/schema",
		ID:          "https://github.com/sluice-qos/sluice/config/limits.schema.json",
		Title:       "Limit file of Sluice",
		Description: "What each user of an HTTP service may do, summed over the whole cluster. What is not named is not limited.",
		Type:        "object",
		Required:    []string{"version", "default_tier", "tiers"},
		Properties: map[string]*schema{
			"version":        {Title: "Version of this format", Description: "The only one is 1.", Const: jsonschema.Ptr[any](1)},
			"mode":           mode("Mode of the whole file", "Nothing below can make it stronger: with dry-run, nothing in this file is enforced."),
			"default_tier":   tierRef("Default tier", "The tier of users whom the file does not name."),
			"anonymous_tier": tierRef("Anonymous tier", "The tier of requests without a user's name, and of users who are known by their IP address. Without it they have the default tier."),
			"unreadable":     tierRef("Unreadable tier", "The tier that all requests share whose credentials cannot be read, or who have more than one. Without it they have the default tier."),
			"classes":        schemaClasses(),
			"costs":          schemaCostUnits(),
			"windows": {
				Title: "Days and months", Description: "When the days and months of limits begin.",
				Type: "object", AdditionalProperties: nothing(),
				Properties: map[string]*schema{
					"time_zone":    {Title: "Time zone", Description: "A name of the IANA time zone database; UTC if nothing is said. A day in which clocks are set has 23 or 25 hours.", Type: "string", MinLength: jsonschema.Ptr(1), Examples: []any{"Europe/Berlin"}},
					"day_starts":   {Title: "Beginning of the day", Description: `A time of day in this time zone; "00:00" if nothing is said.`, Type: "string", Pattern: dayStartForm.String(), Examples: []any{"06:00"}},
					"month_starts": {Title: "Beginning of the month", Description: "The day of the month on which months begin, at the time at which days do: from 1 to 28; 1 if nothing is said.", Type: "integer", Minimum: number(1), Maximum: number(limits.MaxMonthStart), Examples: []any{15}},
				},
				Examples: []any{json.RawMessage(`{"time_zone":"Europe/Berlin","day_starts":"06:00"}`)},
			},
			"queues":  schemaQueues(),
			"workers": schemaDedicated(),
			"exempt":  schemaExempt(),
			"failed_auth": {
				Title: "Failed authentication", Description: "At each HAProxy: how many answers 401 or 403 of the origin a client's address (IPv6: its /64) may cause before it is refused. HAProxy must be written (sluice haproxy) and reloaded to know it.",
				Type: "object", MinProperties: jsonschema.Ptr(1), AdditionalProperties: nothing(),
				Properties: map[string]*schema{
					"per_address": {
						Title: "Failures of an address", Description: "A number and a window, /s, /min or /hour; or unlimited.",
						Type: "string", Pattern: failuresPattern, Examples: []any{"30/min", unlimited},
					},
				},
				Examples: []any{json.RawMessage(`{"per_address":"30/min"}`)},
			},
			"per_address": {
				Title: "Limits of an address", Description: "What a client's address (IPv6: its /64) may do at each HAProxy, in addition to the limits of the users its requests belong to. HAProxy's configuration must be written (sluice haproxy) and reloaded when this changes.",
				Type: "object", MinProperties: jsonschema.Ptr(1), AdditionalProperties: nothing(),
				Properties: map[string]*schema{
					"requests":   count("Requests of an address", "In each second of the clock, at each HAProxy: a whole number from 1, or unlimited.", limits.MaxPerSecond, 100),
					"concurrent": count("Requests of an address in progress", "At the same time, at each HAProxy: a whole number from 1, or unlimited.", limits.MaxConcurrent, 20),
				},
				Examples: []any{json.RawMessage(`{"requests":100,"concurrent":20}`)},
			},
			"tiers": {
				Title: "Tiers", Description: "Sets of limits, by name: 1 to 100 bytes without control characters, and no ~ in front; but not exempt.",
				Type: "object", MinProperties: jsonschema.Ptr(1), PropertyNames: &schema{Pattern: tierNamePattern}, AdditionalProperties: ref("tier"),
				Examples: []any{json.RawMessage(`{"free":{"requests":{"GET":100,"*":200},"concurrent":10}}`)},
			},
			"users": {
				Title: "Users", Description: "The users who have another tier than the default one, or limits of their own, by name. A * in a name stands for any run of characters; the exact name counts first, then the pattern with most literal characters, then the earlier one.",
				Types: []string{"object", "null"}, PropertyNames: &schema{Pattern: `^[\s\S]`}, AdditionalProperties: ref("user"),
				Examples: []any{json.RawMessage(`{"alice":"pro","team-*":"pro","bob":{"tier":"pro","concurrent":250}}`)},
			},
		},
		AdditionalProperties: nothing(),
		Defs:                 schemaDefs(),
	}
}

func schemaDefs() map[string]*schema {
	return map[string]*schema{
		"tier": {
			Title: "Tier", Description: "The limits of each user of this tier. {} limits nothing.",
			Type: "object", Properties: tierProperties(), AdditionalProperties: nothing(),
		},
		"user": {
			Title: "User", Description: "The name of a tier, or a mapping that overrides some limits of one. An override replaces what it names and nothing else.",
			AnyOf: []*schema{
				tierRef("Tier", "The user has the limits of this tier."),
				{
					Type: "object", AdditionalProperties: nothing(), DependentRequired: map[string][]string{"then": {"until"}},
					Properties: with(with(with(tierProperties(),
						"tier", tierRef("Tier", "The tier whose limits are overridden; the default tier if it is left out.")),
						"until", &schema{
							Title: "Until", Description: "From then on what is overridden here is void: a date, which begins at 00:00 UTC, or a time. The user has the limits of their tier then, or of the one that then names.",
							Type: "string", Pattern: timeForm.String(), Examples: []any{"2026-12-01", "2026-12-01T18:00:00Z"},
						}),
						"then", tierRef("Then", "The tier that the user has from until on.")),
				},
			},
		},
		"match": {
			Title: "Match", Description: "What a request looks like; everything that is given must hold.",
			Type: "object", Properties: matchProperties(), AdditionalProperties: nothing(),
		},
		"rate": {
			Title: "Request rate", Description: "Requests per second, or a mapping with a number for each window (and with burst and mode), over the whole cluster; or unlimited. 0 refuses every request.",
			AnyOf: append(rateForms(), &schema{
				Type: "object", AdditionalProperties: nothing(), Properties: rateProperties(), DependentRequired: map[string][]string{"burst": {"second"}}, AnyOf: anyWindow(),
			}),
			Examples: []any{100, json.RawMessage(`{"second":50,"burst":100,"minute":1000,"mode":"dry-run"}`), unlimited},
		},
		"costs":      schemaCosts(),
		"concurrent": count("Requests in progress", "At the same time, over the whole cluster: a whole number from 1, or unlimited.", limits.MaxConcurrent, 10),
		"size": {
			Title: "Size", Description: "Bytes per second: a whole number with kB, MB, GB (powers of 1000), KiB, MiB, GiB, TiB (powers of 1024) or without a unit, at most 1TiB; or unlimited.",
			AnyOf: []*schema{
				{Type: "integer", Minimum: number(1), Maximum: number(limits.MaxBandwidth)},
				{Type: "string", Pattern: sizePattern},
				{Type: "string", Pattern: unlimitedPattern},
			},
			Examples: []any{"10MiB", "500kB", 5000, unlimited},
		},
	}
}

// schemaClasses describes the operation classes.
func schemaClasses() *schema {
	return &schema{
		Title: "Operation classes", Description: "Classes of requests that limits can name beside the methods, in the order in which they are matched: a request is of the first that it matches. s3 is a ready-made set for S3 services.",
		AnyOf: []*schema{
			{Type: "string", Const: jsonschema.Ptr[any](s3Preset)},
			{
				Type: "object", MinProperties: jsonschema.Ptr(1), MaxProperties: jsonschema.Ptr(maxClasses), AdditionalProperties: nothing(),
				Properties: map[string]*schema{s3Preset: {
					Title: "S3", Description: "The ready-made classes of an S3 service, at this place of the list. A request to a host below one of these has its bucket in the host's name.",
					Type: "object", AdditionalProperties: nothing(), Required: []string{"hosts"},
					Properties: map[string]*schema{"hosts": hosts("Hosts of the service", "Names in small letters, without the port. A name with *. in front means the same as one without.")},
				}},
				PatternProperties: map[string]*schema{classForm.String(): {AnyOf: []*schema{
					ref("match"),
					{Type: "array", Items: ref("match"), MinItems: jsonschema.Ptr(1), MaxItems: jsonschema.Ptr(maxMatches)},
				}}},
			},
		},
		Examples: []any{s3Preset, json.RawMessage(`{"s3":{"hosts":["s3.example.com"]}}`), json.RawMessage(`{"LIST":{"methods":["GET"],"query":["list-type"]},"REPORT":[{"path_prefix":"/reports/"},{"headers":{"X-Kind":"report"}}]}`)},
	}
}

func matchProperties() map[string]*schema {
	texts := func(kinds []string, title, description, pattern string, example ...string) *schema {
		return withWords(listOf(maxMatchItems, &schema{Types: kinds, Pattern: pattern}), title, description, example)
	}
	return map[string]*schema{
		"methods":     texts([]string{"string"}, "Methods", "The method is one of these, in capital letters.", methodForm.String(), "GET", "HEAD"),
		"hosts":       hosts("Hosts", "The host that is asked for is one of these: a name in small letters, without the port, or *. and one for all hosts below it."),
		"frontends":   texts(textOrNumber, "Frontends", "HAProxy's name of the frontend that the request came in by is one of these.", frontendForm.String(), "admin"),
		"path_prefix": {Title: "Beginning of the path", Description: "The path, as the client wrote it and without the query, begins with this.", Type: "string", Pattern: prefixForm.String(), MaxLength: jsonschema.Ptr(maxPathBytes), Examples: []any{"/reports/"}},
		"path_regex":  {Title: "Regular expression for the path", Description: "The path, as the client wrote it and without the query, matches this somewhere. It may have what RE2 and PCRE read the same way; only single characters and classes of them may be repeated.", Types: textOrNumber, Pattern: `^[\x20-\x7e]`, MaxLength: jsonschema.Ptr(maxRegexBytes), Examples: []any{"^/[^/]+/?$"}},
		"query":       texts(textOrNumber, "Keys of the query", "All of these are there, with any value or none.", queryForm.String(), "list-type"),
		"no_query":    texts(textOrNumber, "No keys of the query", "None of these is there.", queryForm.String(), "acl", "policy"),
		"headers": {
			Title: "Headers", Description: `All of these are there, with this value, or any if it is "".`,
			Type: "object", MinProperties: jsonschema.Ptr(1), MaxProperties: jsonschema.Ptr(maxMatchItems), PropertyNames: &schema{Pattern: headerForm.String()},
			AdditionalProperties: &schema{Types: []string{"string", "number", "boolean"}, Pattern: valueForm.String(), MaxLength: jsonschema.Ptr(maxValueBytes)},
			Examples:             []any{json.RawMessage(`{"X-Kind":"report","X-Trace":""}`)},
		},
	}
}

func hosts(title, description string) *schema {
	return withWords(listOf(maxMatchItems, &schema{Types: textOrNumber, Pattern: hostForm.String()}), title, description, []string{"api.example.com", "*.api.example.com"})
}

// schemaExempt describes who is not limited.
func schemaExempt() *schema {
	texts := func(kinds []string, title, description, pattern string, most int, example ...string) *schema {
		return withWords(listOf(most, &schema{Types: kinds, Pattern: pattern}), title, description, example)
	}
	return &schema{
		Title: "Exempt", Description: "Who is not limited at all, though still measured.",
		Type: "object", AdditionalProperties: nothing(),
		Properties: map[string]*schema{
			"users":     texts(textOrNumber, "Exempt users", "Names, and patterns with *.", `^[\s\S]`, maxExempt, "probe", "mon-*"),
			"addresses": texts([]string{"string"}, "Exempt addresses", "Of clients: IP addresses, and networks in CIDR form.", `^[0-9a-fA-F.:]+(/[0-9]{1,3})?$`, maxExempt, "10.0.0.0/8", "2001:db8::/32"),
			"paths":     texts([]string{"string"}, "Exempt paths", "Paths without the query, or beginnings of paths with * behind them.", pathsForm.String(), maxPaths, "/healthz", "/static/*"),
		},
		Examples: []any{json.RawMessage(`{"users":["probe"],"addresses":["10.0.0.0/8"],"paths":["/healthz"]}`)},
	}
}

// schemaQueues describes the workers of the services' queues.
func schemaQueues() *schema {
	workers := func(title, description string) *schema {
		return &schema{Title: title, Description: description + " 0 if nobody works this queue here.", Type: "integer", Minimum: number(0), Maximum: number(limits.MaxWorkers), Examples: []any{3}}
	}
	return &schema{
		Title: "Queues of background jobs", Description: "How many workers a process has for each of a service's three queues: NAME_priority, NAME_default and NAME_scheduled. A name is of a-z and 0-9, with single _ or - between them. Environment variables such as ANALYSIS_QUEUE_PRIORITY_WORKERS come before this.",
		Type: "object", MinProperties: jsonschema.Ptr(1), MaxProperties: jsonschema.Ptr(maxServices), PropertyNames: serviceNames(),
		AdditionalProperties: &schema{AnyOf: []*schema{
			{Type: "object", AdditionalProperties: nothing(), Required: workersFields, Properties: map[string]*schema{
				"priority":  workers("Priority", "For jobs of tiers that pay."),
				"default":   workers("Default", "For jobs of all other users."),
				"scheduled": workers("Scheduled", "For jobs that a scheduler starts, of any user."),
			}},
			{Type: "array", Items: &schema{Type: "integer", Minimum: number(0), Maximum: number(limits.MaxWorkers)}, MinItems: jsonschema.Ptr(len(workersFields)), MaxItems: jsonschema.Ptr(len(workersFields))},
			{
				Description: "{3, 2, 1}, which YAML reads as names without values; [3, 2, 1] is better.",
				Type:        "object", AdditionalProperties: nothing(), MinProperties: jsonschema.Ptr(len(workersFields)), MaxProperties: jsonschema.Ptr(len(workersFields)),
				PatternProperties: map[string]*schema{workersPattern: {Type: "null"}},
			},
		}},
		Examples: []any{json.RawMessage(`{"analysis":{"priority":5,"default":3,"scheduled":2},"specview":[3,2,1]}`)},
	}
}

// schemaDedicated describes the workers that tiers and users have for themselves.
func schemaDedicated() *schema {
	dedicated := func() *schema {
		properties := map[string]*schema{}
		for _, class := range workersFields {
			properties[class] = &schema{Title: "Workers of the " + class + " queues", Description: "A whole number from 1; left out, these jobs go to the queues of everybody.", Type: "integer", Minimum: number(1), Maximum: number(limits.MaxWorkers), Examples: []any{10}}
		}
		return &schema{Type: "object", MinProperties: jsonschema.Ptr(1), AdditionalProperties: nothing(), Properties: properties}
	}
	return &schema{
		Title: "Dedicated workers", Description: "How many workers a process has, in the queues of each service, for the jobs of a tier alone, or, under users, of a user alone. A name is of a-z and 0-9, with single _ or - between them.",
		Type: "object", PropertyNames: &schema{Pattern: serviceForm.String()},
		AdditionalProperties: dedicated(),
		Properties: map[string]*schema{
			workersForUsers: {Title: "Users", Description: "The same of users, by name.", Type: "object", PropertyNames: &schema{Pattern: serviceForm.String()}, AdditionalProperties: dedicated()},
		},
		Examples: []any{json.RawMessage(`{"enterprise":{"priority":10},"users":{"alice":{"default":2}}}`)},
	}
}

// schemaJobs describes the limits of a tier's or a user's background jobs.
func schemaJobs() *schema {
	total := count("Total", "Of a user's jobs, so many run at a time, over all queues: a whole number from 1, or unlimited. If nothing is said: 1 in tiers named free, 3 in pro and pro_plus, 5 in enterprise, in others as in the default tier; but none beside a limit for each service (queues: {\"*\": 1}).", limits.MaxJobs, 3)
	return &schema{
		Title: "Background jobs", Description: "How many of a user's jobs run at a time: a whole number from 1, a mapping, or unlimited. More wait, and never fail.",
		AnyOf: append(total.CloneSchemas().AnyOf, &schema{Type: "object", AdditionalProperties: nothing(), Properties: map[string]*schema{
			"total": total,
			"queues": {
				Title: "Jobs in the queues of services", Description: `So many run at a time in the queues of a service, and with "*" in those of each service that is not named; without it, as many as the total. unlimited lifts one, or all.`,
				AnyOf: []*schema{
					{Type: "object", MaxProperties: jsonschema.Ptr(maxServices), PropertyNames: &schema{AnyOf: []*schema{serviceNames(), {Const: jsonschema.Ptr[any](limits.All)}}}, AdditionalProperties: &schema{AnyOf: total.CloneSchemas().AnyOf}},
					{Type: "string", Pattern: unlimitedPattern},
				},
				Examples: []any{json.RawMessage(`{"analysis":1}`), json.RawMessage(`{"*":1,"analysis":2}`), unlimited},
			},
			"class": {
				Title: "Class of the queues", Description: "Which queues the jobs go to. If nothing is said: priority in tiers named pro, pro_plus and enterprise, else default.",
				Type: "string", Enum: anything(jobsClasses), Examples: []any{limits.PriorityQueues},
			},
		}}),
		Examples: []any{3, json.RawMessage(`{"total":3,"queues":{"analysis":1},"class":"priority"}`), unlimited},
	}
}

// schemaCostUnits describes what requests cost.
func schemaCostUnits() *schema {
	path := func() *schema {
		return &schema{Title: "Path in the body", Description: "The names that lead to a number in a body of JSON, with dots between them.", Type: "string", Pattern: jsonPathForm.String(), MaxLength: jsonschema.Ptr(maxJSONPath), Examples: []any{"usage.total_tokens"}}
	}
	header := func() *schema {
		return &schema{Title: "Header", Description: "A header whose value is a whole number. None that is about one connection.", Type: "string", Pattern: headerForm.String(), Examples: []any{"X-Cost"}}
	}
	estimate := func(title, description string) *schema {
		return &schema{Title: title, Description: description + " A whole number from 0, or one with k, M or G.", AnyOf: []*schema{
			{Type: "integer", Minimum: number(0), Maximum: number(limits.MaxCost)},
			{Type: "string", Pattern: costPattern(`0|`)},
		}, Examples: []any{1000, "4k"}}
	}
	return &schema{
		Title: "What requests cost", Description: "Units such as tokens of a language model, and where it is read how much of it a request costs. A request reserves its estimate when it starts; the answer may say what it really cost. HAProxy must be written (sluice haproxy) and reloaded when this changes. A name is of a-z and 0-9, with single _ or - between them.",
		Type: "object", MinProperties: jsonschema.Ptr(1), MaxProperties: jsonschema.Ptr(limits.MaxCostUnits), PropertyNames: unitNameForm(),
		AdditionalProperties: &schema{Type: "object", AdditionalProperties: nothing(), AnyOf: []*schema{{Required: []string{"actual"}}, {Required: []string{"estimate"}}}, Properties: map[string]*schema{
			"actual": {
				Title: "Actual cost", Description: "Where an answer says what the request cost. Without it the estimate stands.",
				Type: "object", AdditionalProperties: nothing(), Properties: map[string]*schema{"json": path(), "header": header()},
				OneOf:    []*schema{{Required: []string{"json"}}, {Required: []string{"header"}}},
				Examples: []any{json.RawMessage(`{"json":"usage.total_tokens"}`), json.RawMessage(`{"header":"X-Cost"}`)},
			},
			"estimate": {
				Title: "Estimate", Description: "What a request is charged when it starts: what it says itself (json or header), else the number of its operation class or its method, else the default.",
				Type: "object", AdditionalProperties: nothing(), Properties: map[string]*schema{
					"json": path(), "header": header(),
					"default": estimate("Default", "What a request costs that says nothing and has no number by class."),
					"classes": {
						Title: "Estimates by class", Description: "For requests that do not say what they cost: by method and operation class. An operation class comes first.",
						Type: "object", PropertyNames: &schema{Pattern: classForm.String()}, AdditionalProperties: estimate("Estimate of a class", "What a request of this class costs."),
						Examples: []any{json.RawMessage(`{"CHAT":4000,"GET":0}`)},
					},
				},
				AnyOf:    []*schema{{Required: []string{"default"}}, {Required: []string{"classes"}}},
				Not:      &schema{Required: []string{"header", "json"}},
				Examples: []any{json.RawMessage(`{"json":"max_tokens","default":1000}`), json.RawMessage(`{"default":50}`)},
			},
			"classes": withWords(listOf(maxClasses+len(limits.BuiltinClasses()), &schema{Type: "string", Pattern: classForm.String()}), "Classes", "Only requests of these methods and operation classes cost the unit. Without it all do.", []string{"CHAT"}),
			"failed":  {Title: "Failed requests", Description: "What requests cost that the origin answers with a status of 400 or more without saying what they cost: nothing (free, if nothing is said), or their estimate.", Type: "string", Enum: anything(failedNames)},
		}},
		Examples: []any{json.RawMessage(`{"tokens":{"actual":{"json":"usage.total_tokens"},"estimate":{"json":"max_tokens","default":1000}}}`)},
	}
}

// schemaCosts describes the limits of what a tier's or a user's requests cost.
func schemaCosts() *schema {
	window := func(title, description string) *schema {
		return &schema{Title: title, Description: description + ": a whole number from 0 (refuse), one with k, M or G, or unlimited.", AnyOf: []*schema{
			{Type: "integer", Minimum: number(0), Maximum: number(limits.MaxCost)},
			{Type: "string", Pattern: costPattern(`0|`)},
			{Type: "string", Pattern: unlimitedPattern},
		}, Examples: []any{"20k", "1.5M", 500, unlimited}}
	}
	return &schema{
		Title: "Costs", Description: "How much of each unit requests may cost, over the whole cluster. unlimited lifts them all.",
		AnyOf: []*schema{
			{Type: "object", PropertyNames: unitNameForm(), AdditionalProperties: &schema{AnyOf: []*schema{
				{Type: "string", Pattern: unlimitedPattern},
				{Type: "object", AdditionalProperties: nothing(), AnyOf: anyWindow(), Properties: map[string]*schema{
					"second": window("Each second", "In each second of the clock"),
					"minute": window("Each minute", "In each minute of the clock"),
					"hour":   window("Each hour", "In each hour of the clock (UTC)"),
					"day":    window("Each day", "In each day, which begins when windows says, at midnight UTC if nothing is said"),
					"month":  window("Each month", "In each month, which begins when windows says, with the first day if nothing is said"),
					"mode":   mode("Mode of this limit", "Of all its windows."),
				}},
			}}},
			{Type: "string", Pattern: unlimitedPattern},
		},
		Examples: []any{json.RawMessage(`{"tokens":{"minute":"20k","day":"500k"}}`), unlimited},
	}
}

func anyWindow() (some []*schema) {
	for _, w := range limits.Windows {
		some = append(some, &schema{Required: []string{w.String()}})
	}
	return some
}

// costPattern is of the numbers that parseCost reads; more is one that would else begin with 0.
func costPattern(more string) string {
	return `^(` + more + `[1-9][0-9]*|[1-9][0-9]*(\.[0-9]{1,3})?k|[1-9][0-9]*(\.[0-9]{1,6})?M|[1-9][0-9]*(\.[0-9]{1,9})?G)$`
}

func unitNameForm() *schema {
	return &schema{Pattern: serviceForm.String(), MaxLength: jsonschema.Ptr(maxUnit)}
}

func serviceNames() *schema {
	return &schema{Pattern: serviceForm.String(), MaxLength: jsonschema.Ptr(maxService)}
}

// tierProperties are the fields that tiers and users share.
func tierProperties() map[string]*schema {
	return with(with(limitProperties(),
		"jobs", schemaJobs()),
		"comment", &schema{
			Title: "Comment", Description: "For people; sluice explain shows that of a user.",
			Types: []string{"string", "number", "boolean"}, MaxLength: jsonschema.Ptr(maxComment), Examples: []any{"launch week"},
		})
}

// limitProperties are the fields that tiers and users share but for jobs and comments.
func limitProperties() map[string]*schema {
	rates := map[string]*schema{}
	for _, class := range classes {
		rates[class] = ref("rate")
	}
	return map[string]*schema{
		"mode": mode("Mode of these limits", "Of each limit the weakest counts: of the file, of this, and its own. A user's replaces that of the tier."),
		"requests": {
			Title:       "Request rates",
			Description: `Requests by class; "*" is all classes together, OTHER every method without a class of its own, other names are operation classes. A request counts against its method, its operation class and "*". A number alone is that of "*"; unlimited lifts them all.`,
			AnyOf: []*schema{
				{Type: "object", Properties: rates, PatternProperties: map[string]*schema{classForm.String(): ref("rate")}, AdditionalProperties: nothing()},
				{Type: "integer", Minimum: number(0), Maximum: number(limits.MaxPerSecond)},
				{Type: "string", Pattern: unlimitedPattern},
			},
			Examples: []any{json.RawMessage(`{"GET":100,"LIST":{"minute":30},"*":200}`), 0, unlimited},
		},
		"costs": ref("costs"),
		"concurrent": {
			Title: "Requests in progress", Description: "At the same time, over the whole cluster: a whole number from 1, a mapping with one, or unlimited.",
			AnyOf: []*schema{
				ref("concurrent"),
				{Type: "object", AdditionalProperties: nothing(), Required: []string{"limit"}, Properties: concurrentProperties()},
			},
			Examples: []any{10, json.RawMessage(`{"limit":10,"except":["STREAM"],"mode":"dry-run"}`), unlimited},
		},
		"bandwidth": {
			Title: "Bandwidth", Description: "Bytes per second, over the whole cluster. unlimited lifts both directions.",
			AnyOf: []*schema{
				{Type: "object", AdditionalProperties: nothing(), Properties: map[string]*schema{
					"down":          described("Down", "Response bodies, from the cluster to the user."),
					"up":            described("Up", "Request bodies, from the user to the cluster."),
					"default_share": described("Default share", "What one instance of several gives the user before the cluster has divided the limit; at most each limit. Without it, or unlimited: an even part."),
				}},
				{Type: "string", Pattern: unlimitedPattern},
			},
			Examples: []any{json.RawMessage(`{"down":"10MiB","up":"5MiB"}`), unlimited},
		},
		"over_limit": {
			Title: "Over the limit", Description: "What becomes of a request over a limit.",
			Type: "object", AdditionalProperties: nothing(),
			Properties: map[string]*schema{"concurrent": {
				Title:       "Over the limit of requests in progress",
				Description: "refuse at once, or wait for room: for 1ms to 30s, in whole milliseconds.",
				Type:        "string", Pattern: waitPattern, Examples: []any{"refuse", "wait 2s", "wait 250ms"},
			}},
		},
		"priority": {
			Title: "Priority", Description: "When the servers are full, the lowest is served first: from -2047 to 2047; 0 if not said.",
			Type: "integer", Minimum: number(-limits.MaxPriority), Maximum: number(limits.MaxPriority), Examples: []any{-10, 100},
		},
	}
}

// rateForms are the ways to write a number of requests.
func rateForms() []*schema {
	return []*schema{
		{Type: "integer", Minimum: number(0), Maximum: number(limits.MaxPerSecond)},
		{Type: "string", Pattern: `^(0|[1-9][0-9]{0,9}|[1-9][0-9]*(\.[0-9]{1,3})?k|[1-9][0-9]*(\.[0-9]{1,6})?M)$`},
		{Type: "string", Pattern: unlimitedPattern},
	}
}

func rateProperties() map[string]*schema {
	window := func(title, description string, example any) *schema {
		return &schema{Title: title, Description: description + ": a whole number from 0 (refuse), one with k or M, or unlimited.", AnyOf: rateForms(), Examples: []any{example, unlimited}}
	}
	return map[string]*schema{
		"second": window("Each second", "In each second of the clock", 50),
		"burst":  {Title: "Burst", Description: "How many requests more a second may have, from what the user left unused in the seconds before; it needs a limit for each second.", Type: "integer", Minimum: number(1), Maximum: number(limits.MaxBurst), Examples: []any{100}},
		"minute": window("Each minute", "In each minute of the clock", 1000),
		"hour":   window("Each hour", "In each hour of the clock (UTC)", "20k"),
		"day":    window("Each day", "In each day, which begins when windows says, at midnight UTC if nothing is said", "100k"),
		"month":  window("Each month", "In each month, which begins when windows says, with the first day if nothing is said", "1.5M"),
		"mode":   mode("Mode of this limit", "Of all its windows."),
	}
}

func concurrentProperties() map[string]*schema {
	return map[string]*schema{
		"limit":  {Title: "Limit", Description: "Requests in progress at the same time.", Ref: "#/$defs/concurrent"},
		"except": withWords(listOf(maxClasses+len(limits.BuiltinClasses()), &schema{Type: "string", Pattern: classForm.String()}), "Except", "Requests of these methods and operation classes do not count, and are not refused for those that do.", []string{"STREAM"}),
		"mode":   mode("Mode of this limit", "Of requests in progress."),
	}
}

func mode(title, description string) *schema {
	return &schema{
		Title: title, Description: description + " enforce refuses what is over the limit (if nothing is said), dry-run counts it and changes no answer, off is as if nothing were limited.",
		Type: "string", Enum: anything(modeNames),
	}
}

func count(title, description string, most, example int) *schema {
	return &schema{
		Title: title, Description: description,
		AnyOf: []*schema{
			{Type: "integer", Minimum: number(1), Maximum: number(most)},
			{Type: "string", Pattern: unlimitedPattern},
		},
		Examples: []any{example, unlimited},
	}
}

// textOrNumber is the type of a name: one that looks like a number is one.
var textOrNumber = []string{"string", "number"}

// tierRef describes the name of a tier.
func tierRef(title, description string) *schema {
	return &schema{Title: title, Description: description, Types: textOrNumber, Examples: []any{"free"}}
}

func described(title, description string) *schema {
	s := ref("size")
	s.Title, s.Description = title, description
	return s
}

// listOf describes a list of 1 to so many items.
func listOf(most int, items *schema) *schema {
	return &schema{Type: "array", Items: items, MinItems: jsonschema.Ptr(1), MaxItems: jsonschema.Ptr(most)}
}

func withWords(s *schema, title, description string, example any) *schema {
	s.Title, s.Description, s.Examples = title, description, []any{example}
	return s
}

func ref(def string) *schema { return &schema{Ref: "#/$defs/" + def} }

func number(n int) *float64 { return jsonschema.Ptr(float64(n)) }

// nothing accepts no value.
func nothing() *schema { return &schema{Not: &schema{}} }

func anything(texts []string) (all []any) {
	for _, text := range texts {
		all = append(all, text)
	}
	return all
}

func with(fields map[string]*schema, name string, s *schema) map[string]*schema {
	fields[name] = s
	return fields
}
