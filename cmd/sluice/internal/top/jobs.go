package top

import (
	"context"
	"fmt"
	"net/url"
	"strconv"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/api/client"
	"github.com/sluice-qos/sluice/internal/terminal"
)

// jobColumns are those of users with background jobs.
var jobColumns = []column{
	{"user", "#user", false},
	{"tier", "tier", false},
	{"running", "running", true},
	{"waiting", "waiting", true},
	{"waits for", "waits_s", true},
	{"oldest job", "oldest_job", true},
	{"held by", "held_by", false},
	{"limit", "limit", true},
}

type jobList struct{ api.Jobs }

func readJobs(ctx context.Context, a *client.Client, n int) (list, error) {
	var l jobList
	query := url.Values{"n": {fmt.Sprint(n)}}
	return &l, a.GetJSON(ctx, "/api/v1/jobs?"+query.Encode(), &l.Jobs)
}

// headline also says which workers did not answer: their users are missing.
func (l *jobList) headline() string {
	line := fmt.Sprintf("%s, users with jobs: %d", answerer(l.From), l.Found)
	if l.Partial {
		line += " or more"
	}
	if len(l.Workers) == 0 {
		return line + ", no workers are asked (--jobs-worker of polygen)"
	}
	for _, worker := range l.Workers {
		if worker.Problem != "" {
			line += "; " + terminal.Printable(worker.Problem)
		}
	}
	return line
}

func (l *jobList) columns() []column { return jobColumns }

func (l *jobList) rows(people bool) (rows [][]string) {
	number := forWhom(people)
	for _, u := range l.Users {
		waiting, since, oldest, held, limit := strconv.Itoa(u.Waiting), "-", "-", "-", "-"
		if u.AtLeast {
			waiting = number(waiting, waiting+"+")
		}
		if u.Since != nil {
			age := max(l.Time.Sub(*u.Since), 0)
			since = number(strconv.FormatFloat(age.Seconds(), 'f', 1, 64), formatAge(age))
		}
		if u.Oldest != nil {
			oldest = strconv.FormatInt(*u.Oldest, 10)
		}
		if u.Held != nil {
			held, limit = "total", strconv.Itoa(u.Held.Max)
			if u.Held.Service != "" {
				held = "queue:" + terminal.QuoteWord(u.Held.Service)
			}
		}
		rows = append(rows, []string{terminal.QuoteWord(u.User), terminal.QuoteWord(u.Tier), strconv.Itoa(u.Running), waiting, since, oldest, held, limit})
	}
	return rows
}
