package riverqos

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

// answerTimeout bounds how long a statement, or a call of the Slots that a sweep makes,
// may take. A server that is silent, or a connection that nobody told of its end, would
// hold up a loop for ever otherwise.
const answerTimeout = 5 * time.Second

// Config says how to be fair. Runner, with Slots and Tiers, Pool and User are required.
type Config struct {
	// Runner says how jobs run in slots. Its Reserve should be longer than River's FetchPollInterval. The
	// Name is river's, and what only River has (Queue, Sweep) is set here.
	Runner jobs.RunnerConfig

	// Pool is of the database that River's tables are in. A worker needs a connection of
	// it beside the one that River's client listens on.
	Pool *pgxpool.Pool
	// Schema is that of River's tables; "" is the one that the search path finds.
	Schema string
	// User finds the user of a job.
	User UserFunc
	// Namespace tells the jobs of this database from those of others that share the
	// Slots; "" is the schema.
	Namespace string
	// Ungated lets all jobs be available to workers at once: a long backlog of one user
	// then holds up the others.
	Ungated bool
	// GateFor is after what time a gated job becomes available should nobody run Run; 0
	// means 1 h. Run keeps putting it off.
	GateFor time.Duration
}

// complete returns the configuration with its defaults, or what is wrong with it.
func (c Config) complete() (Config, error) {
	if c.Pool == nil || c.User == nil {
		return Config{}, errors.New("riverqos: Pool and User are required")
	}
	// River counts jobs from 1 in each schema.
	c.Namespace = cmp.Or(c.Namespace, c.Schema)
	c.Runner.Name = "river." + c.Namespace
	c.GateFor = cmp.Or(c.GateFor, time.Hour)
	// A ticker of 0 would panic.
	if c.GateFor < 0 {
		return Config{}, fmt.Errorf("riverqos: GateFor is %v, want a positive duration", c.GateFor)
	}
	return c, nil
}
