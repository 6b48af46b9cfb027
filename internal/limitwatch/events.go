package limitwatch

import (
	"path/filepath"
	"slices"

	"github.com/fsnotify/fsnotify"
)

// events are the changes in the folders of the limit file and of the files of its
// users_from. Without a working fsnotify watcher (a limit of the system, a broken
// queue) there are none, and Run polls.
type events struct {
	fs *fsnotify.Watcher // nil when closed
}

// startEvents begins to watch the folders. One that is missing is watched when it is
// there, see follow.
func (w *Watcher) startEvents() *events {
	e := &events{}
	var err error
	if e.fs, err = w.newEvents(); err != nil {
		e.fs = nil
	} else {
		err = e.fs.Add(filepath.Dir(w.path))
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

// follow watches exactly these folders. One that is missing, or was removed and
// made anew, is watched at a later call: while that fails, polling sees changes. It
// reports whether one is watched that was not, in which something may have changed.
func (e *events) follow(folders []string) (more bool) {
	if e.fs == nil {
		return false
	}
	watched := e.fs.WatchList()
	for _, folder := range folders {
		if !slices.Contains(watched, folder) && e.fs.Add(folder) == nil {
			more = true
		}
	}
	for _, folder := range watched {
		if !slices.Contains(folders, folder) {
			_ = e.fs.Remove(folder)
		}
	}
	return more
}

func (e *events) stopEvents() {
	if e.fs != nil {
		_ = e.fs.Close()
		e.fs = nil
	}
}
