package limitfile

import (
	"path/filepath"

	"github.com/fsnotify/fsnotify"
)

// events are the changes in the file's directory. Without a working fsnotify
// watcher (a limit of the system, a broken queue) there are none, and Run polls.
type events struct {
	dir string
	fs  *fsnotify.Watcher // nil when closed
}

// watch begins to watch the directory. One that is missing is watched when it
// is there, see rewatch.
func (w *Watcher) watch() *events {
	e := &events{dir: filepath.Dir(w.path)}
	var err error
	if e.fs, err = w.newEvents(); err != nil {
		e.fs = nil
	} else {
		err = e.fs.Add(e.dir)
	}
	if err != nil {
		w.log.Warn("watching the limit file failed, going on by polling", "path", w.path, "error", err)
	}
	return e
}

// changes never delivers when closed.
func (e *events) changes() <-chan fsnotify.Event {
	if e.fs == nil {
		return nil
	}
	return e.fs.Events
}

// errors never delivers when closed.
func (e *events) errors() <-chan error {
	if e.fs == nil {
		return nil
	}
	return e.fs.Errors
}

// rewatch watches the directory if it is not watched: it was missing, or was
// removed and made anew. While that fails, the next poll tries again.
func (e *events) rewatch() {
	if e.fs != nil && len(e.fs.WatchList()) == 0 {
		_ = e.fs.Add(e.dir)
	}
}

func (e *events) close() {
	if e.fs != nil {
		_ = e.fs.Close()
		e.fs = nil
	}
}
