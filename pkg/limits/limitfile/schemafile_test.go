package limitfile

import (
	"cmp"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// What this file makes of the structs of file.go is config/limits.schema.json, which sluice schema
// prints. It is a test's, so that no program links the library.
//
//go:generate go test -run ^TestSchemaIsCurrent$ -update .

// writeSchema returns the JSON Schema (draft 2020-12) of the limit file, for editors
// and for checks that know JSON Schema only. It accepts every file that Parse
// accepts. It refuses less: what it cannot see is whether a tier, a unit of
// cost or an operation class exists, how a number is written (0x10), aliases, tags and names
// that are there twice, a size or a number with a suffix that is too large, which number is the larger one,
// which headers are about one connection, a regular expression, a time zone, an address or a day that is none.
func writeSchema(t *testing.T) []byte {
	t.Helper()
	data, err := json.MarshalIndent(schemaFile(), "", "  ")
	testkit.Must(t, err)
	return append(data, '\n')
}

// schema is short for the library's type. One may be in one place only.
type schema = jsonschema.Schema

func schemaFile() *schema {
	s := schemaOf(reflect.TypeFor[document](), "")
	s.Schema, s.ID = "https://json-schema.org/draft/2020-12/schema", "https://github.com/sluice-qos/sluice/config/limits.schema.json"
	s.Title, s.Description = "Limit file of Sluice", "What each user of an HTTP service may do, summed over the whole cluster. What is not named is not limited."
	s.Required = []string{"version", "default_tier", "tiers"}
	return s
}

// schemaOf describes what a type reads, with the tag of its field.
func schemaOf(t reflect.Type, tag reflect.StructTag) *schema {
	var s *schema
	switch own := special[t]; {
	case own != nil:
		s = own(tag)
	case t == reflect.TypeFor[scalar]():
		s = scalarSchemas[tag.Get("kind")]()
	case t == reflect.TypeFor[texts]():
		s = schemaOfTexts(tag)
	case strings.HasPrefix(t.Name(), "table["):
		entries, _ := t.FieldByName("entries")
		value, _ := entries.Type.Elem().FieldByName("value")
		s = schemaOfTable(schemaOf(value.Type, tag), tag)
	default:
		s = schemaOfStruct(t, tag)
	}
	if rule := rules[t]; rule != nil {
		rule(s)
	}
	return s
}

func schemaOfStruct(t reflect.Type, tag reflect.StructTag) *schema {
	s := &schema{Type: "object", Properties: map[string]*schema{}, AdditionalProperties: nothing()}
	all := fieldsOfStruct(t)
	for i, name := range all.names {
		if slices.Contains(strings.Fields(tag.Get("without")), name) {
			continue
		}
		f := all.fields[i]
		s.Properties[name] = schemaOf(f.Type, f.Tag)
		s.Properties[name].Description = words[owner(t, f).Name()+"."+name]
	}
	return orBare(t, tag, s)
}

// owner is the struct in which a field is.
func owner(t reflect.Type, f reflect.StructField) reflect.Type {
	for _, i := range f.Index[:len(f.Index)-1] {
		t = t.Field(i).Type
	}
	return t
}

// orBare adds what may stand for the whole struct.
func orBare(t reflect.Type, tag reflect.StructTag, s *schema) *schema {
	own, _ := t.FieldByName("at")
	bare, ok := t.FieldByName(cmp.Or(tag.Get("bare"), own.Tag.Get("bare")))
	if !ok {
		return s
	}
	return anyOf(s, schemaOf(bare.Type, bare.Tag))
}

// anyOf joins alternatives into one list.
func anyOf(all ...*schema) *schema {
	out := &schema{}
	for _, s := range all {
		if s.AnyOf != nil && s.Type == "" {
			out.AnyOf = append(out.AnyOf, s.AnyOf...)
		} else {
			out.AnyOf = append(out.AnyOf, s)
		}
	}
	return out
}

func schemaOfTable(value *schema, tag reflect.StructTag) *schema {
	s := &schema{Type: "object", AdditionalProperties: value}
	if most, _ := strconv.Atoi(tag.Get("most")); most > 0 {
		s.MinProperties, s.MaxProperties = jsonschema.Ptr(1), jsonschema.Ptr(most)
	}
	if names := nameForms[tag.Get("yaml")]; names != nil {
		s.PropertyNames = names()
	}
	if tag.Get("lifts") != "" {
		return anyOf(s, lifted())
	}
	return s
}

// textOrNumber is the type of a name: one that looks like a number is one.
var textOrNumber = []string{"string", "number"}

func schemaOfTexts(tag reflect.StructTag) *schema {
	item := &schema{Types: textOrNumber, Pattern: `^[\s\S]`}
	switch items := tag.Get("items"); items {
	case "":
	case "address":
		item = &schema{Type: "string", Pattern: `^[0-9a-fA-F.:]+(/[0-9]{1,3})?$`}
	case "class": // one that the file declares
		item = &schema{Type: "string", Pattern: classForm.String()}
	case "method", "path":
		item = &schema{Type: "string", Pattern: itemForms[items].form.String()}
	default:
		item.Pattern = itemForms[items].form.String()
	}
	s := &schema{Type: "array", Items: item, MinItems: jsonschema.Ptr(1)}
	if most, _ := strconv.Atoi(tag.Get("most")); most > 0 {
		s.MaxItems = jsonschema.Ptr(most)
	}
	return s
}

// The patterns of what is text in a limit file. They mean the same in Go and in
// ECMAScript, which JSON Schema uses.
const (
	sizePattern     = `^[1-9][0-9]*(kB|MB|GB|KiB|MiB|GiB|TiB)?$`
	amountPattern   = `^(0|[1-9][0-9]*|[1-9][0-9]*(\.[0-9]{1,3})?k|[1-9][0-9]*(\.[0-9]{1,6})?M|[1-9][0-9]*(\.[0-9]{1,9})?G)$`
	failuresPattern = `^(unlimited|(1000000000|[1-9][0-9]{0,8})/(s|min|hour))$` // up to MaxPerSecond
	workersPattern  = `^(0|[1-9][0-9]{0,3}|10000)$`
	tierNamePattern = `^[^~\x00-\x1f\x7f][^\x00-\x1f\x7f]{0,99}$`

	// From 1ms to 30000ms, or from 0.001s to 30s.
	waitPattern = `^(refuse|wait (([1-9][0-9]{0,3}|[12][0-9]{4}|30000)ms` +
		`|(([1-9]|[12][0-9])(\.[0-9]{1,3})?|30(\.0{1,3})?|0\.([1-9][0-9]{0,2}|0[1-9][0-9]?|00[1-9]))s))$`
)

// nameForms are the names of tables, by their fields.
var nameForms = map[string]func() *schema{
	"tiers":    func() *schema { return &schema{Pattern: tierNamePattern} },
	"groups":   func() *schema { return &schema{Pattern: tierNamePattern} },
	"headers":  func() *schema { return &schema{Pattern: headerForm.String()} },
	"classes":  func() *schema { return &schema{Pattern: classForm.String()} },
	"requests": func() *schema { return &schema{Pattern: `^(\*|[A-Z][A-Z0-9_]{0,31})$`} },
	"costs":    func() *schema { return &schema{Pattern: serviceForm.String(), MaxLength: jsonschema.Ptr(maxUnit)} },
	"queues":   func() *schema { return &schema{Pattern: serviceForm.String(), MaxLength: jsonschema.Ptr(maxService)} },
}

func lifted() *schema { return &schema{Type: "string", Pattern: `^unlimited$`} }

func text(pattern string) func() *schema {
	return func() *schema { return &schema{Type: "string", Pattern: pattern} }
}

func whole(least, most int) func() *schema {
	return func() *schema {
		return &schema{Type: "integer", Minimum: jsonschema.Ptr(float64(least)), Maximum: jsonschema.Ptr(float64(most))}
	}
}

func orLifted(s func() *schema) func() *schema {
	return func() *schema { return anyOf(s(), lifted()) }
}

func numberOr(least, most int, pattern string) func() *schema {
	return func() *schema { return anyOf(whole(least, most)(), text(pattern)()) }
}

func oneOf(names []string) func() *schema {
	return func() *schema {
		s := &schema{Type: "string"}
		for _, name := range names {
			s.Enum = append(s.Enum, name)
		}
		return s
	}
}

func anyName() *schema { return &schema{Types: textOrNumber} }

// scalarSchemas describe the kinds of numbers.go.
var scalarSchemas = map[string]func() *schema{
	"lift":           lifted,
	"tierName":       anyName,
	"groupName":      anyName,
	"mode":           oneOf(modeNames),
	"amount":         orLifted(numberOr(0, limits.MaxCost, amountPattern)),
	"burst":          whole(1, limits.MaxBurst),
	"perSecond":      orLifted(whole(1, limits.MaxPerSecond)),
	"inProgress":     orLifted(whole(1, limits.MaxConcurrent)),
	"size":           orLifted(numberOr(1, limits.MaxBandwidth, sizePattern)),
	"wait":           text(waitPattern),
	"priority":       whole(-limits.MaxPriority, limits.MaxPriority),
	"jobCount":       orLifted(whole(1, limits.MaxJobs)),
	"jobsClass":      oneOf(jobsClasses),
	"workerCount":    whole(0, limits.MaxWorkers),
	"dedicatedCount": whole(1, limits.MaxWorkers),
	"comment": func() *schema {
		return &schema{Types: []string{"string", "number", "boolean"}, MaxLength: jsonschema.Ptr(maxComment)}
	},
	"until":       text(timeForm.String()),
	"timeZone":    text(`^[A-Za-z]`),
	"timeOfDay":   text(timeOfDayForm.String()),
	"dayOfMonth":  whole(1, limits.MaxMonthStart),
	"failureRate": text(failuresPattern),
	"failedCost":  oneOf(failedNames),
	"estimated":   numberOr(0, limits.MaxCost, amountPattern),
	"jsonPath": func() *schema {
		return &schema{Type: "string", Pattern: jsonPathForm.String(), MaxLength: jsonschema.Ptr(maxJSONPath)}
	},
	"times":      whole(1, limits.MaxCostTimes),
	"headerName": text(headerForm.String()),
	"headerValue": func() *schema {
		return &schema{Types: []string{"string", "number", "boolean"}, Pattern: valueForm.String(), MaxLength: jsonschema.Ptr(maxValueBytes)}
	},
	"pathPrefix": func() *schema {
		return &schema{Type: "string", Pattern: prefixForm.String(), MaxLength: jsonschema.Ptr(maxPathBytes)}
	},
	"pathRegex": func() *schema {
		return &schema{Types: textOrNumber, MinLength: jsonschema.Ptr(1), MaxLength: jsonschema.Ptr(maxRegexBytes)}
	},
}

// special describes what decodes itself.
var special map[reflect.Type]func(reflect.StructTag) *schema

func init() {
	special = map[reflect.Type]func(reflect.StructTag) *schema{
		reflect.TypeFor[raw](): func(tag reflect.StructTag) *schema {
			if tag.Get("yaml") == "version" {
				return &schema{Const: jsonschema.Ptr[any](1)}
			}
			user := schemaOf(reflect.TypeFor[userEntry](), userTag)
			user.AnyOf[0].DependentRequired = map[string][]string{"then": {"until"}}
			return &schema{Types: []string{"object", "null"}, PropertyNames: &schema{Pattern: `^[\s\S]`}, AdditionalProperties: user}
		},
		reflect.TypeFor[requests](): func(tag reflect.StructTag) *schema {
			rate := func() *schema { return schemaOf(reflect.TypeFor[rate](), "") }
			numbers := &schema{AnyOf: rate().AnyOf[1:]} // and unlimited
			return anyOf(schemaOfTable(rate(), `yaml:"requests"`), numbers)
		},
		reflect.TypeFor[classes](): func(reflect.StructTag) *schema {
			table := schemaOfTable(schemaOf(reflect.TypeFor[class](), ""), "")
			table.PatternProperties = map[string]*schema{classForm.String(): table.AdditionalProperties}
			table.AdditionalProperties, table.MinProperties, table.MaxProperties = nothing(), jsonschema.Ptr(1), jsonschema.Ptr(maxClasses)
			hosts, _ := reflect.TypeFor[match]().FieldByName("Hosts")
			table.Properties = map[string]*schema{s3Preset: {
				Description: "The ready-made classes of an S3 service, at this place of the list. A request to a host below one of these has its bucket in the host's name.",
				Type:        "object", AdditionalProperties: nothing(), Required: []string{"hosts"}, Properties: map[string]*schema{"hosts": schemaOf(hosts.Type, hosts.Tag)},
			}}
			table.Properties[s3Preset].Properties["hosts"].Description = "Names in small letters, without the port. A name with *. in front means the same as one without."
			return anyOf(table, &schema{Type: "string", Const: jsonschema.Ptr[any](s3Preset)})
		},
		reflect.TypeFor[class](): func(reflect.StructTag) *schema {
			list := &schema{Type: "array", Items: schemaOf(reflect.TypeFor[match](), ""), MinItems: jsonschema.Ptr(1), MaxItems: jsonschema.Ptr(maxMatches)}
			return anyOf(schemaOf(reflect.TypeFor[match](), ""), list)
		},
		reflect.TypeFor[paths](): func(tag reflect.StructTag) *schema {
			one := func() *schema { return scalarSchemas["jsonPath"]() }
			if tag.Get("times") != "" {
				one = func() *schema { return schemaOf(reflect.TypeFor[pathOf](), "") }
			}
			return anyOf(one(), &schema{Type: "array", Items: one(), MinItems: jsonschema.Ptr(1), MaxItems: jsonschema.Ptr(maxPathsOfCost)})
		},
		reflect.TypeFor[actualPaths](): func(reflect.StructTag) *schema {
			sum := schemaOfStruct(reflect.TypeFor[actualPaths](), "")
			sum.Required = []string{"sum"}
			return anyOf(schemaOf(reflect.TypeFor[paths](), ""), sum)
		},
		reflect.TypeFor[workers](): func(reflect.StructTag) *schema {
			n := len(classesOfQueues)
			mapping := schemaOfStruct(reflect.TypeFor[workers](), "")
			mapping.Required = classesOfQueues
			return anyOf(mapping,
				&schema{Type: "array", Items: scalarSchemas["workerCount"](), MinItems: jsonschema.Ptr(n), MaxItems: jsonschema.Ptr(n)},
				&schema{
					Description: "{3, 2, 1}, which YAML reads as names without values; [3, 2, 1] is better.",
					Type:        "object", AdditionalProperties: nothing(), MinProperties: jsonschema.Ptr(n), MaxProperties: jsonschema.Ptr(n),
					PatternProperties: map[string]*schema{workersPattern: {Type: "null"}},
				})
		},
		reflect.TypeFor[dedicated](): func(reflect.StructTag) *schema {
			of := func() *schema { return schemaOf(reflect.TypeFor[dedicatedTo](), "") }
			names := func() *schema { return &schema{Pattern: serviceForm.String()} }
			return &schema{Type: "object", PropertyNames: names(), AdditionalProperties: of(), Properties: map[string]*schema{
				workersForUsers: {Description: "The same of users, by name.", Type: "object", PropertyNames: names(), AdditionalProperties: of()},
			}}
		},
	}
}

// rules say what must be there together.
var rules = map[reflect.Type]func(*schema){
	reflect.TypeFor[table[entry]](): func(s *schema) {
		if s.PropertyNames != nil && s.AdditionalProperties.Properties["group"] == nil {
			s.AdditionalProperties.Description = "{} limits nothing."
		}
	},
	reflect.TypeFor[rate](): func(s *schema) {
		s.AnyOf[0].AnyOf, s.AnyOf[0].DependentRequired = anyWindow(), map[string][]string{"burst": {"second"}}
		for _, one := range append(slices.Collect(maps.Values(s.AnyOf[0].Properties)), s) {
			for _, form := range one.AnyOf {
				if form.Maximum != nil {
					form.Maximum = jsonschema.Ptr[float64](limits.MaxPerSecond)
				}
			}
		}
	},
	reflect.TypeFor[costLimit]():   func(s *schema) { s.AnyOf[0].AnyOf = anyWindow() },
	reflect.TypeFor[concurrent]():  func(s *schema) { s.AnyOf[0].Required = []string{"limit"} },
	reflect.TypeFor[failedAuth]():  func(s *schema) { s.MinProperties = jsonschema.Ptr(1) },
	reflect.TypeFor[perAddress]():  func(s *schema) { s.MinProperties = jsonschema.Ptr(1) },
	reflect.TypeFor[dedicatedTo](): func(s *schema) { s.MinProperties = jsonschema.Ptr(1) },
	reflect.TypeFor[unit]():        func(s *schema) { s.AnyOf = oneRequired("actual", "estimate") },
	reflect.TypeFor[pathOf]():      func(s *schema) { s.AnyOf[0].Required = []string{"path"} },
	reflect.TypeFor[actual]():      func(s *schema) { s.OneOf = oneRequired("json", "header") },
	reflect.TypeFor[estimate](): func(s *schema) {
		s.AnyOf, s.Not = oneRequired("default", "classes"), &schema{Required: []string{"header", "json"}}
	},
	reflect.TypeFor[document](): func(s *schema) {
		s.Properties["tiers"].MinProperties = jsonschema.Ptr(1)
		for _, field := range []string{"bandwidth", "over_limit", "priority", "jobs"} {
			delete(s.Properties["groups"].AdditionalProperties.Properties, field)
		}
		jobsOf(s.Properties["tiers"].AdditionalProperties)
		jobsOf(s.Properties["users"].AdditionalProperties.AnyOf[0])
	},
}

// jobsOf lets limits of jobs name services, or all.
func jobsOf(entry *schema) {
	queues := entry.Properties["jobs"].AnyOf[0].Properties["queues"].AnyOf[0]
	queues.PropertyNames = &schema{AnyOf: []*schema{nameForms["queues"](), {Const: jsonschema.Ptr[any](limits.All)}}}
	queues.MaxProperties = jsonschema.Ptr(maxServices)
}

func anyWindow() []*schema {
	var names []string
	for _, w := range limits.Windows {
		names = append(names, w.String())
	}
	return oneRequired(names...)
}

func oneRequired(names ...string) (all []*schema) {
	for _, name := range names {
		all = append(all, &schema{Required: []string{name}})
	}
	return all
}

// nothing accepts no value.
func nothing() *schema { return &schema{Not: &schema{}} }

// words are what editors show of each field, by the struct that has it.
var words = map[string]string{
	"document.version":        "The only one is 1.",
	"document.mode":           "Nothing below can make it stronger: with dry-run, nothing in this file is enforced; off is the emergency brake.",
	"document.default_tier":   "The tier of users whom the file does not name.",
	"document.anonymous_tier": "The tier of requests without a user's name, and of users who are known by their IP address. Without it they have the default tier.",
	"document.unreadable":     "The tier that all requests share whose credentials cannot be read, or who have more than one. Without it they have the default tier.",
	"document.tiers":          "Sets of limits, by name: 1 to 100 bytes without control characters, and no ~ in front; but not exempt.",
	"document.users":          "The users who have another tier than the default one, or limits of their own, by name. A * in a name stands for any run of characters; the exact name counts first, then the pattern with most literal characters, then the earlier one.",
	"document.groups":         "What the members of a group may do together, besides their own limits.",
	"document.windows":        "When the days and months of limits begin.",
	"document.classes":        "Classes of requests that limits can name beside the methods, in the order in which they are matched: a request is of the first that it matches. s3 is a ready-made set for S3 services.",
	"document.exempt":         "Who is not limited at all, though still measured.",
	"document.costs":          "Units such as tokens of a language model, and where it is read how much of it a request costs. A request reserves its estimate when it starts; the answer may say what it really cost. HAProxy must be written (sluice haproxy) and reloaded when this changes. A name is of a-z and 0-9, with single _ or - between them.",
	"document.queues":         "How many workers a process has for each of a service's three queues: NAME_priority, NAME_default and NAME_scheduled. A name is of a-z and 0-9, with single _ or - between them.",
	"document.workers":        "Workers for the jobs of one tier alone, by tier, or of one user under users.",
	"document.failed_auth":    "At each HAProxy: how many answers 401 or 403 of the origin a client's address (IPv6: its /64) may cause before it is refused. HAProxy must be written (sluice haproxy) and reloaded to know it.",
	"document.per_address":    "What a client's address (IPv6: its /64) may do at each HAProxy, in addition to the limits of the users its requests belong to. HAProxy must be written (sluice haproxy) and reloaded to know it.",

	"entry.tier":       "The tier whose limits are overridden; the default tier if it is left out.",
	"entry.group":      "The group whose limits count for the user, besides their own.",
	"entry.requests":   "Requests by class; \"*\" is all classes together, OTHER every method without a class of its own, other names are operation classes. A request counts against its method, its operation class and \"*\". A number alone is for all requests. 0 refuses; unlimited lifts them all.",
	"entry.costs":      "How much of each unit requests may cost, over the whole cluster. unlimited lifts them all.",
	"entry.concurrent": "Requests in progress at the same time, over the whole cluster: a whole number from 1, a mapping with one, or unlimited.",
	"entry.bandwidth":  "Bytes per second, over the whole cluster. unlimited lifts both directions.",
	"entry.over_limit": "What becomes of a request over a limit.",
	"entry.priority":   "When the servers are full, the lowest is served first: from -2047 to 2047; 0 if not said.",
	"entry.mode":       "Of each limit the weakest counts: of the file, of this, and its own. A user's replaces that of the tier.",
	"entry.jobs":       "How many of a user's background jobs run at a time: a whole number from 1, a mapping, or unlimited. More wait, and never fail.",
	"entry.comment":    "For people; sluice explain shows that of a user.",
	"entry.until":      "From then on what is overridden here is void: a date, which begins at 00:00 UTC, or a time. The user has the limits of their tier then, or of the one that then names.",
	"entry.then":       "The tier that the user has from until on.",

	"window.second": "In each second of the clock: a whole number, one with k, M or G, or unlimited. 0 refuses.",
	"window.minute": "In each minute of the clock.",
	"window.hour":   "In each hour of the clock (UTC).",
	"window.day":    "In each day, which begins at midnight UTC, or when windows says.",
	"window.month":  "In each month, which begins with its first day, or when windows says.",
	"window.mode":   "enforce refuses what is over the limit (if nothing is said), dry-run counts it and changes no answer, off is as if nothing were limited.",
	"rate.burst":    "How many requests more a second may have, from what the user left unused in the seconds before; it needs a limit for each second.",

	"concurrent.limit":        "Requests in progress at the same time.",
	"concurrent.mode":         "The mode of this limit.",
	"concurrent.except":       "Requests of these methods and operation classes do not count as in progress.",
	"bandwidth.down":          "Response bodies, from the cluster to the user: a whole number with kB, MB, GB (powers of 1000), KiB, MiB, GiB, TiB (powers of 1024) or without a unit, at most 1TiB; or unlimited.",
	"bandwidth.up":            "Request bodies, from the user to the cluster.",
	"bandwidth.default_share": "What one instance of several gives the user before the cluster has divided the limit; at most each limit. Without it, or unlimited: an even part.",
	"overLimit.concurrent":    "refuse at once, or wait for room: for 1ms to 30s, in whole milliseconds, such as wait 2s.",
	"jobs.total":              "Of a user's jobs, so many run at a time, over all queues. If nothing is said: 1 in tiers named free, 3 in pro and pro_plus, 5 in enterprise, in others as in the default tier; but none beside a limit for each service (queues: {\"*\": 1}).",
	"jobs.queues":             "So many run at a time in the queues of a service, and with \"*\" in those of each service that is not named; without it, as many as the total. unlimited lifts one, or all.",
	"jobs.class":              "Which queues the jobs go to. If nothing is said: priority in tiers named pro, pro_plus and enterprise, else default.",

	"calendar.time_zone":    "A name of the IANA time zone database; UTC if nothing is said. A day in which clocks are set has 23 or 25 hours.",
	"calendar.day_starts":   "A time of day in this time zone; \"00:00\" if nothing is said.",
	"calendar.month_starts": "The day of the month on which months begin, at the time at which days do: from 1 to 28; 1 if nothing is said.",

	"match.methods":     "The method is one of these, in capital letters.",
	"match.hosts":       "The host that is asked for is one of these: a name in small letters, without the port, or *. and one for all hosts below it.",
	"match.frontends":   "HAProxy's name of the frontend that the request came in by is one of these.",
	"match.path_prefix": "The path, without the query, begins with this.",
	"match.path_regex":  "The path, without the query, matches this somewhere. It may have what RE2 and PCRE read the same way; only single characters and classes of them may be repeated.",
	"match.query":       "All of these keys are in the query, with any value or none.",
	"match.no_query":    "None of these keys is in the query.",
	"match.headers":     "All of these headers are there, with this value, or any if it is \"\".",

	"exempt.users":           "Names, and patterns with *.",
	"exempt.addresses":       "Of clients: IP addresses, and networks in CIDR form.",
	"exempt.paths":           "Paths without the query, or beginnings of paths with * behind them.",
	"failedAuth.per_address": "A number and a window, /s, /min or /hour, such as 30/min; or unlimited.",
	"perAddress.requests":    "In each second of the clock, at each HAProxy.",
	"perAddress.concurrent":  "At the same time, at each HAProxy.",

	"unit.actual":         "Where an answer says what the request cost. Without it the estimate stands.",
	"unit.estimate":       "What a request is charged when it starts: what it says itself (json or header), else the number of its operation class or its method, else the default.",
	"unit.classes":        "Only requests of these methods and operation classes cost the unit. Without it all do.",
	"unit.failed":         "What requests cost that the origin answers with a status of 400 or more without saying what they cost: nothing (free, if nothing is said), or their estimate.",
	"failed.4xx":          "With a status from 400 to 499.",
	"failed.5xx":          "With a status from 500 on.",
	"actual.json":         "The path to a number in a body of JSON, a list of paths of which the first that is found counts, or a sum of several.",
	"actual.header":       "A header whose value is a whole number. None that is about one connection.",
	"actualPaths.sum":     "The numbers at these paths, added up.",
	"pathOf.path":         "The names that lead to a number, with dots between them.",
	"pathOf.times":        "By what the number is multiplied.",
	"estimate.json":       "The path to a number in a body of JSON, or a list of paths of which the largest number counts.",
	"estimate.header":     "A header whose value is a whole number. None that is about one connection.",
	"estimate.default":    "What a request costs that says nothing and has no number by class: a whole number from 0, or one with k, M or G.",
	"estimate.unreadable": "What a request costs whose body cannot be read.",
	"estimate.classes":    "For requests that do not say what they cost: by method and operation class. An operation class comes first.",

	"workers.priority":      "For jobs of tiers that pay. 0 if nobody works this queue here.",
	"workers.default":       "For jobs of all other users.",
	"workers.scheduled":     "For jobs that a scheduler starts, of any user.",
	"dedicatedTo.priority":  "For jobs of the priority queues; left out, they go to the queues of everybody.",
	"dedicatedTo.default":   "For jobs of the default queues.",
	"dedicatedTo.scheduled": "For jobs of the scheduled queues.",
}
