package haproxy

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// client is who every test's client is when nothing else names it.
const client = "127.0.0.1"

func basic(credentials string) string {
	return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(credentials))
}

func bearer(payload string) string {
	enc := base64.RawURLEncoding.EncodeToString
	return "Authorization: Bearer " + enc([]byte(`{"alg":"none"}`)) + "." + enc([]byte(payload)) + "."
}

// presigned4 and presigned2 are the queries of whole presigned URLs.
func presigned4(credential string) string {
	return "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=" + credential +
		"&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host&X-Amz-Signature=aeeed9bb"
}

func presigned2(id string) string {
	return "AWSAccessKeyId=" + id + "&Expires=1175139620&Signature=NpgCjnDzrM%2BWFzoENXmpNDUsSn8%3D"
}

func TestIdentify(t *testing.T) {
	const v4 = "Authorization: AWS4-HMAC-SHA256 "
	const scope = "/20130524/us-east-1/s3/aws4_request"
	const unreadable = limits.UnreadableKey
	type row struct {
		name   string
		target string // "/" when empty
		header []string
		want   string
	}
	r := shared(t, withChains)
	for _, chain := range []struct {
		identify string
		rows     []row
	}{
		{"header:X-Account,header:X-User,ip", []row{
			{"named", "", []string{"X-Account: alice"}, "alice"},
			{"no header", "", nil, client},
			{"empty header", "", []string{"X-Account:"}, client},
			{"empty header, then another", "", []string{"X-Account: ", "X-User: bob"}, "bob"},
			{"first of the chain wins", "", []string{"X-User: bob", "X-Account: alice"}, "alice"},
			{"last of several headers", "", []string{"X-Account: alice", "X-Account: carol"}, "carol"},
			{"commas belong to the name", "", []string{"X-Account: Doe, Jane"}, "Doe, Jane"},
			{"credentials are not asked", "", []string{basic("eve:x")}, client},
		}},
		{"s3,ip", []row{
			{"v4", "", []string{v4 + "Credential=AKID" + scope + ", SignedHeaders=host;x-amz-date, Signature=fe5f"}, "AKID"},
			{"v4 without blanks", "", []string{v4 + "Credential=AKID" + scope + ",SignedHeaders=host,Signature=fe5f"}, "AKID"},
			{"v4 credential second", "", []string{v4 + "SignedHeaders=host, Credential=AKID" + scope + ", Signature=fe5f"}, "AKID"},
			{"v4 credential last, no blanks", "", []string{v4 + "SignedHeaders=host,Signature=fe5f,Credential=AKID" + scope}, "AKID"},
			{"v4 with two blanks and a tab", "", []string{v4 + " \tCredential=AKID" + scope + ", Signature=fe5f"}, "AKID"},
			{"v4 id with other characters", "", []string{v4 + "Credential=A-_.~@!$&'()*+<>?{}|^ZoëK" + scope + ", Signature=fe5f"}, "A-_.~@!$&'()*+<>?{}|^ZoëK"},
			{"v4 id with equals signs", "", []string{v4 + "Credential=A=K=" + scope + ", Signature=fe5f"}, unreadable},
			{"v4 other field that ends like it", "", []string{v4 + "XCredential=EVE" + scope + ", Credential=AKID" + scope}, unreadable},
			{"v4a", "", []string{"Authorization: AWS4-ECDSA-P256-SHA256 Credential=AKID/20130524/s3/aws4_request, Signature=fe"}, "AKID"},
			{"v4 without a credential", "", []string{v4 + "SignedHeaders=host, Signature=fe5f"}, unreadable},
			{"v4 with an empty id", "", []string{v4 + "Credential=/x, Signature=fe5f"}, unreadable},
			{"v2", "", []string{"Authorization: AWS AKID:frJIUN8DYpKDtOLCwo//yllqDzg="}, "AKID"},
			{"v2 with two blanks", "", []string{"Authorization: AWS  AKID:sig"}, "AKID"},
			{"v2 without an id", "", []string{"Authorization: AWS :sig"}, unreadable},
			{"presigned v4", "/b/k?" + presigned4("AKID%2F20130524%2Fus-east-1%2Fs3%2Faws4_request"), nil, "AKID"},
			{"presigned v4, lower-case and bare slashes", "/?" + presigned4("AKID%2f2013/s3"), nil, "AKID"},
			{"presigned v4 with an encoded id", "/?" + presigned4("A%4bID%2F2013"), nil, "AKID"},
			{"presigned v4 with other parameters", "/b/k?versionId=%2F&X-Amz-Security-Token=a%3Bb&" + presigned4("AKID%2F2013") + "&x-id=GetObject", nil, "AKID"},
			{"presigned v4a", "/b/k?" + strings.Replace(presigned4("AKID%2F2013"), "HMAC-SHA256", "ECDSA-P256-SHA256", 1), nil, "AKID"},
			{"presigned v2", "/b/k?" + presigned2("AKID"), nil, "AKID"},
			{"a URL in a value", "/?from=https://s3/%3F" + url.QueryEscape(presigned4("EVE/1")) + "&%2e=%zz", nil, client},
			{"no credentials", "/b?list-type=2&prefix=a%2Fb&x-amz-acl=private", nil, client},
		}},
		{"jwt:sub,ip", []row{
			{"claim", "", []string{bearer(`{"sub":"alice","iat":1}`)}, "alice"},
			{"scheme in lower case", "", []string{strings.Replace(bearer(`{"sub":"alice"}`), "Bearer", "bearer", 1)}, "alice"},
			{"UTF-8", "", []string{bearer(`{"sub":"Zoë"}`)}, "Zoë"},
			{"a number is text", "", []string{bearer(`{"sub":42}`)}, "42"},
			{"a number of seven digits", "", []string{bearer(`{"sub":1234567}`)}, "1234567"},
			{"its neighbour", "", []string{bearer(`{"sub":1234568}`)}, "1234568"},
			{"a negative number", "", []string{bearer(`{"sub":-1234567}`)}, "-1234567"},
			{"digits as text", "", []string{bearer(`{"sub":"12345678901234567890"}`)}, "12345678901234567890"},
			{"the largest number that JSON has for sure", "", []string{bearer(`{"sub":9007199254740991}`)}, "9007199254740991"},
			{"a larger one", "", []string{bearer(`{"sub":9007199254740993}`)}, unreadable},
			{"one of 21 digits", "", []string{bearer(`{"sub":123456789012345678901}`)}, unreadable},
			{"a truth value is text", "", []string{bearer(`{"sub":true}`)}, "1"},
			{"empty claim", "", []string{bearer(`{"sub":""}`)}, unreadable},
			{"no claim", "", []string{bearer(`{"user":"alice"}`)}, unreadable},
			{"claim of an inner object", "", []string{bearer(`{"x":{"sub":"alice"}}`)}, unreadable},
			{"not a token", "", []string{"Authorization: Bearer abc"}, unreadable},
			{"payload not JSON", "", []string{bearer(`sub`)}, unreadable},
			{"other scheme", "", []string{basic("bob:x")}, unreadable},
		}},
		{"jwt:tenant.id , jwt:uid", []row{
			{"inner claim", "", []string{bearer(`{"tenant":{"id":"acme"},"uid":"u1"}`)}, "acme"},
			{"second claim", "", []string{bearer(`{"uid":"u1"}`)}, "u1"},
			{"nobody", "", nil, "~"},
		}},
		{"basic,ip", []row{
			{"user", "", []string{basic("bob:secret")}, "bob"},
			{"colons in the password", "", []string{basic("bob:a:b")}, "bob"},
			{"scheme in upper case", "", []string{strings.Replace(basic("bob:x"), "Basic", "BASIC", 1)}, "bob"},
			{"empty user", "", []string{basic(":x")}, unreadable},
			{"not base64", "", []string{"Authorization: Basic ***"}, unreadable},
			{"NUL is not the user before it", "", []string{basic("a\x00b:x")}, unreadable},
			{"control byte", "", []string{basic("a\x01b:x")}, limits.Key("a\x01b")},
			{"capital letters", "", []string{basic("BoB@Example.COM:X")}, "bob@example.com"},
			{"not beyond A to Z", "", []string{basic("ZoË:x")}, "zoË"},
		}},
		{"auto", []row{
			{"S3", "", []string{"X-User: eve", "Authorization: AWS AKID:sig"}, "AKID"},
			{"token before header", "", []string{"X-User: eve", bearer(`{"sub":"alice"}`)}, "alice"},
			{"Basic before header", "", []string{"X-User: eve", basic("bob:x")}, "bob"},
			{"no header", "", []string{"X-User: carol"}, client},
			{"a parameter of S3's is no presigned URL", "/api?AWSAccessKeyId=random", []string{bearer(`{"sub":"alice"}`)}, "alice"},
			{"presigned", "/b/k?" + presigned2("AKID"), nil, "AKID"},
			{"address last", "", nil, client},
		}},
		{"basic:exact,jwt:email:lower,header:X-User:lower", []row{
			{"Basic", "", []string{basic("Bob:x")}, "Bob"},
			{"token", "", []string{bearer(`{"email":"Bob@Example.com"}`)}, "bob@example.com"},
			{"header", "", []string{"X-User: BOB"}, "bob"},
		}},
		{"jwt,header,basic", []row{
			{"what a later link can read is not unreadable", "", []string{"X-User: eve", basic("bob:x")}, "bob"},
			{"what none can read is", "", []string{"X-User: eve", basic("bob")}, unreadable},
			{"no credentials", "", []string{"X-User: carol"}, "carol"},
		}},
		{"header,s3,jwt,basic", []row{
			{"credentials are not asked behind a header", "/?" + presigned2("AKID"), []string{"X-User: carol", "Authorization: Digest x", "Authorization: y"}, "carol"},
			{"but without one", "/", []string{"Authorization: Digest x"}, unreadable},
		}},
		{"ip,header", []row{
			{"an address is always found", "", []string{"X-User: eve"}, client},
			{"credentials are not asked", "", []string{"X-User: eve", "Authorization: Digest x"}, client},
		}},
		// A chain that reads no Authorization header leaves it to the origin, and one without s3 the query.
		{"header,ip", []row{
			{"Digest", "", []string{"X-User: eve", "Authorization: Digest x"}, "eve"},
		}},
		{"jwt,ip,header", []row{
			{"Digest", "", []string{"X-User: eve", "Authorization: Digest x"}, unreadable},
		}},
		{"basic,header", []row{
			{"Digest", "", []string{"X-User: eve", "Authorization: Digest x"}, unreadable},
			{"a presigned query", "/?x-amz-credential=A&" + presigned2("AKID"), []string{"X-User: eve"}, "eve"},
		}},
	} {
		for _, row := range chain.rows {
			t.Run(chain.identify+" "+row.name, func(t *testing.T) {
				target := row.target
				if target == "" {
					target = "/"
				}
				got := r.byChain(t, chain.identify, httpGET(target, row.header...))
				if got.Status != 200 {
					t.Fatalf("status = %d, want 200", got.Status)
				}
				if diff := cmp.Diff([]question{{row.want, "GET"}}, r.takeAsked(t)); diff != "" {
					t.Errorf("asked about %q %q (-want +got):\n%s", target, row.header, diff)
				}
			})
		}
	}
}

// chains are those of the tests here. Each has a frontend of its own in one HAProxy; the last one denies what it cannot read.
var chains = []string{
	"auto", "header:X-Account,header:X-User,ip", "s3,ip", "jwt:sub,ip", "jwt:tenant.id , jwt:uid", "basic,ip", "basic:exact,ip",
	"basic:exact,jwt:email:lower,header:X-User:lower", "jwt,header,basic", "header,s3,jwt,basic", "ip,header", "header,ip", "jwt,ip,header", "basic,header", denying,
}

const denying = "s3,jwt,basic,header,ip"

var withChains = setup{Config: Config{Exempt: exempted}, edit: func(cfg string) string {
	var frontends strings.Builder
	for i, chain := range chains {
		text, err := Render(Config{Identify: chain})
		if err != nil {
			panic(err)
		}
		_, text, _ = strings.Cut(text, "\nfrontend http\n")
		text, _, _ = strings.Cut(text, "\nbackend asked\n")
		if chain == denying {
			text = strings.ReplaceAll(text, "${SLUICE_UNREADABLE-share}", "deny")
		}
		fmt.Fprintf(&frontends, "\nfrontend chain-%d\n%s\n", i,
			strings.Replace(text, `bind "${SLUICE_BIND-127.0.0.1:8080}"`, fmt.Sprintf(`bind "unix@${SLUICE_TEST_DIR-.}/%d.sock" accept-proxy`, i), 1))
	}
	return strings.Replace(cfg, "\nbackend asked\n", frontends.String()+"\nbackend asked\n", 1)
}}

// byChain sends a request to the frontend of a chain.
func (r *rig) byChain(t *testing.T, chain, raw string) answer {
	t.Helper()
	return sendTo(t, "unix", filepath.Join(r.dir, fmt.Sprintf("%d.sock", slices.Index(chains, chain))), from(client, raw))[0]
}

// An IPv6 client is its /64, and an IPv4 client of an IPv6 listener stays IPv4.
func TestIdentifyAddress(t *testing.T) {
	r := shared(t, usual)
	for address, want := range map[string]string{
		"192.0.2.7": "192.0.2.7", "2001:db8:1:2:3:4:5:6": "2001:db8:1:2::", "2001:db8:1:2:ffff::1": "2001:db8:1:2::", "::ffff:192.0.2.7": "192.0.2.7",
	} {
		r.sendFrom(t, address, httpGET("/"))
		if diff := cmp.Diff([]question{{want, "GET"}}, r.takeAsked(t)); diff != "" {
			t.Errorf("asked for %q (-want +got):\n%s", address, diff)
		}
	}
}

// Hostile names reach the agent as limits.Key spells them.
func TestKeys(t *testing.T) {
	r := shared(t, usual)
	names := map[string]string{
		"100 bytes":                 strings.Repeat("n", 100),
		"101 bytes":                 strings.Repeat("n", 101),
		"10 kB":                     strings.Repeat("n", 10_000),
		"same 10 kB but the end":    strings.Repeat("n", 9_999) + "m",
		"tilde in front":            "~alice",
		"a tilde alone":             "~",
		"looks like a hashed key":   limits.Key("a\x01b"),
		"at sign in front":          "@alice",
		"an at sign alone":          "@",
		"at sign inside":            "al@ice",
		"tilde inside":              "al~ice",
		"UTF-8":                     "Zoë ✓",
		"100 bytes of UTF-8":        strings.Repeat("ë", 50),
		"102 bytes of UTF-8":        strings.Repeat("ë", 51),
		"bytes that are not UTF-8":  "a\xff\xfeb",
		"separators and quotes":     `a|b, c:d;e%f$g{h}i"j'k\l b` + "`",
		"looks like an expression":  `%[src]${HOME}`,
		"looks like a table key":    "GET|alice",
		"tab":                       "a\tb",
		"control byte in the front": "\x01ab",
		"control byte at the end":   "ab\x01",
		"DEL":                       "a\x7fb",
	}
	for name, user := range names {
		t.Run(name, func(t *testing.T) {
			r.get(t, "X-User: "+user) // the origin may refuse such bytes
			if diff := cmp.Diff([]question{{limits.Key(user), "GET"}}, r.takeAsked(t)); diff != "" {
				t.Errorf("asked about %.80q (-want +got):\n%s", user, diff)
			}
		})
	}

	t.Run("larger than HAProxy's buffer", func(t *testing.T) {
		want := 400
		if versionAtLeast(t, 3, 2) {
			want = 431
		}
		got := r.get(t, "X-User: "+strings.Repeat("n", 200_000))
		if asked := r.takeAsked(t); got.Status != want || len(asked) != 0 {
			t.Errorf("200 kB of name: status %d, asked %v; want %d and nothing asked", got.Status, asked, want)
		}
	})

	// HAProxy 2.6 lets NUL in headers pass: the name is hashed whole, and no id has one. Later ones refuse it.
	for name, nul := range map[string]struct{ header, key string }{
		"NUL":             {"X-User: a\x00b", limits.Key("a\x00b")},
		"NUL in an S3 id": {"Authorization: AWS4-HMAC-SHA256 Credential=a\x00b/x, Signature=s", limits.UnreadableKey},
		"NUL in a v2 id":  {"Authorization: AWS a\x00b:sig", limits.UnreadableKey},
	} {
		t.Run(name, func(t *testing.T) {
			if got := r.get(t, nul.header); got.Status != 400 {
				t.Errorf("status = %d, want 400 from HAProxy or the origin", got.Status)
			}
			var want []question
			if !versionAtLeast(t, 3, 0) {
				want = []question{{nul.key, "GET"}}
			}
			if diff := cmp.Diff(want, r.takeAsked(t)); diff != "" {
				t.Errorf("asked about %q (-want +got):\n%s", nul.header, diff)
			}
		})
	}
}

// Whatever bytes a name has, the agent gets limits.Key of it: Basic credentials can
// have every byte but a colon, and NUL, which HAProxy does not read.
func TestAnyBytes(t *testing.T) {
	r := shared(t, withChains)
	rapid.Check(t, func(rt *rapid.T) {
		user := string(rapid.SliceOfN(rapid.Byte().Filter(func(b byte) bool { return b != ':' }), 1, 130).Draw(rt, "user"))
		want := limits.Key(user)
		if strings.Contains(user, "\x00") {
			want = limits.UnreadableKey
		}
		r.byChain(t, "basic:exact,ip", httpGET("/", basic(user+":x")))
		if diff := cmp.Diff([]question{{want, "GET"}}, r.takeAsked(t)); diff != "" {
			rt.Fatalf("asked about %q (-want +got):\n%s", user, diff)
		}
	})
}

func TestClass(t *testing.T) {
	r := shared(t, usual)
	for method, class := range map[string]string{
		"GET": "GET", "HEAD": "HEAD", "PUT": "PUT", "POST": "POST", "DELETE": "DELETE", "PATCH": "PATCH",
		"OPTIONS": "OPTIONS", "get": "GET", "PROPFIND": "OTHER", "TRACE": "OTHER", "X|Y": "OTHER", "GETT": "OTHER",
	} {
		t.Run(method, func(t *testing.T) {
			r.send(t, httpRequest(method, "/", "X-User: alice", "Content-Length: 0"))
			if diff := cmp.Diff([]question{{"alice", class}}, r.takeAsked(t)); diff != "" {
				t.Errorf("asked (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseIdentify(t *testing.T) {
	for _, row := range []struct {
		chain string
		want  []Identifier
	}{
		{"auto", []Identifier{{Kind: "s3"}, {Kind: "jwt"}, {Kind: "basic"}, {Kind: "ip"}}},
		{"header:X-User", []Identifier{{Kind: "header", Param: "X-User"}}},
		{"header,jwt", []Identifier{{Kind: "header"}, {Kind: "jwt"}}},
		{"s3, jwt:sub ,basic,ip", []Identifier{{Kind: "s3"}, {Kind: "jwt", Param: "sub"}, {Kind: "basic"}, {Kind: "ip"}}},
		{"jwt:tenant.id", []Identifier{{Kind: "jwt", Param: "tenant.id"}}},
		{"jwt:email:lower,basic:exact", []Identifier{{"jwt", "email", "lower"}, {Kind: "basic", Case: "exact"}}},
		{"header:X-User:exact,header:lower", []Identifier{{"header", "X-User", "exact"}, {Kind: "header", Param: "lower"}}},
	} {
		got, err := ParseIdentify(row.chain)
		if err != nil || !cmp.Equal(got, row.want) {
			t.Errorf("ParseIdentify(%q) = %v, %v, want %v", row.chain, got, err, row.want)
		}
	}
}

func TestParseIdentifyErrors(t *testing.T) {
	const valid = "; valid are header:NAME, s3, jwt:CLAIM, basic, ip and auto"
	for chain, want := range map[string]string{
		"":              `identify "": no identifier ""` + valid,
		"s3,":           `identify "s3,": no identifier ""` + valid,
		"cookie":        `identify "cookie": no identifier "cookie"` + valid,
		"IP":            `identify "IP": no identifier "IP"` + valid,
		"ip:24":         `identify "ip:24": ip takes no parameter` + valid,
		"header:":       `identify "header:": "" cannot be the parameter of header; write it like header:X-User or header:X-User:lower`,
		`header:a")}`:   `identify "header:a\")}": "a\")}" cannot be the parameter of header; write it like header:X-User or header:X-User:lower`,
		"header:a\nb":   `identify "header:a\nb": "a\nb" cannot be the parameter of header; write it like header:X-User or header:X-User:lower`,
		"header:${A}":   `identify "header:${A}": "${A}" cannot be the parameter of header; write it like header:X-User or header:X-User:lower`,
		"jwt:sub')":     `identify "jwt:sub')": "sub')" cannot be the parameter of jwt; write it like jwt:sub or jwt:email:lower`,
		"jwt:.sub":      `identify "jwt:.sub": ".sub" cannot be the parameter of jwt; write it like jwt:sub or jwt:email:lower`,
		"basic:":        `identify "basic:": "" cannot stand behind basic; write it like basic:lower or basic:exact`,
		"basic:upper":   `identify "basic:upper": "upper" cannot stand behind basic; write it like basic:lower or basic:exact`,
		"jwt:a:b:lower": `identify "jwt:a:b:lower": "b:lower" cannot stand behind jwt; write it like jwt:sub or jwt:email:lower`,
		"s3:lower":      `identify "s3:lower": s3 takes no parameter` + valid,
		"jwt,header,s3": `identify "jwt,header,s3": s3 stands behind jwt; write it before jwt and basic`,
		"basic,auto":    `identify "basic,auto": s3 stands behind basic; write it before jwt and basic`,
		"jwt:sub\x00ip": `identify "jwt:sub\x00ip": "sub\x00ip" cannot be the parameter of jwt; write it like jwt:sub or jwt:email:lower`,
	} {
		if got, err := ParseIdentify(chain); err == nil || err.Error() != want {
			t.Errorf("ParseIdentify(%q) = %v, %v, want the error %s", chain, got, err, want)
		}
	}
}

// What parses can be written back, and adds to the file nothing but its fragments.
func FuzzParseIdentify(f *testing.F) {
	for _, seed := range []string{"auto", "s3,jwt:sub,basic,header:X-User,ip", "header:\"", "jwt:a..b", "jwt:email:lower,basic:exact", ",", "ip:", "header:X\n    http-request deny"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, chain string) {
		got, err := ParseIdentify(chain)
		if err != nil {
			return
		}
		words := make([]string, len(got))
		for i, id := range got {
			words[i] = strings.Join(slices.DeleteFunc([]string{id.Kind, id.Param, id.Case}, func(word string) bool { return word == "" }), ":")
			text, plain := renderIdentify(t, words[i]), renderIdentify(t, id.Kind)
			if strings.Count(text, "\n") != strings.Count(plain, "\n") || strings.Count(text, `"`) != strings.Count(plain, `"`) {
				t.Errorf("rules of %v = %q, which are not those of its kind", id, text)
			}
		}
		again, err := ParseIdentify(strings.Join(words, ","))
		if err != nil || !cmp.Equal(again, got) {
			t.Errorf("ParseIdentify(%q) = %v, %v, want %v", words, again, err, got)
		}
	})
}

// renderIdentify is what a chain adds to haproxy.cfg.
func renderIdentify(t *testing.T, chain string) string {
	t.Helper()
	v, err := Config{Identify: chain}.newView()
	if err != nil {
		t.Fatal(err)
	}
	text, err := render(haproxyTemplate, "identify", v, 0)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
