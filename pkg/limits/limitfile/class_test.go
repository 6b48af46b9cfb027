package limitfile

import (
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// holds is what Match's comments say.
func holds(m limits.Match, r *http.Request) bool {
	query := r.URL.Query()
	if len(m.Methods) > 0 && !slices.Contains(m.Methods, r.Method) ||
		!strings.HasPrefix(r.URL.EscapedPath(), m.PathPrefix) || !regexp.MustCompile(m.PathRegex).MatchString(r.URL.EscapedPath()) {
		return false
	}
	for _, key := range m.Query {
		if !query.Has(key) {
			return false
		}
	}
	if slices.ContainsFunc(m.NoQuery, query.Has) {
		return false
	}
	for _, h := range m.Headers {
		values := r.Header.Values(h.Name)
		if len(values) == 0 || h.Value != "" && !slices.Contains(values, h.Value) {
			return false
		}
	}
	return true
}

// classOf is the first class of a request, "" if it has none.
func classOf(all []limits.Class, r *http.Request) string {
	for _, c := range all {
		if slices.ContainsFunc(c.Any, func(m limits.Match) bool { return holds(m, r) }) {
			return c.Name
		}
	}
	return ""
}

// TestS3Classes: each row is an operation of the S3 API, path-style if not said.
func TestS3Classes(t *testing.T) {
	for _, tt := range []struct{ operation, request, want string }{
		{"ListBuckets", "GET /", "LISTBUCKETS"},
		{"ListBuckets in pages", "GET /?max-buckets=10&continuation-token=x", "LISTBUCKETS"},
		{"ListObjects", "GET /bucket", "LISTOBJECTS"},
		{"ListObjects with a slash", "GET /bucket/", "LISTOBJECTS"},
		{"ListObjects with parameters", "GET /bucket?prefix=a&delimiter=/&marker=b&max-keys=5&encoding-type=url", "LISTOBJECTS"},
		{"ListObjects presigned", "GET /bucket?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Signature=x", "LISTOBJECTS"},
		{"ListObjectsV2", "GET /bucket?list-type=2&prefix=a", "LISTOBJECTSV2"},
		{"ListObjectsV2, host style", "GET /?list-type=2", "LISTOBJECTSV2"},
		{"ListObjectVersions", "GET /bucket?versions", "LISTOBJECTVERSIONS"},
		{"ListObjectVersions with parameters", "GET /bucket/?prefix=a&versions=", "LISTOBJECTVERSIONS"},
		{"ListMultipartUploads", "GET /bucket?uploads&max-uploads=3", "LISTMULTIPARTUPLOADS"},
		{"CreateBucket", "PUT /bucket", "CREATEBUCKET"},
		{"CreateBucket with a slash", "PUT /bucket/", "CREATEBUCKET"},
		{"DeleteObjects", "POST /bucket?delete", "DELETEOBJECTS"},
		{"GetObject", "GET /bucket/key", "GETOBJECT"},
		{"GetObject in a folder", "GET /bucket/a/b/c?response-content-type=x", "GETOBJECT"},
		{"GetObject that is a folder", "GET /bucket/a/", "GETOBJECT"},
		{"GetObject of a version", "GET /bucket/key?versionId=1", "GETOBJECT"},
		{"GetObject of a part", "GET /bucket/key?partNumber=2", "GETOBJECT"},
		{"GetObject with a blank", "GET /bucket/a%20b", "GETOBJECT"},
		{"PutObject", "PUT /bucket/key", "PUTOBJECT"},
		{"DeleteObject", "DELETE /bucket/key", "DELETEOBJECT"},
		{"DeleteObject of a version", "DELETE /bucket/key?versionId=1", "DELETEOBJECT"},

		{"GetBucketAcl", "GET /bucket?acl", ""},
		{"GetBucketLocation", "GET /bucket/?location=", ""},
		{"GetBucketPolicy", "GET /bucket?policy", ""},
		{"GetBucketVersioning", "GET /bucket?versioning", ""},
		{"GetBucketLifecycleConfiguration", "GET /bucket?lifecycle", ""},
		{"ListBucketMetricsConfigurations", "GET /bucket?metrics", ""},
		{"GetObjectLockConfiguration", "GET /bucket?object-lock", ""},
		{"CreateSession", "GET /bucket?session", ""},
		{"PutBucketPolicy", "PUT /bucket?policy", ""},
		{"PutBucketTagging", "PUT /bucket?tagging", ""},
		{"DeleteBucket", "DELETE /bucket", ""},
		{"HeadBucket", "HEAD /bucket", ""},
		{"HeadObject", "HEAD /bucket/key", ""},
		{"GetObjectAcl", "GET /bucket/key?acl", ""},
		{"GetObjectTagging", "GET /bucket/key?tagging", ""},
		{"GetObjectAttributes", "GET /bucket/key?attributes", ""},
		{"ListParts", "GET /bucket/key?uploadId=1", ""},
		{"PutObjectRetention", "PUT /bucket/key?retention", ""},
		{"UploadPart", "PUT /bucket/key?partNumber=1&uploadId=2", ""},
		{"CreateMultipartUpload", "POST /bucket/key?uploads", ""},
		{"CompleteMultipartUpload", "POST /bucket/key?uploadId=2", ""},
		{"AbortMultipartUpload", "DELETE /bucket/key?uploadId=2", ""},
		{"DeleteObjectTagging", "DELETE /bucket/key?tagging", ""},
		{"SelectObjectContent", "POST /bucket/key?select&select-type=2", ""},
		{"a form upload", "POST /bucket", ""},
		{"GetBucketAcl, host style", "GET /?acl", ""},
	} {
		method, uri, _ := strings.Cut(tt.request, " ")
		u, err := url.ParseRequestURI(uri)
		testkit.Must(t, err)
		if got := classOf(limits.S3Classes(nil), &http.Request{Method: method, URL: u}); got != tt.want {
			t.Errorf("%s (%s) is of the class %q, want %q", tt.operation, tt.request, got, tt.want)
		}
	}
}

// TestS3ClassesAreWhatAFileCanSay: the ready-made classes keep the rules of others.
func TestS3ClassesAreWhatAFileCanSay(t *testing.T) {
	names := []string{}
	for _, c := range limits.S3Classes([]string{"s3.local"}) {
		names = append(names, c.Name)
		if !classForm.MatchString(c.Name) {
			t.Errorf("class %s has a name that is not of the form %s", c.Name, classForm.String())
		}
		m := c.Any[len(c.Any)-1]
		if n := m.Conditions(); n > limits.MaxConditions {
			t.Errorf("class %s has %d conditions", c.Name, n)
		}
		if err := checkRegex(m.PathRegex); err != nil {
			t.Errorf("class %s: path_regex %v", c.Name, err)
		}
		if keys := append(m.Query, m.NoQuery...); len(keys) > 64 || !slices.IsSorted(keys) || slices.ContainsFunc(keys, func(k string) bool { return !queryForm.MatchString(k) }) {
			t.Errorf("class %s has the keys %q, want at most %d, sorted, of the form %s", c.Name, keys, 64, queryForm.String())
		}
	}
	slices.Sort(names)
	want := []string{"CREATEBUCKET", "DELETEOBJECT", "DELETEOBJECTS", "GETOBJECT", "LISTBUCKETS", "LISTMULTIPARTUPLOADS", "LISTOBJECTS", "LISTOBJECTSV2", "LISTOBJECTVERSIONS", "PUTOBJECT"}
	if !slices.Equal(names, want) {
		t.Errorf("the classes are %q, want %q", names, want)
	}
}

func TestRegexThatIsFine(t *testing.T) {
	for _, s := range []string{
		"^/[^/]+/?$", "^/v[0-9]+/", `\.json$`, `^/(a|b|cd)(/x)?$`, `(?i)^/ab`, `(?:a|b)c`, `(?i:x)`, `^/\d{4}-\d{2}$`, `a{2,}`, `a{0,1000}`, `[\w.-]+`, `\bx\b`,
		`[a-z\]\[]`, `^$`, `a|`, `.*\?`, `[^\s]`, `\$\{x\}`, "x}",
	} {
		if err := checkRegex(s); err != nil {
			t.Errorf("checkRegex(%s) = %v, want nil", s, err)
		}
	}
	if err := checkRegex(strings.Repeat("a", maxRegexBytes+1)); err == nil || err.Error() != "must have at most 500 bytes, got 501" {
		t.Errorf("checkRegex of %d bytes = %v", maxRegexBytes+1, err)
	}
}

func FuzzCheckRegex(f *testing.F) {
	for _, s := range []string{"^/[^/]+/?$", `(a|ab)*c`, `a{2}{3}`, `(?i)x`, `[]`, `\`, "((((", "a{1000}{1000}", `[\d-z]`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if err := checkRegex(s); err != nil {
			if err.Error() == "" || len(err.Error()) > 1000 {
				t.Fatalf("checkRegex(%q) = %q, want a short error", s, err)
			}
			return
		}
		if re, err := regexp.Compile(s); err != nil {
			t.Fatalf("checkRegex(%q) = nil, and Compile = %v", s, err)
		} else {
			re.MatchString("/bucket/key")
		}
	})
}
