package load

import (
	"syscall"
	"testing"
)

// What another process has, too, for it is just being started, is out of the poller once it is closed.
func TestClosedSocketHasNoEvents(t *testing.T) {
	p, err := newPoller()
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(pair[1])
	theirs, err := syscall.Dup(pair[0])
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(theirs)
	if err := p.add(pair[0], readable); err != nil {
		t.Fatal(err)
	}
	if n := write(pair[1], []byte("x")); n != 1 {
		t.Fatalf("write() = %d, want 1", n)
	}
	if events, err := p.wait(0); err != nil || len(events) != 1 {
		t.Fatalf("wait() = %v, %v, want the event", events, err)
	}
	p.closeSocket(pair[0])
	if events, err := p.wait(0); err != nil || len(events) != 0 {
		t.Errorf("wait() = %v, %v once it is closed, want none", events, err)
	}
}
