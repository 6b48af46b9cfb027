package origin

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sluice-qos/sluice/internal/testkit"
)

const hello = `{"model":"demo","messages":[{"role":"system","content":"be kind"},{"role":"user","content":" hello  you "}],"max_tokens":5`

func TestChat(t *testing.T) {
	const id, refused = `{"id":"chatcmpl-demo","object":"chat.completion`, `{"error":{"message":`
	part := func(delta, finish string) string {
		return "data: " + id + `.chunk","created":0,"model":"demo","choices":[{"index":0,"delta":{` + delta + `},"finish_reason":` + finish + "}]}\n\n"
	}
	stream := part(`"role":"assistant","content":"the"`, "null") + part(`"role":"assistant","content":" demo"`, "null") + part(`"role":"assistant","content":" origin"`, "null") + part("", `"stop"`)
	said := "data: " + id + `.chunk","created":0,"model":"demo","choices":[],"usage":{"prompt_tokens":4,"completion_tokens":3,"total_tokens":7}}` + "\n\n"
	s := httptest.NewServer(New())
	defer s.Close()
	for _, tt := range []struct {
		name, query, body string
		status            int
		kind, want        string
	}{
		{"an answer", "", hello + "}", 200, "application/json",
			id + `","created":0,"model":"demo","choices":[{"index":0,"message":{"role":"assistant","content":"the demo origin"},"finish_reason":"stop"}],"usage":{"prompt_tokens":4,"completion_tokens":3,"total_tokens":7}}` + "\n"},
		{"an answer that takes its time", "?ms_per_token=1", `{"messages":[{}],"max_tokens":1}`, 200, "application/json",
			id + `","created":0,"model":"","choices":[{"index":0,"message":{"role":"assistant","content":"the"},"finish_reason":"stop"}],"usage":{"prompt_tokens":0,"completion_tokens":1,"total_tokens":1}}` + "\n"},
		{"a stream", "", hello + `,"stream":true}`, 200, "text/event-stream", stream + said + "data: [DONE]\n\n"},
		{"a stream that is asked for its usage", "?ms_per_token=1", hello + `,"stream":true,"stream_options":{"include_usage":true}}`, 200, "text/event-stream", stream + said + "data: [DONE]\n\n"},
		{"a stream without its usage", "", hello + `,"stream":true,"stream_options":{"include_usage":false}}`, 200, "text/event-stream", stream + "data: [DONE]\n\n"},
		{"no JSON", "", "hello", 400, "application/json", refused + `"body: invalid character 'h' looking for beginning of value","type":"invalid_request_error"}}` + "\n"},
		{"no messages", "", `{"max_tokens":5}`, 400, "application/json", refused + `"messages: want at least one","type":"invalid_request_error"}}` + "\n"},
		{"no tokens", "", `{"messages":[{}],"max_tokens":0}`, 400, "application/json", refused + `"max_tokens 0: want 1 to 32768","type":"invalid_request_error"}}` + "\n"},
		{"too many tokens", "", `{"messages":[{}],"max_tokens":32769}`, 400, "application/json", refused + `"max_tokens 32769: want 1 to 32768","type":"invalid_request_error"}}` + "\n"},
		{"a long name", "", `{"messages":[{}],"model":"` + strings.Repeat("x", 101) + `"}`, 400, "application/json", refused + `"model: want at most 100 bytes","type":"invalid_request_error"}}` + "\n"},
		{"no pace", "?ms_per_token=fast", hello + "}", 400, "application/json", refused + `"ms_per_token \"fast\": want 0 to 20000 for 3 tokens, which take 1m0s at most","type":"invalid_request_error"}}` + "\n"},
		{"too slow", "?ms_per_token=20001", hello + "}", 400, "application/json", refused + `"ms_per_token \"20001\": want 0 to 20000 for 3 tokens, which take 1m0s at most","type":"invalid_request_error"}}` + "\n"},
		{"too large", "", `{"x":"` + strings.Repeat("x", MaxChatBody) + `"}`, 413, "application/json", refused + `"http: request body too large","type":"invalid_request_error"}}` + "\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			resp, err := s.Client().Post(s.URL+ChatPath+tt.query, "application/json", strings.NewReader(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != tt.status || resp.Header.Get("Content-Type") != tt.kind || string(body) != tt.want {
				t.Errorf("POST %s = %d %s\n%s\nwant %d %s\n%s", tt.body, resp.StatusCode, resp.Header.Get("Content-Type"), body, tt.status, tt.kind, tt.want)
			}
		})
	}
}

func TestParseChat(t *testing.T) {
	for _, tt := range []struct {
		name, body         string
		prompt, completion int
		stream, usage      bool
	}{
		{"256 tokens if nothing is said", `{"messages":[{"content":"a b"}]}`, 2, 128, false, true},
		{"the half is rounded up", `{"messages":[{"content":"a"}],"max_tokens":1}`, 1, 1, false, true},
		{"the most", `{"messages":[{"content":"a"}],"max_tokens":32768}`, 1, 16384, false, true},
		{"parts, of which an image is no text", `{"messages":[{"content":[{"type":"text","text":"a b c"},{"type":"image_url","image_url":{"url":"x"}},{"type":"text","text":"d"}]}],"max_tokens":2}`, 4, 1, false, true},
		{"no content, as where a tool is called", `{"messages":[{"content":null},{"role":"user"}],"max_tokens":2}`, 0, 1, false, true},
		{"a stream without usage", `{"messages":[{"content":"a"}],"max_tokens":2,"stream":true,"stream_options":{"include_usage":false}}`, 1, 1, true, false},
		{"other fields", `{"messages":[{"content":"a"}],"max_tokens":2,"temperature":0.5,"tools":[{}]}`, 1, 1, false, true},
	} {
		c, err := parseChat([]byte(tt.body))
		want := usage{tt.prompt, tt.completion, tt.prompt + tt.completion}
		if err != nil || c.used() != want || c.stream != tt.stream || c.usage != tt.usage {
			t.Errorf("%s: parseChat(%s) = %+v, %v, want %+v, stream %v, usage %v", tt.name, tt.body, c, err, want, tt.stream, tt.usage)
		}
	}
	for _, body := range []string{"", "[]", `{"messages":[{"content":5}]}`, `{"messages":[{"content":[5]}]}`, `{"messages":[{}],"max_tokens":1.5}`, `{"messages":[{}],"max_tokens":99999999999999999999}`, `{"messages":[{}]}{}`} {
		if c, err := parseChat([]byte(body)); err == nil {
			t.Errorf("parseChat(%s) = %+v, want an error", body, c)
		}
	}
}

// Each token is sent when it is there: a client sees the first one while the others are still to come. Who goes
// away in the middle is in progress no more.
func TestChatStreamsAtItsPace(t *testing.T) {
	o := New()
	s := httptest.NewServer(o)
	defer s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// The tokens after the first one would take 50 s.
	req, err := http.NewRequestWithContext(ctx, "POST", s.URL+ChatPath+"?ms_per_token=500", strings.NewReader(`{"messages":[{}],"max_tokens":200,"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := s.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var event answer
	first, err := bufio.NewReader(resp.Body).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(strings.TrimPrefix(first, "data: ")), &event); err != nil || event.Choices[0].Delta.Content != "the" {
		t.Errorf("the first event is %q, %v, want the first token", first, err)
	}
	if c := o.Counts(); c.Active != 1 {
		t.Errorf("Counts() = %+v after the first event, want one in progress", c)
	}
	cancel()
	testkit.Eventually(t, "the request ends", func() error {
		if c := o.Counts(); c.Active != 0 {
			return fmt.Errorf("Counts() = %+v", c)
		}
		return nil
	})
	if _, err := io.Copy(io.Discard, resp.Body); !errors.Is(err, context.Canceled) {
		t.Errorf("the rest of the stream = %v, want %v", err, context.Canceled)
	}
}

func TestCost(t *testing.T) {
	s := httptest.NewServer(New())
	defer s.Close()
	for _, tt := range []struct {
		method, path string
		status       int
		header, body string
	}{
		{"GET", "/cost/0", 200, "0", "cost 0\n"},
		{"GET", "/cost/120", 200, "120", "cost 120\n"},
		{"HEAD", "/cost/120", 200, "120", ""},
		{"DELETE", "/cost/1000000000000", 200, "1000000000000", "cost 1000000000000\n"},
		{"GET", "/cost/1000000000001", 400, "", "cost \"1000000000001\": want 0 to 1000000000000\n"},
		{"GET", "/cost/-1", 400, "", "cost \"-1\": want 0 to 1000000000000\n"},
		{"GET", "/cost/", 400, "", "cost \"\": want 0 to 1000000000000\n"},
	} {
		req, err := http.NewRequest(tt.method, s.URL+tt.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := s.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err := errors.Join(err, resp.Body.Close()); err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != tt.status || resp.Header.Get(CostHeader) != tt.header || string(body) != tt.body {
			t.Errorf("%s %s = %d, header %q, %q, want %+v", tt.method, tt.path, resp.StatusCode, resp.Header.Get(CostHeader), body, tt)
		}
	}
}
