package daemon

import (
	"log/slog"
	"os"
	"strings"
)

// WarnOfReaders tells of a file with secrets that every user of this machine may
// read. Those that Kubernetes mounts are such, and are links into ..data: there
// nobody else is.
func WarnOfReaders(log *slog.Logger, path string) {
	if link, err := os.Readlink(path); err == nil && strings.HasPrefix(link, "..data/") {
		return
	}
	if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o004 != 0 {
		log.Warn("every user of this machine can read a secret: take that away with chmod o-r", "path", path)
	}
}
