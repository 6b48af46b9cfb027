package flags

// UserMetrics are the flags that say which users have series of their own.
type UserMetrics struct {
	Top   int      `name:"user-metrics-top" help:"Number of users with the most requests per second who get their own series in /metrics (sluice_user_...), 100 at most. A user keeps these series for five minutes." default:"0" placeholder:"K" env:"SLUICE_USER_METRICS_TOP"`
	Users []string `name:"user-metrics" help:"Users who always get their own series, 100 at most." placeholder:"NAME,..." env:"SLUICE_USER_METRICS"`
}
