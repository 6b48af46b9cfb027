package limits

import (
	"bytes"
	"encoding/json"
	"slices"
)

//go:generate go test -run ^TestSchemaIsCurrent$ -update .

// BuiltinClasses returns the classes that a request can have without further
// configuration, sorted. All is not among them: it is no request's own class.
func BuiltinClasses() []string { return slices.Clone(classes[1:]) }

// Schema returns the JSON Schema (draft 2020-12) of the limit file, for editors
// and for checks that know JSON Schema only. It accepts every file that Parse
// accepts. It refuses less: what it cannot see is whether a tier exists, how a
// number is written (0x10), aliases, tags and names that are there twice, and a
// default_share or a size with a unit that is too large.
func Schema() []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(schemaFile()); err != nil {
		panic(err) // it holds nothing that JSON cannot express
	}
	return b.Bytes()
}

// schema is the part of JSON Schema that a limit file needs, its keywords in the
// order in which a person reads them.
type schema struct {
	Schema      string   `json:"$schema,omitempty"`
	ID          string   `json:"$id,omitempty"`
	Title       string   `json:"title,omitempty"`
	Description string   `json:"description,omitempty"`
	Ref         string   `json:"$ref,omitempty"`
	Type        any      `json:"type,omitempty"` // a name or a list of them
	Const       any      `json:"const,omitempty"`
	Pattern     string   `json:"pattern,omitempty"`
	Minimum     *int     `json:"minimum,omitempty"`
	Maximum     *int     `json:"maximum,omitempty"`
	Examples    []any    `json:"examples,omitempty"`
	AnyOf       []schema `json:"anyOf,omitempty"`

	Required      []string          `json:"required,omitempty"`
	MinProperties int               `json:"minProperties,omitempty"`
	PropertyNames *schema           `json:"propertyNames,omitempty"`
	Properties    map[string]schema `json:"properties,omitempty"`
	Additional    any               `json:"additionalProperties,omitempty"` // false or a schema

	Defs map[string]schema `json:"$defs,omitempty"`
}

// The patterns of what is text in a limit file. They mean the same in Go and in
// ECMAScript, which JSON Schema uses.
const (
	unlimitedPattern = `^unlimited$`
	sizePattern      = `^[1-9][0-9]*(kB|MB|GB|KiB|MiB|GiB|TiB)?$`
	tierNamePattern  = `^[^~\x00-\x1f\x7f][^\x00-\x1f\x7f]{0,99}$`

	// From 1ms to 30000ms, or from 0.001s to 30s.
	waitPattern = `^(refuse|wait (([1-9][0-9]{0,3}|[12][0-9]{4}|30000)ms` +
		`|(([1-9]|[12][0-9])(\.[0-9]{1,3})?|30(\.0{1,3})?|0\.([1-9][0-9]{0,2}|0[1-9][0-9]?|00[1-9]))s))$`
)

// schemaFile describes the whole file. Its field names are those of fileFields,
// tierFields, userFields, bandwidthFields and overLimitFields.
func schemaFile() schema {
	return schema{
		Schema:      "https://json-schema.org/draft/2020-12/schema",
		ID:          "https://github.com/sluice-qos/sluice/config/limits.schema.json",
		Title:       "Limit file of Sluice",
		Description: "What each user of an HTTP service may do, summed over the whole cluster. What is not named is not limited.",
		Type:        "object",
		Required:    []string{"version", "default_tier", "tiers"},
		Properties: map[string]schema{
			"version":      {Title: "Version of this format", Description: "The only one is 1.", Const: 1},
			"default_tier": tierRef("Default tier", "The tier of users whom the file does not name."),
			"tiers": {
				Title: "Tiers", Description: "Sets of limits, by name: 1 to 100 bytes without control characters, and no ~ in front.",
				Type: "object", MinProperties: 1, PropertyNames: &schema{Pattern: tierNamePattern}, Additional: ref("tier"),
				Examples: []any{json.RawMessage(`{"free":{"requests":{"GET":100,"*":200},"concurrent":10}}`)},
			},
			"users": {
				Title: "Users", Description: "The users who have another tier than the default one, or limits of their own, by name.",
				Type: []string{"object", "null"}, PropertyNames: &schema{Pattern: `^[\s\S]`}, Additional: ref("user"),
				Examples: []any{json.RawMessage(`{"alice":"pro","bob":{"tier":"pro","concurrent":250}}`)},
			},
		},
		Additional: false,
		Defs: map[string]schema{
			"tier": {
				Title: "Tier", Description: "The limits of each user of this tier. {} limits nothing.",
				Type: "object", Properties: limitFields(), Additional: false,
			},
			"user": {
				Title: "User", Description: "The name of a tier, or a mapping that overrides some limits of one. An override replaces what it names and nothing else.",
				AnyOf: []schema{
					tierRef("Tier", "The user has the limits of this tier."),
					{
						Type: "object", Additional: false,
						Properties: with(limitFields(), "tier", tierRef("Tier", "The tier whose limits are overridden; the default tier if it is left out.")),
					},
				},
			},
			"perSecond":  count("Requests per second", "Over the whole cluster: a whole number from 1, or unlimited.", MaxPerSecond, 100),
			"concurrent": count("Requests in progress", "At the same time, over the whole cluster: a whole number from 1, or unlimited.", MaxConcurrent, 10),
			"size": {
				Title: "Size", Description: "Bytes per second: a whole number with kB, MB, GB (powers of 1000), KiB, MiB, GiB, TiB (powers of 1024) or without a unit, at most 1TiB; or unlimited.",
				AnyOf: []schema{
					{Type: "integer", Minimum: number(1), Maximum: number(MaxBandwidth)},
					{Type: "string", Pattern: sizePattern},
					{Type: "string", Pattern: unlimitedPattern},
				},
				Examples: []any{"10MiB", "500kB", 5000, unlimited},
			},
		},
	}
}

// limitFields are the fields that tiers and users share.
func limitFields() map[string]schema {
	rates := map[string]schema{}
	for _, class := range classes {
		rates[class] = *ref("perSecond")
	}
	return map[string]schema{
		"requests": {
			Title:       "Request rates",
			Description: `Requests per second by class; "*" is all classes together, OTHER every method without a class of its own. A request counts against its class and "*". unlimited lifts them all.`,
			AnyOf:       []schema{{Type: "object", Properties: rates, Additional: false}, {Type: "string", Pattern: unlimitedPattern}},
			Examples:    []any{json.RawMessage(`{"GET":100,"*":200}`), unlimited},
		},
		"concurrent": *ref("concurrent"),
		"bandwidth": {
			Title: "Bandwidth", Description: "Bytes per second, over the whole cluster. unlimited lifts both directions.",
			AnyOf: []schema{
				{Type: "object", Additional: false, Properties: map[string]schema{
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
			Type: "object", Additional: false,
			Properties: map[string]schema{"concurrent": {
				Title:       "Over the limit of requests in progress",
				Description: "refuse at once, or wait for room: for 1ms to 30s, in whole milliseconds.",
				Type:        "string", Pattern: waitPattern, Examples: []any{"refuse", "wait 2s", "wait 250ms"},
			}},
		},
		"priority": {
			Title: "Priority", Description: "When the servers are full, the lowest is served first: from -2047 to 2047; 0 if not said.",
			Type: "integer", Minimum: number(-MaxPriority), Maximum: number(MaxPriority), Examples: []any{-10, 100},
		},
	}
}

func count(title, description string, most, example int) schema {
	return schema{
		Title: title, Description: description,
		AnyOf: []schema{
			{Type: "integer", Minimum: number(1), Maximum: number(most)},
			{Type: "string", Pattern: unlimitedPattern},
		},
		Examples: []any{example, unlimited},
	}
}

// tierRef describes the name of a tier. A name that looks like a number is one.
func tierRef(title, description string) schema {
	return schema{Title: title, Description: description, Type: []string{"string", "number"}, Examples: []any{"free"}}
}

func described(title, description string) schema {
	s := *ref("size")
	s.Title, s.Description = title, description
	return s
}

func ref(def string) *schema { return &schema{Ref: "#/$defs/" + def} }

func number(n int) *int { return &n }

func with(fields map[string]schema, name string, s schema) map[string]schema {
	fields[name] = s
	return fields
}
