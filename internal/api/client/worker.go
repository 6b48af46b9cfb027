package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"syscall"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/terminal"
	"github.com/sluice-qos/sluice/pkg/jobs/workerapi"
)

// Worker asks a worker of background jobs, at the address of riverqos' handler. Its errors are as
// a Client's. It is safe for concurrent use.
type Worker struct{ client *Client }

// NewWorker returns a Worker that connects with the first question. Errors call the flags by these
// names.
func NewWorker(address string, access Access, flags Flags) (*Worker, error) {
	client, err := newClient(address, access, flags)
	return &Worker{client}, err
}

// Close closes idle connections.
func (w *Worker) Close() { w.client.Close() }

// Address is where it is asked.
func (w *Worker) Address() string { return w.client.address }

// Users are the n users with most waiting jobs.
func (w *Worker) Users(ctx context.Context, n int) (list workerapi.UserList, err error) {
	err = w.get(ctx, "/jobs?n="+strconv.Itoa(n), &list)
	if err == nil && list.Database == "" {
		err = w.stranger("200 OK")
	}
	return list, err
}

// Job is why a job waits. The error is api.ErrNoJob if the worker has no such job.
func (w *Worker) Job(ctx context.Context, id int64) (why workerapi.Why, err error) {
	err = w.get(ctx, "/jobs/"+strconv.FormatInt(id, 10), &why)
	if err == nil && why.ID != id {
		err = w.stranger("200 OK")
	}
	return why, err
}

func (w *Worker) get(ctx context.Context, path string, answer any) error {
	req, err := w.client.request(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	res, body, err := w.client.fetch(req)
	if err != nil {
		return w.failed(ctx, err)
	}
	var told struct{ Error string }
	err = json.Unmarshal(body, &told)
	switch {
	case res.StatusCode == http.StatusUnauthorized:
		return w.client.unauthorized()
	case res.StatusCode == http.StatusNotFound && told.Error == api.ErrNoJob.Error():
		return api.ErrNoJob
	case res.StatusCode != http.StatusOK && err == nil && told.Error != "":
		return fmt.Errorf("%s: %s", w.client.address, terminal.QuoteName(told.Error))
	case res.StatusCode != http.StatusOK || json.Unmarshal(body, answer) != nil:
		return w.stranger(res.Status)
	}
	return nil
}

func (w *Worker) stranger(status string) error {
	return fmt.Errorf("what listens at %s does not know of jobs (it answers %s): %s", w.client.address, terminal.QuoteName(status), w.client.flags.Hint())
}

func (w *Worker) failed(ctx context.Context, err error) error {
	var timeout net.Error
	var request *url.Error
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return ctx.Err()
	case errors.Is(err, http.ErrSchemeMismatch):
		return w.client.wrongScheme("http")
	case w.client.distrust(err) != nil:
		return w.client.distrust(err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("nothing listens at %s: %s", w.client.address, w.client.flags.Hint())
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("%s does not answer in time", w.client.address)
	case errors.As(err, &request):
		err = request.Err // without the path
	}
	return fmt.Errorf("ask %s: %s", w.client.address, terminal.Printable(err.Error()))
}
