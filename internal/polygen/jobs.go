package polygen

import (
	"context"

	"github.com/sluice-qos/sluice/internal/api"
)

// Jobs returns the n users with most waiting background jobs, as the workers say.
func (p *Polygen) Jobs(ctx context.Context, n int) api.Jobs {
	out := p.workers.Jobs(ctx, n)
	out.From = p.answerHead()
	for i := range out.Users {
		out.Users[i].Name = api.NameOfKey(out.Users[i].User)
	}
	return out
}

// Job returns why a background job waits, as a worker says.
func (p *Polygen) Job(ctx context.Context, id int64) (api.Job, error) {
	out, err := p.workers.Job(ctx, id)
	out.From = p.answerHead()
	return out, err
}
