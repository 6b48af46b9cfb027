package origin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	// ChatPath is answered as a language model would, in the chat-completions form of OpenAI.
	ChatPath = "/v1/chat/completions"

	// MaxChatBody is the largest request to ChatPath, in bytes.
	MaxChatBody = 1 << 20
	// MaxTokens is the largest max_tokens of a request to ChatPath.
	MaxTokens = 32768

	defaultTokens = 256 // max_tokens of a request that does not say
	maxModel      = 100 // bytes: each part of a stream repeats the model's name
)

type chat struct {
	model     string
	prompt    int // tokens
	maxTokens int
	stream    bool
	usage     bool // a stream ends with its usage
}

// completion is how many tokens the answer has: half of those that are asked for, so that estimates
// by max_tokens are far from what is used, as they are in practice.
func (c chat) completion() int { return (c.maxTokens + 1) / 2 }

type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

func (c chat) used() usage {
	return usage{Prompt: c.prompt, Completion: c.completion(), Total: c.prompt + c.completion()}
}

// parseChat reads the body of a request to ChatPath. Fields that it does not know are left alone.
func parseChat(body []byte) (chat, error) {
	var said struct {
		Model    string `json:"model"`
		Messages []struct {
			Content content `json:"content"`
		} `json:"messages"`
		MaxTokens     *int `json:"max_tokens"`
		Stream        bool `json:"stream"`
		StreamOptions struct {
			IncludeUsage *bool `json:"include_usage"`
		} `json:"stream_options"`
	}
	if err := json.Unmarshal(body, &said); err != nil {
		return chat{}, fmt.Errorf("body: %w", err)
	}
	c := chat{model: said.Model, maxTokens: defaultTokens, stream: said.Stream, usage: true}
	if said.MaxTokens != nil {
		c.maxTokens = *said.MaxTokens
	}
	// OpenAI's says it only to who asks. Here it can be left out, to see what follows from that.
	if include := said.StreamOptions.IncludeUsage; include != nil {
		c.usage = *include
	}
	for _, m := range said.Messages {
		c.prompt += m.Content.words
	}
	switch {
	case len(said.Messages) == 0:
		return chat{}, errors.New("messages: want at least one")
	case c.maxTokens < 1 || c.maxTokens > MaxTokens:
		return chat{}, fmt.Errorf("max_tokens %d: want 1 to %d", c.maxTokens, MaxTokens)
	case len(c.model) > maxModel:
		return chat{}, fmt.Errorf("model: want at most %d bytes", maxModel)
	}
	return c, nil
}

// content is that of a message: text, or a list of parts of which some are text.
type content struct{ words int }

// UnmarshalJSON implements json.Unmarshaler.
func (c *content) UnmarshalJSON(data []byte) error {
	var text string
	var parts []struct {
		Text string `json:"text"`
	}
	if bytes.HasPrefix(data, []byte("[")) {
		if err := json.Unmarshal(data, &parts); err != nil {
			return err
		}
	} else if err := json.Unmarshal(data, &text); err != nil { // null is none
		return err
	}
	// Nearly what a tokenizer makes of plain English, and anybody can count it.
	c.words = len(strings.Fields(text))
	for _, p := range parts {
		c.words += len(strings.Fields(p.Text))
	}
	return nil
}

// parsePace reads ms_per_token of the query: how long the model takes for each of so many tokens.
func parsePace(text string, tokens int) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	most := MaxSleep.Milliseconds() / int64(tokens)
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil || ms < 0 || ms > most {
		return 0, fmt.Errorf("ms_per_token %q: want 0 to %d for %d tokens, which take %v at most", text, most, tokens, MaxSleep)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

func answerChat(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxChatBody))
	if err != nil {
		status := http.StatusBadRequest
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			status = http.StatusRequestEntityTooLarge
		}
		refuseChat(w, status, err)
		return
	}
	c, err := parseChat(body)
	if err != nil {
		refuseChat(w, http.StatusBadRequest, err)
		return
	}
	pace, err := parsePace(r.URL.Query().Get("ms_per_token"), c.completion())
	switch {
	case err != nil:
		refuseChat(w, http.StatusBadRequest, err)
	case c.stream:
		streamChat(w, r, c, pace)
	case wait(r.Context(), pace*time.Duration(c.completion())):
		var text strings.Builder
		for i := range c.completion() {
			text.WriteString(token(i))
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer{
			ID: answerID, Object: "chat.completion", Model: c.model,
			Choices: []choice{{Message: &message{"assistant", text.String()}, FinishReason: &stop}}, Usage: new(c.used()),
		}) // the client may have gone away
	}
}

// streamChat sends one event for each token, then one that says why the answer ends, and one with
// what was used.
func streamChat(w http.ResponseWriter, r *http.Request, c chat, pace time.Duration) {
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	send := func(event any) bool {
		data, err := json.Marshal(event)
		if err != nil {
			return false // cannot be: all fields are text and numbers
		}
		_, err = fmt.Fprintf(w, "data: %s\n\n", data)
		return err == nil && out.Flush() == nil
	}
	part := func(of choice) answer {
		return answer{ID: answerID, Object: "chat.completion.chunk", Model: c.model, Choices: []choice{of}}
	}
	for i := range c.completion() {
		if !wait(r.Context(), pace) || !send(part(choice{Delta: &message{"assistant", token(i)}})) {
			return
		}
	}
	if !send(part(choice{Delta: &message{}, FinishReason: &stop})) {
		return
	}
	if c.usage && !send(answer{ID: answerID, Object: "chat.completion.chunk", Model: c.model, Choices: []choice{}, Usage: new(c.used())}) {
		return
	}
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}

// What an answer is made of. It is the same for the same request, so that tests can compare it.
type answer struct {
	ID      string   `json:"id"`
	Object  string   `json:"object"`
	Created int64    `json:"created"`
	Model   string   `json:"model"`
	Choices []choice `json:"choices"`
	Usage   *usage   `json:"usage,omitempty"`
}

type choice struct {
	Index        int      `json:"index"`
	Message      *message `json:"message,omitempty"`
	Delta        *message `json:"delta,omitempty"`
	FinishReason *string  `json:"finish_reason"`
}

type message struct {
	Role    string `json:"role,omitempty"`
	Content string `json:"content,omitempty"`
}

const answerID = "chatcmpl-demo"

var stop = "stop"

var words = strings.Fields("the demo origin says nothing of worth, and as much of it as you pay for.")

// token is one of an answer, by its number.
func token(i int) string {
	if i == 0 {
		return words[0]
	}
	return " " + words[i%len(words)]
}

func refuseChat(w http.ResponseWriter, status int, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]string{"message": err.Error(), "type": "invalid_request_error"}}) // the client may have gone away
}

// wait waits, and reports whether somebody still waits for the answer.
func wait(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	// Not waited through: a request that nobody waits for must not count as in progress.
	case <-ctx.Done(): // the client went away, or Serve ends
		return false
	}
}
