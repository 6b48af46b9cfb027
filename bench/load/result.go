package load

import "net/http"

// A Result is what became of one request. Times are wall-clock nanoseconds
// since 1970, taken from one reading of the wall clock at the start and the
// monotonic clock from there on; zero means that it did not happen.
type Result struct {
	Scheduled int64  // when it was due
	Sent      int64  // just before its first byte was written
	Answered  int64  // when the head of the answer arrived at this machine's kernel
	Received  int64  // when its last byte did, or when it was given up
	User      int32  // index into Report.WriteUsers
	Target    uint16 // index into Spec.Targets
	Status    uint16 // of the answer; 0 if there was none
	Reason    uint8  // index into Report.Reasons
	Failure   Failure
}

// Admitted reports whether the request was let through: answered with 2xx,
// even if the body broke off later.
func (r Result) Admitted() bool { return r.Status/100 == 2 }

// Refused reports whether a limit refused the request: it was answered with
// 429, or with any other error and a Sluice-Reason.
func (r Result) Refused() bool {
	return r.Status == http.StatusTooManyRequests || r.Status >= 400 && r.Reason != 0
}

// A Failure is why a request has no complete answer. The zero value is that it
// has one.
type Failure uint8

const (
	Answered   Failure = iota
	Dropped            // not sent: no connection was free within the timeout
	NoConnect          // not sent: the connection for it could not be made
	Closed             // the server closed the connection before the end of the answer
	TimedOut           // the answer was not complete within the timeout
	Malformed          // the answer was not HTTP
	Unfinished         // the run was ended first
	failures
)

var failureNames = [failures]string{"answered", "dropped", "no connection", "closed", "timed out", "malformed", "unfinished"}

// String returns a word or two, such as "timed out".
func (f Failure) String() string {
	if f < failures {
		return failureNames[f]
	}
	return "unknown"
}
