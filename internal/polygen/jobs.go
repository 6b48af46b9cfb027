package polygen

import (
	"context"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// Jobs returns the n users with most waiting background jobs, as the workers say.
func (p *Polygen) Jobs(ctx context.Context, n int) api.Jobs {
	out, set := p.workers.Jobs(ctx, n), p.set.Load()
	out.From = p.answerHead()
	for i := range out.Users {
		out.Users[i].Name = api.NameOfKey(jobUser(set, out.Users[i].User))
	}
	return out
}

// Job returns why a background job waits, as a worker says.
func (p *Polygen) Job(ctx context.Context, id int64) (api.Job, error) {
	out, err := p.workers.Job(ctx, id)
	out.From = p.answerHead()
	set := p.set.Load()
	for i := range out.Jobs {
		out.Jobs[i].User = jobUser(set, out.Jobs[i].User)
	}
	return out, err
}

// jobUser is what answers call the user of a job. Workers know the name, and where names are hidden it goes
// no further than this. "" is a job without a user.
func jobUser(set *limits.Set, name string) string {
	if name == "" || set.Secrets() == nil {
		return name
	}
	return set.Key(name)
}
