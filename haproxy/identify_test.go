package haproxy

import (
	"encoding/base64"
	"fmt"
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

func TestIdentify(t *testing.T) {
	const v4 = "Authorization: AWS4-HMAC-SHA256 "
	const scope = "/20130524/us-east-1/s3/aws4_request"
	type row struct {
		name   string
		target string // "/" when empty
		header []string
		want   string
	}
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
			{"v4 id with equals signs", "", []string{v4 + "Credential=A=K=" + scope + ", Signature=fe5f"}, "A=K="},
			{"v4 other field that ends like it", "", []string{v4 + "XCredential=EVE" + scope + ", Credential=AKID" + scope}, "AKID"},
			{"v4a", "", []string{"Authorization: AWS4-ECDSA-P256-SHA256 Credential=AKID/20130524/s3/aws4_request, Signature=fe"}, "AKID"},
			{"v4 without a credential", "", []string{v4 + "SignedHeaders=host, Signature=fe5f"}, client},
			{"v4 with an empty id", "", []string{v4 + "Credential=/x, Signature=fe5f"}, client},
			{"v4 first of two headers", "", []string{v4 + "Credential=AKID" + scope, v4 + "Credential=EVE" + scope}, "AKID"},
			{"v2", "", []string{"Authorization: AWS AKID:frJIUN8DYpKDtOLCwo//yllqDzg="}, "AKID"},
			{"v2 with two blanks", "", []string{"Authorization: AWS  AKID:sig"}, "AKID"},
			{"v2 without an id", "", []string{"Authorization: AWS :sig"}, client},
			{"presigned v4", "/b/k?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKID%2F20130524%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Date=x", nil, "AKID"},
			{"presigned v4, lower-case and bare slashes", "/?X-Amz-Credential=AKID%2f2013/s3", nil, "AKID"},
			{"presigned v4 with an encoded id", "/?X-Amz-Credential=A%4bID%2F2013", nil, "AKID"},
			{"presigned v4 with an empty id", "/?X-Amz-Credential=%2F2013", nil, client},
			{"presigned v4 badly encoded", "/?X-Amz-Credential=A%zz%2F2013", nil, client},
			{"presigned v2", "/b/k?AWSAccessKeyId=AKID&Expires=1&Signature=s", nil, "AKID"},
			{"presigned v2 with an empty id", "/?AWSAccessKeyId=&Expires=1", nil, client},
			{"a parameter that ends like it", "/?NotX-Amz-Credential=EVE%2F1", nil, client},
			{"newline at the end", "/?AWSAccessKeyId=AKID%0A", nil, limits.Key("AKID\n")},
			{"header before query", "/?AWSAccessKeyId=EVE", []string{"Authorization: AWS AKID:sig"}, "AKID"},
			{"not S3", "", []string{basic("bob:x")}, client},
		}},
		{"jwt:sub,ip", []row{
			{"claim", "", []string{bearer(`{"sub":"alice","iat":1}`)}, "alice"},
			{"scheme in lower case", "", []string{strings.Replace(bearer(`{"sub":"alice"}`), "Bearer", "bearer", 1)}, "alice"},
			{"UTF-8", "", []string{bearer(`{"sub":"Zoë"}`)}, "Zoë"},
			{"a number is text", "", []string{bearer(`{"sub":42}`)}, "42"},
			{"a truth value is text", "", []string{bearer(`{"sub":true}`)}, "1"},
			{"empty claim", "", []string{bearer(`{"sub":""}`)}, client},
			{"no claim", "", []string{bearer(`{"user":"alice"}`)}, client},
			{"claim of an inner object", "", []string{bearer(`{"x":{"sub":"alice"}}`)}, client},
			{"not a token", "", []string{"Authorization: Bearer abc"}, client},
			{"payload not JSON", "", []string{bearer(`sub`)}, client},
			{"other scheme", "", []string{basic("bob:x")}, client},
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
			{"empty user", "", []string{basic(":x")}, client},
			{"not base64", "", []string{"Authorization: Basic ***"}, client},
			{"NUL is not the user before it", "", []string{basic("a\x00b:x")}, client},
			{"control byte", "", []string{basic("a\x01b:x")}, limits.Key("a\x01b")},
			{"first of two headers", "", []string{basic("bob:x"), basic("eve:x")}, "bob"},
		}},
		{"auto", []row{
			{"S3", "", []string{"X-User: eve", "Authorization: AWS AKID:sig"}, "AKID"},
			{"token before header", "", []string{"X-User: eve", bearer(`{"sub":"alice"}`)}, "alice"},
			{"Basic before header", "", []string{"X-User: eve", basic("bob:x")}, "bob"},
			{"header when the credentials are empty", "", []string{"X-User: carol", basic(":x")}, "carol"},
			{"presigned before a token", "/?AWSAccessKeyId=AKID", []string{bearer(`{"sub":"alice"}`)}, "AKID"},
			{"address last", "", nil, client},
		}},
		{"ip,header", []row{
			{"an address is always found", "", []string{"X-User: eve"}, client},
		}},
	} {
		t.Run(chain.identify, func(t *testing.T) {
			r := newRig(t, setup{Config: Config{Identify: chain.identify}})
			for _, row := range chain.rows {
				t.Run(row.name, func(t *testing.T) {
					target := row.target
					if target == "" {
						target = "/"
					}
					got := r.send(t, httpGET(target, row.header...))[0]
					if got.Status != 200 {
						t.Fatalf("status = %d, want 200", got.Status)
					}
					if diff := cmp.Diff([]question{{row.want, "GET"}}, r.takeAsked(t)); diff != "" {
						t.Errorf("asked about %q %q (-want +got):\n%s", target, row.header, diff)
					}
				})
			}
		})
	}
}

// An IPv6 client is its /64, and an IPv4 client of an IPv6 listener stays IPv4.
func TestIdentifyAddress(t *testing.T) {
	r := newRig(t, setup{
		Config: Config{Identify: "ip"},
		edit: func(cfg string) string {
			// The address comes from a PROXY header, which a test can write.
			return strings.Replace(cfg, `bind "${SLUICE_BIND-127.0.0.1:8080}"`, `bind "${SLUICE_BIND-127.0.0.1:8080}" accept-proxy`, 1)
		},
	})
	for _, row := range []struct{ name, proxy, want string }{
		{"v4", "TCP4 192.0.2.7 192.0.2.1 4000 80", "192.0.2.7"},
		{"v6", "TCP6 2001:db8:1:2:3:4:5:6 2001:db8::1 4000 80", "2001:db8:1:2::"},
		{"v6, same network", "TCP6 2001:db8:1:2:ffff::1 2001:db8::1 4000 80", "2001:db8:1:2::"},
		{"v4 mapped", "TCP6 ::ffff:192.0.2.7 2001:db8::1 4000 80", "192.0.2.7"},
	} {
		t.Run(row.name, func(t *testing.T) {
			r.send(t, "PROXY "+row.proxy+"\r\n"+httpGET("/"))
			if diff := cmp.Diff([]question{{row.want, "GET"}}, r.takeAsked(t)); diff != "" {
				t.Errorf("asked for %q (-want +got):\n%s", row.proxy, diff)
			}
		})
	}
}

// Hostile names reach the agent as limits.Key spells them.
func TestKeys(t *testing.T) {
	r := newRig(t, setup{})
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
		"looks like an endpoint's":  limits.EndpointKey("uploads", "alice"),
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

	// HAProxy 2.6 lets NUL in headers pass: the name is hashed whole. Later ones refuse it.
	var aboutNUL []question
	if !versionAtLeast(t, 3, 0) {
		aboutNUL = []question{{limits.Key("a\x00b"), "GET"}}
	}
	for name, header := range map[string]string{
		"NUL":             "X-User: a\x00b",
		"NUL in an S3 id": "Authorization: AWS4-HMAC-SHA256 Credential=a\x00b/x, Signature=s",
		"NUL in a v2 id":  "Authorization: AWS a\x00b:sig",
	} {
		t.Run(name, func(t *testing.T) {
			if got := r.get(t, header); got.Status != 400 {
				t.Errorf("status = %d, want 400 from HAProxy or the origin", got.Status)
			}
			if diff := cmp.Diff(aboutNUL, r.takeAsked(t)); diff != "" {
				t.Errorf("asked about %q (-want +got):\n%s", header, diff)
			}
		})
	}
}

// Whatever bytes a name has, the agent gets limits.Key of it: through a query
// parameter every byte can be sent.
func TestAnyBytes(t *testing.T) {
	r := newRig(t, setup{Config: Config{Identify: "s3,ip"}})
	noNUL := versionAtLeast(t, 3, 2) // its url_dec fails at %00, so that nothing is found
	rapid.Check(t, func(rt *rapid.T) {
		user := string(rapid.SliceOfN(rapid.Byte(), 1, 130).Draw(rt, "user"))
		want := limits.Key(user)
		if noNUL && strings.Contains(user, "\x00") {
			want = client
		}
		var encoded strings.Builder
		for i := range len(user) {
			fmt.Fprintf(&encoded, "%%%02X", user[i])
		}
		r.send(t, httpGET("/?AWSAccessKeyId="+encoded.String()))
		if diff := cmp.Diff([]question{{want, "GET"}}, r.takeAsked(t)); diff != "" {
			rt.Fatalf("asked about %q (-want +got):\n%s", user, diff)
		}
	})
}

func TestClass(t *testing.T) {
	r := newRig(t, setup{})
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
		{"auto", []Identifier{{"auto", ""}}},
		{"header:X-User", []Identifier{{"header", "X-User"}}},
		{"header,jwt", []Identifier{{"header", ""}, {"jwt", ""}}},
		{"s3, jwt:sub ,basic,ip", []Identifier{{"s3", ""}, {"jwt", "sub"}, {"basic", ""}, {"ip", ""}}},
		{"jwt:tenant.id", []Identifier{{"jwt", "tenant.id"}}},
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
		"header:":       `identify "header:": "" cannot be the parameter of header; write it like header:X-User`,
		`header:a")}`:   `identify "header:a\")}": "a\")}" cannot be the parameter of header; write it like header:X-User`,
		"header:a\nb":   `identify "header:a\nb": "a\nb" cannot be the parameter of header; write it like header:X-User`,
		"header:${A}":   `identify "header:${A}": "${A}" cannot be the parameter of header; write it like header:X-User`,
		"jwt:sub')":     `identify "jwt:sub')": "sub')" cannot be the parameter of jwt; write it like jwt:sub`,
		"jwt:.sub":      `identify "jwt:.sub": ".sub" cannot be the parameter of jwt; write it like jwt:sub`,
		"jwt:sub\x00ip": `identify "jwt:sub\x00ip": "sub\x00ip" cannot be the parameter of jwt; write it like jwt:sub`,
	} {
		if got, err := ParseIdentify(chain); err == nil || err.Error() != want {
			t.Errorf("ParseIdentify(%q) = %v, %v, want the error %s", chain, got, err, want)
		}
	}
}

// What parses can be written back, and adds to the file nothing but its fragments.
func FuzzParseIdentify(f *testing.F) {
	for _, seed := range []string{"auto", "s3,jwt:sub,basic,header:X-User,ip", "header:\"", "jwt:a..b", ",", "ip:", "header:X\n    http-request deny"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, chain string) {
		got, err := ParseIdentify(chain)
		if err != nil {
			return
		}
		words := make([]string, len(got))
		lines := 0
		for i, id := range got {
			words[i] = id.String()
			text, err := id.fragment()
			if err != nil {
				t.Fatalf("fragment of %v: %v", id, err)
			}
			plain, _ := Identifier{Kind: id.Kind}.fragment()
			if strings.Count(text, "\n") != strings.Count(plain, "\n") || strings.Count(text, `"`) != strings.Count(plain, `"`) {
				t.Errorf("fragment of %v = %q, which is not its kind's", id, text)
			}
			lines += strings.Count(text, "\n")
		}
		again, err := ParseIdentify(strings.Join(words, ","))
		if err != nil || !cmp.Equal(again, got) {
			t.Errorf("ParseIdentify(%q) = %v, %v, want %v", words, again, err, got)
		}
		bare, err := between(shipped(t, "haproxy.cfg"), "identify", "")
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := Render(Config{Identify: chain})
		if want := strings.Count(bare, "\n") + lines; err != nil || strings.Count(cfg, "\n") != want {
			t.Errorf("Render(%v) has %d lines, %v, want %d", got, strings.Count(cfg, "\n"), err, want)
		}
	})
}
