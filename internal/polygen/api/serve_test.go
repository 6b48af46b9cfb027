package api

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/testkit"
)

// A client who never reads the answer must not keep memory and a connection for ever.
func TestAnswerThatNobodyReadsEnds(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	failed, done := make(chan error, 1), make(chan error, 1)
	go func() {
		done <- serveWithin(ctx, l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, err := w.Write(make([]byte, 64<<20)) // more than fits in between
			failed <- err
		}), slog.New(slog.DiscardHandler), 200*time.Millisecond, testkit.Patience)
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
	select {
	case err := <-failed:
		if err == nil {
			t.Error("the answer was written, though nobody reads it")
		}
	case <-time.After(testkit.Patience):
		t.Error("the answer is still being written")
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("serve() = %v", err)
	}
}

// Who writes something is to learn what became of it, though the process is to end.
func TestServeFinishesWhatIsUnderWay(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	asked, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- serveWithin(ctx, l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			close(asked)
			select {
			case err := <-ended:
				ended <- err
				fmt.Fprint(w, "too late")
			case <-time.After(200 * time.Millisecond):
				fmt.Fprint(w, "in time")
			}
		}), slog.New(slog.DiscardHandler), testkit.Patience, testkit.Patience)
	}()
	go func() {
		<-asked
		cancel()
	}()
	if _, body, err := get("http://" + l.Addr().String()); body != "in time" || err != nil {
		t.Errorf("an answer under way at the end = %q, %v, want that serve() waits for it", body, err)
	}
	if err := <-ended; err != nil {
		t.Errorf("serve() = %v", err)
	}
}

func get(url string) (status int, body string, err error) {
	res, err := http.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	var b bytes.Buffer
	_, err = b.ReadFrom(res.Body)
	return res.StatusCode, b.String(), err
}

// To HTTP/2 a deadline that passes while nothing is written is an end, too.
func TestIdleStreamOverHTTP2(t *testing.T) {
	l := newTap()
	p := pace{alive: 300 * time.Millisecond, write: 100 * time.Millisecond}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.stream(w, r, l.messages)
	}))
	s.EnableHTTP2 = true
	s.Config.WriteTimeout = 100 * time.Millisecond
	s.StartTLS()
	defer s.Close()
	testkit.Eventually(t, "an idle stream is kept alive", func() error { // a slow machine may not write in time
		res, err := s.Client().Get(s.URL)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		body, want := bufio.NewReader(res.Body), ": the stream begins"
		for range 4 {
			if got, err := block(body); got != want || err != nil {
				return fmt.Errorf("the stream has %q, %w, want %q", got, err, want)
			}
			want = ": nothing new"
		}
		return nil
	})
}

// A stream ends when the token that it was asked for with does.
func TestStreamEndsWithItsToken(t *testing.T) {
	g, path, _, reg := gated(t, "ann "+annsToken+"\nbob "+bobsToken)
	l := newTap()
	address, _, _ := serving(t, Handler(Options{Gatherer: reg, Live: l, Gate: g}))
	request, err := http.NewRequest(http.MethodGet, "http://"+address+"/api/v1/live", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+annsToken)
	res, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body := bufio.NewReader(res.Body)
	wantBlock(t, body, ": the stream begins")
	l.messages <- &api.Message{Event: "live", Value: 1}
	wantBlock(t, body, "event: live\ndata: 1")

	write(t, path, "bob "+bobsToken)
	testkit.Eventually(t, "the token is not good any more", func() error {
		if _, ok := g.tokens.current().ownerOf(annsToken); ok {
			return errors.New("it is")
		}
		return nil
	})
	l.messages <- &api.Message{Event: "live", Value: 2}
	if got, err := block(body); got != "" || !errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("without the token: %q, %v, want an end that is meant", got, err)
	}
	l.awaitStop(t)
}
