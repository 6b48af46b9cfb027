package load

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"
	"unsafe"
)

// address is a socket address in the form that connect(2) takes.
func address(a netip.AddrPort) (family int, sa syscall.Sockaddr) {
	if a.Addr().Is4() {
		return syscall.AF_INET, &syscall.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return syscall.AF_INET6, &syscall.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// connect begins a connection, from the n-th address of the loopback unless n is 0. The socket is
// writable once it is established or has failed.
func connect(family int, sa syscall.Sockaddr, n int) (fd int, err error) {
	fd, err = syscall.Socket(family, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	err = syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1)
	if err == nil {
		err = stampArrivals(fd)
	}
	if err == nil && n > 0 && family == syscall.AF_INET {
		err = bindSource(fd, n)
	}
	if err == nil {
		err = syscall.Connect(fd, sa)
	}
	if err != nil && !errors.Is(err, syscall.EINPROGRESS) {
		_ = syscall.Close(fd)
		return -1, err
	}
	return fd, nil
}

// bindSource chooses the address that a connection comes from. Its port is chosen with the connection: before, it would have
// to be one that no connection to any server has.
func bindSource(fd, n int) error {
	const bindAddressNoPort = 24 // IP_BIND_ADDRESS_NO_PORT, which syscall does not have
	if err := syscall.SetsockoptInt(fd, syscall.IPPROTO_IP, bindAddressNoPort, 1); err != nil {
		return err
	}
	return syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, byte(n)}})
}

func connected(fd int) bool {
	e, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_ERROR)
	return err == nil && e == 0
}

// A receiver reads from sockets, with the time at which the kernel got the data.
type receiver struct {
	buf     [64 << 10]byte
	part    syscall.Iovec
	message syscall.Msghdr
	control struct { // what the kernel adds, as asked for by stampArrivals
		header  syscall.Cmsghdr
		arrived syscall.Timespec
	}
}

func newReceiver() *receiver {
	r := new(receiver)
	r.part = syscall.Iovec{Base: &r.buf[0], Len: uint64(len(r.buf))}
	return r
}

// stampArrivals asks for the arrival times of a socket's data.
func stampArrivals(fd int) error {
	return syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_TIMESTAMPNS, 1)
}

// read returns what has arrived, valid until the next read, and when the last
// of it did, in nanoseconds since 1970; without open the connection is of no
// more use.
func (r *receiver) read(fd int) (b []byte, arrived int64, open bool) {
	for {
		r.message = syscall.Msghdr{
			Iov: &r.part, Iovlen: 1,
			Control: (*byte)(unsafe.Pointer(&r.control)), Controllen: uint64(unsafe.Sizeof(r.control)),
		}
		n, _, errno := syscall.Syscall(syscall.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&r.message)), 0)
		switch {
		case errno == syscall.EINTR:
		case errno == syscall.EAGAIN:
			return nil, 0, true
		case errno != 0 || n == 0:
			return nil, 0, false
		default:
			if r.message.Controllen < uint64(unsafe.Sizeof(r.control)) || r.control.header.Type != syscall.SO_TIMESTAMPNS {
				return r.buf[:n], time.Now().UnixNano(), true
			}
			return r.buf[:n], r.control.arrived.Nano(), true
		}
	}
}

// write is write(2), which an interrupt does not end. It returns -1 when the
// connection is of no more use, and 0 when nothing can be written now.
func write(fd int, b []byte) int {
	for {
		n, err := syscall.Write(fd, b)
		switch {
		case err == syscall.EINTR:
		case err == syscall.EAGAIN:
			return 0
		case err != nil:
			return -1
		default:
			return n
		}
	}
}

type poller struct {
	fd     int
	events [256]syscall.EpollEvent
}

const (
	readable = syscall.EPOLLIN | syscall.EPOLLRDHUP
	writable = syscall.EPOLLOUT
)

func newPoller() (*poller, error) {
	fd, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll_create1: %w", err)
	}
	p := &poller{fd: fd}
	if _, err := p.wait(0); err != nil {
		p.close()
		return nil, fmt.Errorf("epoll_pwait2, which needs Linux 5.11: %w", err)
	}
	return p, nil
}

func (p *poller) close() { _ = syscall.Close(p.fd) }

// closeSocket closes a socket of the poller. To close it is not enough: a process that is just being started has it, too,
// for a moment, and until then there would be events of a descriptor that may be another one's.
func (p *poller) closeSocket(fd int) {
	_ = syscall.EpollCtl(p.fd, syscall.EPOLL_CTL_DEL, fd, nil)
	_ = syscall.Close(fd)
}

func (p *poller) add(fd int, events uint32) error {
	return syscall.EpollCtl(p.fd, syscall.EPOLL_CTL_ADD, fd, &syscall.EpollEvent{Events: events, Fd: int32(fd)})
}

func (p *poller) change(fd int, events uint32) error {
	return syscall.EpollCtl(p.fd, syscall.EPOLL_CTL_MOD, fd, &syscall.EpollEvent{Events: events, Fd: int32(fd)})
}

// epollPwait2 is the system call's number on every architecture. It differs
// from epoll_wait by a timeout in nanoseconds rather than milliseconds.
const epollPwait2 = 441

// wait returns what is ready within a time. The events are valid until the
// next wait.
func (p *poller) wait(d time.Duration) ([]syscall.EpollEvent, error) {
	timeout := syscall.NsecToTimespec(int64(max(d, 0)))
	n, _, errno := syscall.Syscall6(epollPwait2, uintptr(p.fd), uintptr(unsafe.Pointer(&p.events[0])),
		uintptr(len(p.events)), uintptr(unsafe.Pointer(&timeout)), 0, 0)
	switch errno {
	case 0:
		return p.events[:n], nil
	case syscall.EINTR:
		return nil, nil
	default:
		return nil, errno
	}
}

// sleep is nanosleep(2): time.Sleep is only good to a millisecond when the
// program does nothing else. A signal may end it early.
func sleep(d time.Duration) {
	t := syscall.NsecToTimespec(int64(d))
	_ = syscall.Nanosleep(&t, nil)
}

// processCPU is the processor time that the process has used.
func processCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
