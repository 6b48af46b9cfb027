package cli

// UserMetrics are the flags that say which users have series of their own.
type UserMetrics struct {
	Top   int      `name:"user-metrics-top" help:"Give so many users with most requests per second series of their own in /metrics (sluice_user_...); 100 at most. A user who was among them keeps these series for five minutes." default:"0" placeholder:"K" env:"SLUICE_USER_METRICS_TOP"`
	Users []string `name:"user-metrics" help:"And these users, 100 at most." placeholder:"NAME,..." env:"SLUICE_USER_METRICS"`
}
