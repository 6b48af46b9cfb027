package apiclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/sluice-qos/sluice/internal/terminal"
	"github.com/sluice-qos/sluice/pkg/jobs"
)

// WorkerHint says what to do without a worker that answers.
const WorkerHint = "name the address of a worker's riverqos handler with --worker"

// AskJob asks a worker of background jobs at an address why a job waits.
func AskJob(ctx context.Context, worker string, access Access, id int64) (why jobs.Why, err error) {
	a, err := NewClient(worker, access)
	if err != nil {
		return why, errors.New(strings.ReplaceAll(err.Error(), Hint, WorkerHint))
	}
	defer a.Close()
	req, err := a.request(ctx, http.MethodGet, "/jobs/"+strconv.FormatInt(id, 10), nil)
	if err != nil {
		return why, err
	}
	res, body, err := a.fetch(req)
	if err != nil {
		return why, fmt.Errorf("ask %s: %s: %s", worker, terminal.Printable(err.Error()), WorkerHint)
	}
	var told struct{ Error string }
	err = json.Unmarshal(body, &told)
	switch {
	case res.StatusCode != http.StatusOK && err == nil && told.Error != "":
		return why, fmt.Errorf("job %d: %s", id, terminal.QuoteName(told.Error))
	case res.StatusCode != http.StatusOK || json.Unmarshal(body, &why) != nil || why.ID != id:
		return why, fmt.Errorf("what listens at %s does not know of jobs (it answers %s): %s", worker, terminal.QuoteName(res.Status), WorkerHint)
	}
	return why, nil
}
