package client

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
)

// Follow reads a stream of events and passes the JSON of each to take, until take fails, the
// stream ends, or ctx ends, which is no error.
func (a *Client) Follow(ctx context.Context, path string, take func(data []byte) error) error {
	req, err := a.request(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	client := a.client
	client.Timeout = 0 // would end the stream; polygen sends a comment every 10 s
	res, err := client.Do(req)
	if err != nil {
		return orNil(ctx, a.failed(ctx, err))
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "text/event-stream" {
		body, _ := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
		return a.readAnswer(res, body, nil)
	}
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, maxAnswer)
	for lines.Scan() {
		if data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: ")); ok {
			if err := take(data); err != nil {
				return err
			}
		}
	}
	if err := lines.Err(); err != nil {
		return orNil(ctx, a.failed(ctx, err))
	}
	return fmt.Errorf("%s has ended the stream", a.address)
}

// orNil is err, or nil after ctx has ended.
func orNil(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
