package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/cause"
)

// document is docs/api.openapi.yaml, as far as it is used; a key that is not here is
// an error.
type document struct {
	OpenAPI    string         `yaml:"openapi"`
	Info       map[string]any `yaml:"info"`
	Servers    []map[string]string
	Security   []map[string][]string
	Paths      map[string]struct{ Get, Put, Delete, Post operation }
	Components struct {
		Parameters map[string]*parameter
		Responses  map[string]*response
		Schemas    map[string]*schema

		SecuritySchemes map[string]struct{ Type, Scheme, Description string } `yaml:"securitySchemes"`
	}

	used map[string]bool // references
}

type operation struct {
	OperationID          string `yaml:"operationId"`
	Summary, Description string
	Parameters           []*parameter
	RequestBody          *requestBody `yaml:"requestBody"`
	Responses            map[string]*response
}

type requestBody struct {
	Required bool
	Content  map[string]struct{ Schema *schema }
}

type parameter struct {
	Ref                   string `yaml:"$ref"`
	Name, In, Description string
	Required              bool
	Explode               *bool // false: a list has commas
	Schema                *schema
}

type response struct {
	Ref         string `yaml:"$ref"`
	Description string
	Content     map[string]struct{ Schema *schema }
}

type schema struct {
	Ref, Description, Format, Pattern string
	Type                              any // a name, or a list of them
	Enum, Required                    []string
	Default                           any
	Properties                        map[string]*schema
	Items                             *schema
	Additional                        *schema `yaml:"additionalproperties"` // of an object that is a map
	AllOf                             []*schema
	Minimum, Maximum                  *int
	MaxItems, MinLength, MaxLength    int
}

// UnmarshalYAML takes the names that are no plain lower-case ones.
func (s *schema) UnmarshalYAML(n *yaml.Node) error {
	for i := 0; i < len(n.Content); i += 2 {
		key := n.Content[i]
		switch key.Value {
		case "$ref", "allOf", "maxItems", "minLength", "maxLength", "additionalProperties":
			key.Value = strings.ToLower(strings.TrimPrefix(key.Value, "$"))
		case "description", "format", "pattern", "type", "enum", "required", "default", "properties", "items", "minimum", "maximum":
		default:
			return fmt.Errorf("line %d: unknown key %s of a schema", key.Line, key.Value)
		}
	}
	type plain schema
	return n.Decode((*plain)(s))
}

func readDocument(t *testing.T) *document {
	t.Helper()
	f, err := os.Open("../../../docs/api.openapi.yaml")
	testkit.Must(t, err)
	defer f.Close()
	d := &document{used: map[string]bool{}}
	decoder := yaml.NewDecoder(f)
	decoder.KnownFields(true)
	testkit.Must(t, decoder.Decode(d))
	if !strings.HasPrefix(d.OpenAPI, "3.1.") {
		t.Errorf("openapi %s, want 3.1", d.OpenAPI)
	}
	return d
}

// refer follows a reference into one of the components' maps.
func refer[V any](t *testing.T, d *document, ref, kind string, in map[string]*V) *V {
	t.Helper()
	name, ok := strings.CutPrefix(ref, "#/components/"+kind+"/")
	if !ok || in[name] == nil {
		t.Fatalf("the document has no %s", ref)
	}
	d.used[kind+"/"+name] = true
	return in[name]
}

func (d *document) schema(t *testing.T, s *schema) *schema {
	if s != nil && s.Ref != "" {
		return refer(t, d, s.Ref, "schemas", d.Components.Schemas)
	}
	return s
}

func (d *document) parameter(t *testing.T, p *parameter) *parameter {
	if p.Ref != "" {
		return refer(t, d, p.Ref, "parameters", d.Components.Parameters)
	}
	return p
}

func (d *document) response(t *testing.T, r *response) *response {
	if r.Ref != "" {
		return refer(t, d, r.Ref, "responses", d.Components.Responses)
	}
	return r
}

// fields are the properties and the required ones, with those of allOf.
func (d *document) fields(t *testing.T, s *schema) (properties map[string]*schema, required []string) {
	properties, required = maps.Clone(s.Properties), slices.Clone(s.Required)
	if properties == nil {
		properties = map[string]*schema{}
	}
	for _, part := range s.AllOf {
		more, needed := d.fields(t, d.schema(t, part))
		maps.Copy(properties, more)
		required = append(required, needed...)
	}
	return properties, required
}

// differences are those of an answer to a schema. All is whether it has each property;
// otherwise it has the required ones alone.
func (d *document) differences(t *testing.T, at string, s *schema, answer any, all bool) (found []string) {
	s = d.schema(t, s)
	if s == nil {
		return []string{at + " has no schema"}
	}
	is := func(name string) bool {
		list, ok := s.Type.([]any)
		return s.Type == name || ok && slices.Contains(list, any(name))
	}
	wrong := func(want string) []string {
		return []string{fmt.Sprintf("%s is of type %v, want %s", at, s.Type, want)}
	}
	switch v := answer.(type) {
	case map[string]any:
		properties, required := d.fields(t, s)
		if len(s.AllOf) == 0 && !is("object") {
			return wrong("object")
		}
		if s.Additional != nil {
			for name, value := range v {
				found = append(found, d.differences(t, at+"."+name, s.Additional, value, all)...)
			}
			return found
		}
		want := required
		if all {
			want = slices.Collect(maps.Keys(properties))
		}
		slices.Sort(want)
		if got := slices.Sorted(maps.Keys(v)); !slices.Equal(got, want) {
			found = append(found, fmt.Sprintf("%s: the server answers %q, the document has %q", at, got, want))
		}
		for name, value := range v {
			found = append(found, d.differences(t, at+"."+name, properties[name], value, all)...)
		}
	case []any:
		if !is("array") {
			return wrong("array")
		}
		for _, item := range v {
			found = append(found, d.differences(t, at+"[]", s.Items, item, all)...)
		}
	case string:
		_, err := time.Parse(time.RFC3339Nano, v)
		switch {
		case !is("string"):
			return wrong("string")
		case (err == nil) != (s.Format == "date-time"):
			return []string{fmt.Sprintf("%s is of format %q, the server answers %q", at, s.Format, v)}
		case len(s.Enum) > 0 && !slices.Contains(s.Enum, v):
			return []string{fmt.Sprintf("%s is one of %q, the server answers %q", at, s.Enum, v)}
		}
	case bool:
		if !is("boolean") {
			return wrong("boolean")
		}
	case float64: // in an answer with everything integers alone are integral
		switch integral := v == float64(int64(v)); {
		case !integral && !is("number"):
			return wrong("number")
		case integral && !is("integer") && (all || !is("number")):
			return wrong("integer")
		}
	case nil:
		if !is("null") {
			return wrong("null")
		}
	}
	return found
}

// words are all values of the types that have few.
var words = map[reflect.Type][]string{
	reflect.TypeFor[api.State]():   {string(api.OK), string(api.Throttled), string(api.Blocked), string(api.Spent), string(api.Denied)},
	reflect.TypeFor[api.Reason]():  {string(api.RequestRate), string(api.ConcurrentRequests), string(api.Cost), string(api.LimitZero)},
	reflect.TypeFor[cause.Cause](): {string(cause.ThrottleTable), string(cause.BlockTable)},
	reflect.TypeFor[api.Kind]():    {string(api.Throttle), string(api.Block), string(api.Unblock), string(api.Refused)},
	reflect.TypeFor[api.EventKind](): {string(api.ThrottleEvent), string(api.BlockEvent), string(api.UnblockEvent),
		string(api.LimitsEvent), string(api.OverrideEvent), string(api.LostEvent)},
}

var sampleTime = time.Date(2026, 11, 20, 12, 30, 0, 250e6, time.UTC)

// fill gives every field a value that is not its zero value, and its slices one for
// each of the words of their fields.
func fill(v reflect.Value, i int) {
	if all := words[v.Type()]; all != nil {
		v.SetString(all[i%len(all)])
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(sampleTime))
			return
		}
		for j := range v.NumField() {
			if !setMode(v, j, i) {
				fill(v.Field(j), i)
			}
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), i)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 4, 4))
		for j := range v.Len() {
			fill(v.Index(j), j)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		value := reflect.New(v.Type().Elem()).Elem()
		fill(value, i)
		v.SetMapIndex(reflect.ValueOf("x"), value)
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float64:
		v.SetFloat(1.5)
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint64:
		v.SetUint(7)
	default:
		panic("no value for " + v.Type().String())
	}
}

// sample answers with everything that there may be, or with what there always is.
type sample struct{ all bool }

func sampled[V any](s sample, set func(*V)) V {
	var v V
	if s.all {
		fill(reflect.ValueOf(&v).Elem(), 0)
	} else {
		blank(reflect.ValueOf(&v).Elem())
	}
	set(&v)
	return v
}

// blank gives fields their zero values, and slices one element of them, where they are
// not absent then.
func blank(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		if v.Type() != reflect.TypeFor[time.Time]() {
			for j := range v.NumField() {
				absent := strings.HasSuffix(v.Type().Field(j).Tag.Get("json"), ",omitempty")
				if !absent && !setMode(v, j, 0) {
					blank(v.Field(j))
				}
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		blank(v.Index(0))
	case reflect.String:
		if all := words[v.Type()]; all != nil {
			v.SetString(all[0])
		}
	}
}

// setMode gives a mode, which is a plain string in Go, a word that there is.
func setMode(v reflect.Value, field, i int) bool {
	if v.Type().Field(field).Name != "Mode" {
		return false
	}
	v.Field(field).SetString([]string{"enforce", "dry-run"}[i%2])
	return true
}

func (s sample) Users(by api.Sort, _ int) api.Users {
	return sampled(s, func(u *api.Users) { u.Sort = by })
}

func (s sample) UnknownUsers(by api.Sort, _ int) api.UnknownUsers {
	return sampled(s, func(u *api.UnknownUsers) { u.Sort = by })
}
func (s sample) User(api.Who) api.User    { return sampled(s, func(*api.User) {}) }
func (s sample) Instances() api.Instances { return sampled(s, func(*api.Instances) {}) }

func (s sample) Jobs(context.Context, int) api.Jobs {
	return sampled(s, func(*api.Jobs) {})
}

func (s sample) Job(context.Context, int64) (api.Job, error) {
	return sampled(s, func(*api.Job) {}), nil
}

// once is a stream of one message.
func once(event string, value any) (<-chan *api.Message, func(), error) {
	messages := make(chan *api.Message, 1)
	messages <- &api.Message{Event: event, Value: value}
	close(messages)
	return messages, func() {}, nil
}

func (s sample) Watch(q api.Question) (<-chan *api.Message, func(), error) {
	return once("live", sampled(s, func(l *api.Live) { l.Sort = q.Sort }))
}

func (s sample) Policies(api.Filter) (<-chan *api.Message, func(), error) {
	return once("throttle", sampled(s, func(*api.Event) {}))
}

func (s sample) History(api.Who) api.History { return sampled(s, func(*api.History) {}) }

func (s sample) Events(context.Context, api.Who) (api.Events, error) {
	return sampled(s, func(*api.Events) {}), nil
}

// full has no stream for anybody.
type full struct{ sample }

func (full) Watch(api.Question) (<-chan *api.Message, func(), error) {
	return nil, nil, errors.New("too many")
}

func (full) Policies(api.Filter) (<-chan *api.Message, func(), error) {
	return nil, nil, errors.New("too many")
}

func (full) Events(context.Context, api.Who) (api.Events, error) {
	return api.Events{}, api.ErrUnavailable
}

func (full) Job(context.Context, int64) (api.Job, error) { return api.Job{}, api.ErrNoWorker }

// jobless knows of no job.
type jobless struct{ sample }

func (jobless) Job(context.Context, int64) (api.Job, error) { return api.Job{}, api.ErrNoJob }

// asPath is a path of the document with values for what is in it.
func asPath(path string) string {
	return strings.NewReplacer("{user}", "alice", "{id}", "7").Replace(path)
}

// ask asks the server, with whatever the header has beside.
func ask(t *testing.T, source API, method, path string, header http.Header) (status int, contentType string, answer any) {
	t.Helper()
	w, r := httptest.NewRecorder(), httptest.NewRequest(method, path, nil)
	maps.Copy(r.Header, header)
	handler(source).ServeHTTP(w, r)
	contentType, _, _ = strings.Cut(w.Header().Get("Content-Type"), ";")
	text := w.Body.String()
	if contentType == "text/event-stream" {
		_, text, _ = strings.Cut(text, "data: ")
		text = cmp.Or(text, "{}") // no event
	}
	if strings.HasPrefix(contentType, "text/plain") {
		answer = text
	} else if err := json.Unmarshal([]byte(text), &answer); err != nil {
		t.Errorf("%s %s = %s: %v", method, path, text, err)
	}
	return w.Code, contentType, answer
}

func report(t *testing.T, what string, found []string) {
	t.Helper()
	for _, f := range found {
		t.Errorf("%s: %s", what, f)
	}
}

// Every path, status and field of the answers is in the document with its type, and
// the other way round; what the document requires is always there, and nothing else.
func TestOpenAPIAnswers(t *testing.T) {
	d := readDocument(t)
	_, _, missing := ask(t, sample{}, "GET", "/api/v1/none", nil)
	_, list, _ := strings.Cut(missing.(map[string]any)["error"].(string), "(valid: ")
	served := strings.Split(strings.TrimSuffix(list, ")"), ", ")
	slices.Sort(served)
	if documented := slices.Sorted(maps.Keys(d.Paths)); !slices.Equal(documented, served) {
		t.Fatalf("paths of the document %q, of the server %q", documented, served)
	}
	d.answersOverrides(t)
	for path, item := range d.Paths {
		if handPath(path) {
			continue
		}
		asked := asPath(path)
		seen := map[string]bool{}
		check := func(what string, source API, path string, header http.Header, all bool) {
			t.Helper()
			status, contentType, answer := ask(t, source, "GET", path, header)
			code := fmt.Sprint(status)
			seen[code] = true
			r := item.Get.Responses[code]
			if r == nil {
				t.Errorf("GET %s: the document has no answer %s", path, code)
				return
			}
			report(t, "GET "+path+" "+what, d.differences(t, code, d.response(t, r).Content[contentType].Schema, answer, all))
		}
		check("with everything", sample{true}, asked, nil, true)
		check("with what always is", sample{false}, asked, nil, false)
		check("when there are too many streams, no Redis, and no worker", full{sample{true}}, asked, nil, true)
		check("when there is no job", jobless{sample{true}}, asked, nil, true)
		check("by another site", sample{}, asked, http.Header{"Sec-Fetch-Site": {"cross-site"}}, true)
		seen[d.unauthorized(t, "GET", asked, item.Get.Responses)] = true
		if strings.Contains(path, "{id}") {
			check("with a wrong id", sample{true}, strings.ReplaceAll(path, "{id}", "!"), nil, true)
		}
		for _, p := range item.Get.Parameters {
			if p = d.parameter(t, p); p.In == "query" {
				check("with a wrong "+p.Name, sample{true}, asked+"?"+p.Name+"=%21", nil, true) // so the server reads it
				for _, value := range p.Schema.Enum {
					check("with "+p.Name+"="+value, sample{true}, asked+"?"+p.Name+"="+value, nil, true)
				}
			}
		}
		if documented, got := slices.Sorted(maps.Keys(item.Get.Responses)), slices.Sorted(maps.Keys(seen)); !slices.Equal(documented, got) {
			t.Errorf("GET %s answers %q, the document has %q", path, got, documented)
		}
		if item.Get.OperationID == "" || item.Get.Summary == "" {
			t.Errorf("GET %s has no name or no summary", path)
		}
	}
	for kind, names := range map[string][]string{
		"schemas":    slices.Collect(maps.Keys(d.Components.Schemas)),
		"parameters": slices.Collect(maps.Keys(d.Components.Parameters)),
		"responses":  slices.Collect(maps.Keys(d.Components.Responses)),
	} {
		for _, name := range names {
			if !d.used[kind+"/"+name] {
				t.Errorf("the document has %s/%s, which no answer has", kind, name)
			}
		}
	}
	schemas := d.Components.Schemas
	for of, documented := range map[reflect.Type]*schema{
		reflect.TypeFor[api.State]():  schemas["State"],
		reflect.TypeFor[api.Reason](): schemas["Reason"],
		reflect.TypeFor[api.Kind]():   schemas["Decision"].Properties["kind"],

		reflect.TypeFor[api.EventKind](): schemas["Event"].Properties["kind"],
	} {
		if !slices.Equal(documented.Enum, words[of]) {
			t.Errorf("%v is one of %q, the document has %q", of, words[of], documented.Enum)
		}
	}
	for _, request := range [][2]string{{"GET", "/api/v1/none"}, {"POST", "/api/v1/users"}} {
		_, _, answer := ask(t, sample{}, request[0], request[1], nil)
		report(t, strings.Join(request[:], " "), d.differences(t, "error", d.Components.Schemas["Error"], answer, true))
	}
}

// What the document says of a parameter is what the server takes.
func TestOpenAPIParameters(t *testing.T) {
	d := readDocument(t)
	asks := func(path, name, value string) (int, string) {
		e := &echo{}
		if name != "" {
			path += "?" + url.Values{name: {value}}.Encode()
		}
		status, _, answer := ask(t, e, "GET", path, nil)
		if failed, ok := answer.(map[string]any)["error"].(string); ok {
			return status, failed
		}
		return status, e.asked
	}
	valid := regexp.MustCompile(`\(valid: (.*)\)$`)
	for path, item := range d.Paths {
		if handPath(path) {
			continue
		}
		var names []string
		asked := asPath(path)
		_, usual := asks(asked, "", "")
		for _, p := range item.Get.Parameters {
			p = d.parameter(t, p)
			s := d.schema(t, p.Schema)
			if list := s.Items; list != nil { // of words with commas: one is one of them
				if usual, ok := s.Default.([]any); p.Explode == nil || *p.Explode || !ok || len(usual) > 0 {
					t.Errorf("GET %s has %s of %+v, want a list with commas, usually none", path, p.Name, s)
				}
				s = &schema{Enum: list.Enum, Default: ""}
			}
			names = append(names, p.In+" "+p.Name)
			want := func(value string, status int) {
				t.Helper()
				got, told := asks(asked, p.Name, value)
				if p.In == "path" {
					got, told = asks(strings.ReplaceAll(path, "{"+p.Name+"}", value), "", "")
				}
				if got != status {
					t.Errorf("GET %s with %s=%.40s = %d %.80s, want %d", path, p.Name, value, got, told, status)
				}
			}
			if p.In == "query" {
				if _, told := asks(asked, p.Name, fmt.Sprint(s.Default)); told != usual || s.Default == nil {
					t.Errorf("GET %s with %s=%v asks %s, without it %s", path, p.Name, s.Default, told, usual)
				}
			}
			if len(s.Enum) > 0 {
				_, told := asks(asked, p.Name, "!")
				if m := valid.FindStringSubmatch(told); m == nil || m[1] != strings.Join(s.Enum, ", ") {
					t.Errorf("GET %s takes a %s (%s), the document has %q", path, p.Name, told, s.Enum)
				}
			}
			for _, value := range s.Enum {
				want(value, 200)
			}
			if s.Minimum != nil && s.Maximum != nil {
				want(fmt.Sprint(*s.Minimum), 200)
				want(fmt.Sprint(*s.Minimum-1), 400)
				want(fmt.Sprint(*s.Maximum), 200)
				want(fmt.Sprint(*s.Maximum+1), 400)
			}
			if s.MaxLength > 0 {
				want(strings.Repeat("x", s.MinLength), 200)
				if s.MinLength > 0 {
					want(strings.Repeat("x", s.MinLength-1), 400)
				}
				want(strings.Repeat("x", s.MaxLength), 200)
				want(strings.Repeat("x", s.MaxLength+1), 400)
			}
			if s.Pattern != "" {
				pattern := regexp.MustCompile(s.Pattern)
				for _, value := range []string{"", "a", "-a", "a-", "s3-eu", "A", "a.b", "9", strings.Repeat("x", 24), strings.Repeat("x", 25), "ü", "a\n",
					"rate", "cost:tokens", "cost:a_b", "cost:", "cost", "cost:A", "cost:a/b", "cost:" + strings.Repeat("x", 24), "cost:" + strings.Repeat("x", 25), "rate,up"} {
					want(value, map[bool]int{true: 200, false: 400}[pattern.MatchString(value)])
				}
			}
		}
		// The names that the server reads are those that its package comment tells.
		if documented, read := strings.Join(names, ", "), map[string]string{
			"/api/v1/users":         "query sort, query n",
			"/api/v1/users/{user}":  "path user, query by",
			"/api/v1/unknown-users": "query sort, query n",
			"/api/v1/jobs":          "query n",
			"/api/v1/jobs/{id}":     "path id",

			"/api/v1/live":           "query sort, query n, query user, query by",
			"/api/v1/history/{user}": "path user, query by",
			"/api/v1/events/{user}":  "path user, query by",
			"/api/v1/policies":       "query user, query by, query kind",
		}[path]; documented != read {
			t.Errorf("GET %s reads %q, the document has %q", path, read, documented)
		}
	}
}

// unauthorized is the answer to who asks without a token, which the document has.
func (d *document) unauthorized(t *testing.T, method, path string, responses map[string]*response) (code string) {
	t.Helper()
	g, _ := gated(t, annsToken)
	w := httptest.NewRecorder()
	daemon.AdminHandler(daemon.AdminOptions{Gatherer: prometheus.NewRegistry(), Gate: g, Routes: Routes(sample{}, nil, nil)}).ServeHTTP(w, httptest.NewRequest(method, path, nil))
	var answer any
	if err := json.Unmarshal(w.Body.Bytes(), &answer); w.Code != http.StatusUnauthorized || err != nil {
		t.Errorf("%s %s without a token = %d %s, want 401 in JSON", method, path, w.Code, w.Body)
	}
	code = fmt.Sprint(w.Code)
	if responses[code] == nil {
		t.Errorf("%s %s: the document has no answer %s", method, path, code)
		return code
	}
	report(t, method+" "+path+" without a token", d.differences(t, code, d.response(t, responses[code]).Content["application/json"].Schema, answer, true))
	return code
}

// The document says how a token is sent, and that it may not be asked for.
func TestOpenAPISecurity(t *testing.T) {
	d := readDocument(t)
	if want := []map[string][]string{{"token": {}}, {}}; !reflect.DeepEqual(d.Security, want) {
		t.Errorf("security is %v, want %v", d.Security, want)
	}
	if s := d.Components.SecuritySchemes["token"]; len(d.Components.SecuritySchemes) != 1 || s.Type != "http" || s.Scheme != "bearer" || s.Description == "" {
		t.Errorf("the security schemes are %v, want token by bearer", d.Components.SecuritySchemes)
	}
}
