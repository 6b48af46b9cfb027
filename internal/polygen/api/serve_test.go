package api

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/internal/testkit"
)

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
	g, path := gated(t, "ann "+annsToken+"\nbob "+bobsToken)
	l := newTap()
	address, _, _ := serving(t, daemon.AdminHandler(daemon.AdminOptions{Gatherer: prometheus.NewRegistry(), Gate: g, Routes: Routes(nil, l, nil)}))
	request, err := http.NewRequest(http.MethodGet, "http://"+address+"/api/v1/live", nil)
	testkit.Must(t, err)
	request.Header.Set("Authorization", "Bearer "+annsToken)
	res, err := http.DefaultClient.Do(request)
	testkit.Must(t, err)
	defer res.Body.Close()
	body := bufio.NewReader(res.Body)
	wantBlock(t, body, ": the stream begins")
	l.messages <- &api.Message{Event: "live", Value: 1}
	wantBlock(t, body, "event: live\ndata: 1")

	replaceFile(t, path, "bob "+bobsToken)
	testkit.Eventually(t, "the token is not good any more", func() error {
		request.URL.Path = "/metrics"
		res, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		res.Body.Close()
		if res.StatusCode != http.StatusUnauthorized {
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
