package flags

import "github.com/sluice-qos/sluice/internal/api/client"

// JobWorkers are the flags that say which workers of background jobs are asked whose jobs run and wait.
type JobWorkers struct {
	Addresses []string `name:"jobs-worker" help:"Worker of background jobs to ask whose jobs run and wait, for the page, the API and sluice top --jobs: the address of its riverqos handler, host:port or https://host:port. It can be given again; one or two for each database are enough, unless slots are in memory." placeholder:"ADDR" env:"SLUICE_JOBS_WORKER"`
	TokenFile string   `name:"jobs-token-file" help:"File with the token for these workers. The first one is sent, and only by https or to this machine." placeholder:"FILE" predictor:"file" env:"SLUICE_JOBS_TOKEN_FILE"`
	CA        string   `name:"jobs-ca" help:"File with the CA certificates to trust for an https --jobs-worker, instead of the system's." placeholder:"FILE" predictor:"file" env:"SLUICE_JOBS_CA"`
}

// Access is how to be let in by them.
func (w JobWorkers) Access() client.Access {
	return client.Access{TokenFile: w.TokenFile, CA: w.CA}
}
