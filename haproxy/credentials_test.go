package haproxy

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// How origins read credentials that are not written as their standards have it, and
// what Sluice makes of them. Each request also has the header X-User: eve, which a client
// without credentials chooses: no row may count as eve, nor as any other name that
// the origin does not have for the request.
//
// The readers are those of AWS, MinIO, SeaweedFS (they share much code), Ceph's RADOS gateway and Garage; of
// JWT libraries and the frameworks around them; and of Basic decoders: those that refuse what
// RFC 4648 refuses, and those that skip it (PHP, Python and many in C).
func TestOddCredentials(t *testing.T) {
	const (
		unreadable = limits.UnreadableKey
		v4         = "Authorization: AWS4-HMAC-SHA256 "
		scope      = "/20130524/us-east-1/s3/aws4_request"
		rest       = ", SignedHeaders=host;x-amz-date, Signature=fe5f"
		token      = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbGljZSJ9."    // {"sub":"alice"}
		other      = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJtYWxsb3J5In0." // {"sub":"mallory"}
	)
	bob := base64.StdEncoding.EncodeToString([]byte("bob:secret1")) // Ym9iOnNlY3JldDE=
	lower := strings.ToLower(presigned4("AKID%2F1"))
	type row struct {
		name   string
		target string // "/" when empty
		header []string
		origin string // what a lenient origin reads
		want   string
	}
	for _, group := range []struct {
		name string
		rows []row
	}{
		{"SigV4", []row{
			{"no blank behind the algorithm", "", []string{"Authorization: AWS4-HMAC-SHA256Credential=AKID" + scope + rest}, "MinIO: AKID", unreadable},
			{"a tab behind the algorithm", "", []string{"Authorization: AWS4-HMAC-SHA256\tCredential=AKID" + scope + rest}, "Ceph: AKID", unreadable},
			{"a comma behind the algorithm", "", []string{"Authorization: AWS4-HMAC-SHA256,Credential=AKID" + scope + rest}, "Ceph: AKID", unreadable},
			{"a blank in the id", "", []string{v4 + "Credential=AK ID" + scope + rest}, "MinIO: AKID", unreadable},
			{"a tab in the id", "", []string{v4 + "Credential=AK\tID" + scope + rest}, "nobody", unreadable},
			{"a blank before the id", "", []string{v4 + "Credential= AKID" + scope + rest}, "MinIO, Ceph: AKID", unreadable},
			{"blanks around the equals sign", "", []string{v4 + "Credential = AKID" + scope + rest}, "MinIO, Ceph: AKID", unreadable},
			{"a blank behind the id", "", []string{v4 + "Credential=AKID " + scope + rest}, "MinIO: AKID", unreadable},
			{"two equals signs", "", []string{v4 + "Credential==AKID" + scope + rest}, "Garage: AKID", unreadable},
			{"an encoded id", "", []string{v4 + "Credential=AK%49D" + scope + rest}, "nobody", unreadable},
			{"an encoded slash", "", []string{v4 + "Credential=AKID%2F20130524/x" + rest}, "nobody", unreadable},
			{"a quoted id", "", []string{v4 + `Credential="AKID` + scope + `"` + rest}, "nobody", unreadable},
			{"the field in small letters", "", []string{v4 + "credential=AKID" + scope + rest}, "nobody", unreadable},
			{"the algorithm in small letters", "", []string{"Authorization: aws4-hmac-sha256 Credential=AKID" + scope + rest}, "nobody", unreadable},
			{"two credentials", "", []string{v4 + "Credential=AKID" + scope + ", Credential=EVE" + scope + rest}, "Ceph, Garage: EVE", unreadable},
			{"two credentials in other case", "", []string{v4 + "Credential=AKID" + scope + ", credential=EVE" + scope + rest}, "some: EVE", unreadable},
			{"joined headers", "", []string{v4 + "Credential=AKID" + scope + rest + ", AWS4-HMAC-SHA256 Credential=EVE" + scope + rest}, "AKID or EVE", unreadable},
			{"two headers", "", []string{v4 + "Credential=EVE" + scope + rest, v4 + "Credential=AKID" + scope + rest}, "EVE or AKID", unreadable},
			{"two headers of one id", "", []string{v4 + "Credential=AKID" + scope + rest, v4 + "Credential=AKID" + scope + rest}, "AKID", unreadable},
			{"an empty header first", "", []string{"Authorization:", v4 + "Credential=AKID" + scope + rest}, "AKID", unreadable},
			{"an empty header last", "", []string{v4 + "Credential=AKID" + scope + rest, "Authorization: "}, "AKID", unreadable},
			{"an id with a slash", "", []string{v4 + "Credential=AKID/x" + scope + rest}, "MinIO: AKID/x", "AKID"},
			{"folded", "", []string{"Authorization: AWS4-HMAC-SHA256\r\n Credential=AKID" + scope + rest}, "AKID", "AKID"},
			{"longer than any client's", "", []string{v4 + "Credential=AKID" + scope + rest + strings.Repeat(",x=y", 2000)}, "AKID", unreadable},
			{"made to be hard to read", "", []string{v4 + strings.Repeat("Credential", 390)}, "nobody", unreadable},
			{"and with commas", "", []string{v4 + strings.Repeat(" ,", 2000) + "Credential=AKID" + scope}, "AKID", "AKID"},
			{"of a session", "", []string{v4 + "Credential=ASIA1" + scope + rest, "X-Amz-Security-Token: x"}, "the session's user", "ASIA1"},
			{"in pieces", "", []string{v4 + "Credential=AKID" + scope + rest, "X-Amz-Content-Sha256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD"}, "AKID", "AKID"},
		}},
		{"SigV2", []row{
			{"a tab", "", []string{"Authorization: AWS\tAKID:sig"}, "nobody", unreadable},
			{"a blank in the id", "", []string{"Authorization: AWS EVE AKID:sig"}, "some: AKID", unreadable},
			{"no blank", "", []string{"Authorization: AWSAKID:sig"}, "nobody", unreadable},
			{"small letters", "", []string{"Authorization: aws AKID:sig"}, "nobody", unreadable},
			{"an id with a colon", "", []string{"Authorization: AWS AKID:x:sig"}, "Ceph: AKID:x", unreadable},
			{"joined", "", []string{"Authorization: AWS EVE:sig, AWS AKID:sig"}, "some: AKID", unreadable},
			{"no signature", "", []string{"Authorization: AWS AKID"}, "nobody", unreadable},
		}},
		{"presigned", []row{
			{"names in small letters", "/b/k?" + lower, nil, "Ceph, Garage: AKID", unreadable},
			{"a name in small letters", "/b/k?" + strings.Replace(presigned4("AKID%2F1"), "X-Amz-Credential", "x-amz-credential", 1), nil, "Ceph, Garage: AKID", unreadable},
			{"encoded names", "/b/k?" + strings.Replace(presigned4("AKID%2F1"), "X-Amz-Credential", "X-Amz-Credentia%6c", 1), nil, "all: AKID", unreadable},
			{"encoded hyphens", "/b/k?" + strings.ReplaceAll(presigned4("AKID%2F1"), "X-Amz-", "X%2DAmz%2D"), nil, "all: AKID", unreadable},
			{"encoded first letters", "/b/k?" + strings.ReplaceAll(presigned4("AKID%2F1"), "X-Amz-", "%58%2d%41mz-"), nil, "all: AKID", unreadable},
			{"an encoded name of v2", "/b/k?" + strings.Replace(presigned2("AKID"), "AWS", "%41WS", 1), nil, "all: AKID", unreadable},
			{"encoded, and something that cannot be decoded", "/b/k?%zz&%00&%&" + strings.Replace(presigned4("AKID%2F1"), "X-Amz-C", "X-Amz-%43", 1), nil, "some: AKID", unreadable},
			{"a semicolon before another", "/b/k?x=;X-Amz-Credential=EVE%2F1&" + presigned4("AKID%2F1"), nil, "MinIO: AKID", unreadable},
			{"one behind a semicolon", "/b/k?x=1;" + strings.ReplaceAll(presigned4("AKID%2F1"), "&", ";"), nil, "some: AKID", unreadable},
			{"two credentials", "/b/k?X-Amz-Credential=EVE%2F1&" + presigned4("AKID%2F1"), nil, "EVE or AKID", unreadable},
			{"two, one encoded", "/b/k?" + presigned4("AKID%2F1") + "&X-Amz-Credentia%6C=EVE%2F1", nil, "EVE or AKID", unreadable},
			{"two, one in small letters", "/b/k?" + presigned4("AKID%2F1") + "&x-amz-credential=EVE%2F1", nil, "EVE or AKID", unreadable},
			{"two of v2", "/b/k?AWSAccessKeyId=EVE&" + presigned2("AKID"), nil, "MinIO: AKID", unreadable},
			{"v4 and v2", "/b/k?" + presigned4("AKID%2F1") + "&" + presigned2("EVE"), nil, "AKID or EVE", unreadable},
			{"a question mark more", "/b/k??" + presigned4("AKID%2F1"), nil, "Ceph: AKID", unreadable},
			{"a question mark before the credential", "/b/k??X-Amz-Credential=AKID%2F1&" + strings.Replace(presigned4(""), "X-Amz-Credential=&", "", 1), nil, "Ceph: AKID", unreadable},
			{"no algorithm", "/b/k?" + strings.Replace(presigned4("AKID%2F1"), "X-Amz-Algorithm", "x", 1), nil, "nobody", unreadable},
			{"no signature", "/b/k?" + strings.Replace(presigned4("AKID%2F1"), "X-Amz-Signature", "x", 1), nil, "nobody", unreadable},
			{"no credential", "/b/k?" + strings.Replace(presigned4("AKID%2F1"), "X-Amz-Credential", "x", 1), nil, "nobody", unreadable},
			{"an empty id", "/b/k?" + presigned4("%2F1"), nil, "nobody", unreadable},
			{"a blank before the id", "/b/k?" + presigned4("%20AKID%2F1"), nil, "nobody", unreadable},
			{"a plus sign before the id", "/b/k?" + presigned4("+AKID%2F1"), nil, "nobody", unreadable},
			{"an equals sign before the id", "/b/k?" + presigned4("=AKID%2F1"), nil, "some: AKID", unreadable},
			{"an id encoded twice", "/b/k?" + presigned4("AK%2549D%2F1"), nil, "nobody", unreadable},
			{"a credential that cannot be decoded", "/b/k?" + presigned4("A%zzKID%2F1"), nil, "nobody", unreadable},
			{"a NUL", "/b/k?" + presigned4("AKID%00%2F1"), nil, "some in C: AKID", unreadable},
			{"v2 with a NUL", "/b/k?" + presigned2("AKID%00x"), nil, "some in C: AKID", unreadable},
			{"v2 with a newline", "/b/k?" + presigned2("AKID%0A"), nil, "nobody", unreadable},
			{"v2 without a signature", "/b/k?AWSAccessKeyId=AKID&Expires=1", nil, "nobody", unreadable},
			{"v2 with an empty id", "/b/k?" + presigned2(""), nil, "nobody", unreadable},
			{"an empty header besides", "/b/k?" + presigned4("AKID%2F1"), []string{"Authorization:"}, "Ceph: AKID", unreadable},
			{"a signed header besides", "/b/k?" + presigned2("AKID"), []string{v4 + "Credential=EVE" + scope + rest}, "MinIO: AKID", unreadable},
			{"a token besides", "/b/k?" + presigned4("AKID%2F1"), []string{"Authorization: Bearer " + other}, "MinIO: AKID, an API: mallory", unreadable},
			{"a token besides, encoded", "/b/k?" + strings.Replace(presigned4("AKID%2F1"), "X-Amz-Credential", "X-Amz-%43redential", 1), []string{"Authorization: Bearer " + other}, "MinIO: AKID", unreadable},
			{"Basic credentials besides", "/b/k?" + presigned2("AKID"), []string{"Authorization: Basic " + bob}, "MinIO: AKID", unreadable},
			{"a trusted name besides", "/b/k?" + presigned4("AKID%2F1"), nil, "S3: AKID, an API: eve", unreadable},
			{"not whole, and a trusted name besides", "/api?AWSAccessKeyId=random", nil, "S3: nobody, an API: eve", unreadable},
			{"not whole, and a token besides", "/api?AWSAccessKeyId=random", []string{"Authorization: Bearer " + token}, "an API: alice", "alice"},
			{"not whole, and Basic besides", "/api?X-Amz-Credential=random/1", []string{"Authorization: Basic " + bob}, "an API: bob", "bob"},
		}},
		{"Bearer", []row{
			{"a tab", "", []string{"Authorization: Bearer\t" + token}, "those that split at white space: alice", unreadable},
			{"a blank and a tab", "", []string{"Authorization: Bearer \t" + token}, "those that trim: alice", unreadable},
			{"two blanks", "", []string{"Authorization: Bearer  " + token}, "those that trim: alice", "alice"},
			{"any case", "", []string{"Authorization: bEARER " + token}, "most: alice", "alice"},
			{"no blank", "", []string{"Authorization: Bearer" + token}, "those that cut six bytes: alice", unreadable},
			{"a colon", "", []string{"Authorization: Bearer: " + token}, "some: alice", unreadable},
			{"quoted", "", []string{`Authorization: Bearer "` + token + `"`}, "some: alice", unreadable},
			{"no scheme", "", []string{"Authorization: " + token}, "some: alice", unreadable},
			{"another scheme", "", []string{"Authorization: JWT " + token}, "some: alice", unreadable},
			{"a token before", "", []string{"Authorization: Bearer " + other + " " + token}, "those that take the last word: alice", unreadable},
			{"a token behind", "", []string{"Authorization: Bearer " + other + " x"}, "those that take the second word: mallory", unreadable},
			{"joined", "", []string{"Authorization: Bearer " + other + ", Bearer " + token}, "either", unreadable},
			{"joined with another scheme", "", []string{"Authorization: Basic " + bob + ", Bearer " + token}, "either", unreadable},
			{"two headers", "", []string{"Authorization: Bearer " + other, "Authorization: Bearer " + token}, "either", unreadable},
			{"two schemes", "", []string{"Authorization: Basic " + bob, "Authorization: Bearer " + token}, "either", unreadable},
			{"an empty header first", "", []string{"Authorization: ", "Authorization: Bearer " + token}, "alice", unreadable},
			{"folded", "", []string{"Authorization: Bearer\r\n " + token}, "alice", "alice"},
			{"folded and joined", "", []string{"Authorization: Bearer " + other + "\r\n Bearer " + token}, "either", unreadable},
			{"an empty token", "", []string{"Authorization: Bearer "}, "nobody", unreadable},
			{"opaque", "", []string{"Authorization: Bearer 0123456789abcdef"}, "who knows the token", unreadable},
			{"two parts", "", []string{"Authorization: Bearer " + strings.TrimSuffix(token, ".")}, "those without signatures: alice", unreadable},
			{"four parts", "", []string{"Authorization: Bearer " + token + ".x"}, "nobody", unreadable},
			{"encrypted", "", []string{"Authorization: Bearer a." + strings.Split(token, ".")[1] + ".c.d.e"}, "who has the key", unreadable},
			{"padded", "", []string{"Authorization: Bearer eyJhbGciOiJub25lIn0=.eyJzdWIiOiJhbGljZSJ9.x"}, "those that strip padding: alice", unreadable},
			{"the other alphabet", "", []string{"Authorization: Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhb+/jZSJ9.x"}, "some", unreadable},
			{"no claim", "", []string{bearer(`{"name":"alice"}`)}, "nobody", unreadable},
			{"an empty claim", "", []string{bearer(`{"sub":""}`)}, "nobody", unreadable},
			{"null", "", []string{bearer(`{"sub":null}`)}, "nobody", unreadable},
			{"an object", "", []string{bearer(`{"sub":{"a":"b"}}`)}, "nobody", unreadable},
			{"a claim inside another", "", []string{bearer(`{"x":{"sub":"mallory"},"sub":"alice"}`)}, "alice", "alice"},
			{"escapes", "", []string{bearer(`{"sub":"al\u0069ce"}`)}, "alice", "alice"},
			{"escapes that HAProxy does not read", "", []string{bearer(`{"sub":"\u20ac"}`)}, "€", unreadable},
			{"twice; only who signs tokens can do that", "", []string{bearer(`{"sub":"alice","sub":"mallory"}`)}, "most: mallory", "alice"},
			{"not JSON", "", []string{bearer(`sub=alice`)}, "nobody", unreadable},
		}},
		{"Basic", []row{
			{"a tab", "", []string{"Authorization: Basic\t" + bob}, "those that split at white space: bob", unreadable},
			{"a blank and a tab", "", []string{"Authorization: Basic \t" + bob}, "those that trim: bob", unreadable},
			{"two blanks", "", []string{"Authorization: Basic  " + bob}, "those that trim: bob", "bob"},
			{"any case", "", []string{"Authorization: bAsIc " + bob}, "most: bob", "bob"},
			{"no blank", "", []string{"Authorization: Basic" + bob}, "those that cut five bytes: bob", unreadable},
			{"a shorter scheme", "", []string{"Authorization: B " + bob}, "nobody", unreadable},
			{"junk inside", "", []string{"Authorization: Basic Ym9!iOnNlY3JldDE="}, "those that skip: bob", unreadable},
			{"a blank inside", "", []string{"Authorization: Basic Ym9i OnNlY3JldDE="}, "those that skip: bob", unreadable},
			{"junk at the end", "", []string{"Authorization: Basic " + bob + "!"}, "those that skip: bob", unreadable},
			{"no padding", "", []string{"Authorization: Basic " + strings.TrimRight(bob, "=")}, "those that skip: bob", unreadable},
			{"more padding", "", []string{"Authorization: Basic " + bob + "=="}, "those that skip: bob", unreadable},
			{"padding inside", "", []string{"Authorization: Basic Yg==b2I6eA=="}, "b, or boundless other names", unreadable},
			{"the other alphabet", "", []string{"Authorization: Basic " + base64.URLEncoding.EncodeToString([]byte("bob:\xff\xfe\xfd>>"))}, "some: bob", unreadable},
			{"other bits behind the last byte", "", []string{"Authorization: Basic Ym9iOnNlY3JldDF="}, "bob", "bob"},
			{"joined", "", []string{"Authorization: Basic " + bob + ", Basic " + base64.StdEncoding.EncodeToString([]byte("eve:x"))}, "either", unreadable},
			{"two headers", "", []string{basic("eve:x"), basic("bob:x")}, "either", unreadable},
			{"an empty header first", "", []string{"Authorization:", basic("bob:x")}, "bob", unreadable},
			{"folded", "", []string{"Authorization: Basic\r\n " + bob}, "bob", "bob"},
			{"no colon", "", []string{basic("bob")}, "some: bob", unreadable},
			{"two colons", "", []string{basic("bob:a:b")}, "bob", "bob"},
			{"no user", "", []string{basic(":token")}, "who knows the token", unreadable},
			{"empty", "", []string{"Authorization: Basic"}, "nobody", unreadable},
			{"NUL in the user", "", []string{basic("bob\x00x:secret")}, "some in C: bob", unreadable},
			{"NUL in the password", "", []string{basic("bob:sec\x00ret")}, "bob", "bob"},
			{"not UTF-8", "", []string{basic("b\xf6b:x")}, "böb, by Latin-1", "b\xf6b"},
			{"capital letters", "", []string{basic("BOB:x")}, "most: bob", "bob"},
		}},
		{"other", []row{
			{"Digest", "", []string{`Authorization: Digest username="alice", realm="x", response="y"`}, "alice", unreadable},
			{"Negotiate", "", []string{"Authorization: Negotiate YIIxyz=="}, "alice", unreadable},
			{"a key", "", []string{"Authorization: ApiKey 123"}, "alice", unreadable},
			{"empty", "", []string{"Authorization:"}, "nobody", unreadable},
			{"a name like the key of all these", "", []string{basic(limits.UnreadableKey + ":x")}, "a user of that name", limits.Key(limits.UnreadableKey)},
		}},
	} {
		r := shared(t, usual)
		for _, row := range group.rows {
			t.Run(group.name+" "+row.name, func(t *testing.T) {
				target := row.target
				if target == "" {
					target = "/"
				}
				r.send(t, httpGET(target, append(slices.Clone(row.header), "X-User: eve")...))
				asked := r.takeAsked(t)
				if diff := cmp.Diff([]question{{row.want, "GET"}}, asked); diff != "" {
					t.Errorf("%q %q, of which an origin reads %s (-want +got):\n%s", target, row.header, row.origin, diff)
				}
			})
		}
	}
}

// Whatever somebody does to a credential that an origin reads as one name, it counts as
// that name or as unreadable: there is no way to another name.
func TestMutatedCredentials(t *testing.T) {
	r := shared(t, usual)
	// Each has its name once.
	seeds := []struct{ target, authorization, user string }{
		{"/", "AWS4-HMAC-SHA256 Credential=AKID/20130524/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=fe5f", "AKID"},
		{"/", "AWS4-HMAC-SHA256 SignedHeaders=host,Signature=fe5f,Credential=AKID/20130524/us-east-1/s3/aws4_request", "AKID"},
		{"/", "AWS AKID:frJIUN8DYpKDtOLCwo//yllqDzg=", "AKID"},
		{"/b/k?" + presigned4("AKID%2F20130524%2Fus-east-1"), "", "AKID"},
		{"/b/k?" + presigned2("AKID"), "", "AKID"},
		{"/", strings.TrimPrefix(bearer(`{"sub":"AKID"}`), "Authorization: "), "AKID"},
	}
	dropped := []string{" ", "  ", "\t", ",", ";", "=", "==", "\"", "%20", "%00"}
	inserts := []string{" ", "\t", ",", ", ", ";", "=", "==", "&", "?", "%", "%20", "%00", "%zz", "\"", ":", "/", "X-Amz-Credential=", "Credential=", "AWS ", "Bearer ", "Basic "}
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.SampledFrom(seeds).Draw(rt, "seed")
		target, authorization := seed.target, seed.authorization
		text := &authorization
		if authorization == "" {
			text = &target
		}
		for range rapid.IntRange(0, 3).Draw(rt, "mutations") {
			// What is inside of the id makes it another id to every server, and what is right behind it may; beside
			// it, only what a server may drop.
			id := strings.Index(*text, "AKID")
			at := rapid.IntRange(0, len(*text)-1).Draw(rt, "at")
			if text == &target {
				at = max(at, len("/b/k?"))
			}
			inside := id >= 0 && at > id-1 && at < id+len("AKID%2F")
			insert := rapid.SampledFrom(inserts).Draw(rt, "insert")
			if inside {
				at = rapid.SampledFrom([]int{id, id + len("AKID")}).Draw(rt, "edge")
				insert = rapid.SampledFrom(dropped).Draw(rt, "dropped")
			}
			what := rapid.IntRange(0, 3).Draw(rt, "what")
			before := *text
			switch c := (*text)[at]; {
			case what == 0 || inside:
				if text == &target && strings.ContainsAny(insert, " \t\"") {
					insert = "+"
				}
				*text = (*text)[:at] + insert + (*text)[at:]
			case strings.HasPrefix(seed.authorization, "Bearer"): // of which every letter is the name
			case what == 1 && (c|0x20 >= 'a' && c|0x20 <= 'z'): // in other case
				*text = (*text)[:at] + string(c^0x20) + (*text)[at+1:]
			case what == 2 && text == &target && !strings.ContainsRune("%&=", rune(c)): // encoded
				*text = (*text)[:at] + fmt.Sprintf("%%%02x", c) + (*text)[at+1:]
			case what == 3: // taken out
				*text = (*text)[:at] + (*text)[at+1:]
				if idGrew(before, *text) {
					*text = before
				}
			}
		}
		headers := []string{"X-User: eve"}
		if authorization != "" {
			headers = append(headers, "Authorization: "+authorization)
		}
		r.send(t, httpGET(target, headers...))
		asked := r.takeAsked(t)
		allowed := []string{seed.user, limits.UnreadableKey}
		if authorization == "" && notPresigned(target) {
			allowed = append(allowed, "eve")
		}
		if len(asked) != 1 || !slices.Contains(allowed, asked[0].User) {
			rt.Fatalf("%q with %q counts as %v, want one of %q", target, authorization, asked, allowed)
		}
	})
}

// idGrew is whether the id AKID has a letter or a digit beside it that it had not before, as
// when only the percent sign of %20 was taken out: then it is another id to every server.
func idGrew(before, after string) bool {
	return longID.MatchString(percentCode.ReplaceAllString(after, " ")) && !longID.MatchString(percentCode.ReplaceAllString(before, " "))
}

var (
	percentCode = regexp.MustCompile(`%[0-9A-Fa-f]{2}`)
	longID      = regexp.MustCompile(`[0-9A-Za-z]AKID|AKID[0-9A-Za-z]`)
)

// notPresigned is whether no server can find a credential in a query: it lost what says
// so. The names are compared as the most lenient server does.
func notPresigned(target string) bool {
	_, query, _ := strings.Cut(target, "?")
	for _, name := range strings.FieldsFunc(query, func(c rune) bool { return c == '&' || c == ';' || c == '?' }) {
		name, _, _ = strings.Cut(name, "=")
		name = strings.ToLower(decoded(name))
		if strings.Contains(name, "x-amz-credential") || strings.Contains(name, "awsaccesskeyid") {
			return false
		}
	}
	return true
}

// decoded undoes percent-encoding and leaves what cannot be decoded.
func decoded(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		var c byte
		if text[i] == '%' && i+2 < len(text) {
			if n, err := fmt.Sscanf(text[i+1:i+3], "%02x", &c); n == 1 && err == nil {
				b.WriteByte(c)
				i += 2
				continue
			}
		}
		b.WriteByte(text[i])
	}
	return b.String()
}

// With SLUICE_UNREADABLE=deny such requests get 400, which HAProxy counts in a backend of
// their own, and nobody is asked; exempt paths and readable credentials are not denied.
func TestUnreadableDenied(t *testing.T) {
	r := shared(t, withChains)
	r.teach(t, "block", limits.UnreadableKey, time.Now().Add(time.Hour), 1)
	before := r.stat(t, "sluice_unreadable", "BACKEND", "req_tot")
	for range 3 {
		got := r.byChain(t, denying, httpGET("/", "Authorization: Digest x", "X-User: eve"))
		if got.Status != http.StatusBadRequest || got.Header.Get("Sluice-Reason") != "unreadable-credentials" || !strings.Contains(got.Body, "cannot be read") {
			t.Errorf("answer = %+v, want 400 with the reason", got)
		}
	}
	if asked, seen := r.takeAsked(t), len(r.takeSeen()); len(asked) != 0 || seen != 0 {
		t.Errorf("asked %v, the origin saw %d; want nothing of denied requests", asked, seen)
	}
	for _, request := range []string{httpGET("/static/x", "Authorization: Digest x"), httpGET("/", basic("bob:x")), httpGET("/", "X-User: carol")} {
		if got := r.byChain(t, denying, request); got.Status != 200 {
			t.Errorf("status of %q = %d, want 200", request, got.Status)
		}
	}
	want := []question{{limits.ExemptKey, "GET"}, {"bob", "GET"}, {"carol", "GET"}}
	if diff := cmp.Diff(want, r.takeAsked(t)); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
	if after := r.stat(t, "sluice_unreadable", "BACKEND", "req_tot"); before != "0" || after != "3" {
		t.Errorf("HAProxy counted %s denied requests, then %s, want 0 and 3", before, after)
	}
}
