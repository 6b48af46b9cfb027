package peers

import (
	"bufio"
	"fmt"
	"strconv"
)

// appendHello appends the three lines with which the dialing side starts: the protocol,
// the other side's name, and its own.
func appendHello(b []byte, remote, local string, pid int) []byte {
	return fmt.Appendf(b, "HAProxyS 2.1\n%s\n%s %d 1\n", remote, local, pid)
}

type statusError int

const statusOK = 200

func (s statusError) Error() string {
	reason := "unknown reason"
	switch s {
	case 300:
		reason = "try again later"
	case 501:
		reason = "protocol error"
	case 502:
		reason = "protocol version not spoken"
	case 503:
		reason = "its peer name is another one"
	case 504:
		reason = "its peers section does not name this peer"
	}
	return fmt.Sprintf("refused with status %d: %s", int(s), reason)
}

// readStatus reads the answer to a hello, "200\n", byte by byte: what follows
// belongs to the session. Any other status is returned as a statusError.
func readStatus(r *bufio.Reader) error {
	// Not a line of any length: HAProxy answers with three digits, and what follows is not text.
	var line [4]byte
	for i := range line {
		b, err := r.ReadByte()
		if err != nil {
			return err
		}
		line[i] = b
	}
	status, err := strconv.ParseUint(string(line[:3]), 10, 16)
	if err != nil || status < 100 || line[3] != '\n' {
		return protocolErrorf("status line %q", line[:])
	}
	// Told by its number, for most of them are a name that is wrong in one of the two configurations.
	if status != statusOK {
		return statusError(status)
	}
	return nil
}
