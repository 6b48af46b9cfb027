package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// library adds to the wall clock of a program in C, and to no other clock, the seconds in the first byte of a file. (Debian's
// libfaketime does not work with Redis' allocator. Programs in Go ask the kernel by themselves: test/simulation sets their clocks.)
const library = `#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const signed char *step;

__attribute__((constructor)) static void chaos_begin(void)
{
	const char *name = getenv("CHAOS_CLOCK");
	int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
	void *page = file < 0 ? MAP_FAILED : mmap(NULL, 1, PROT_READ, MAP_SHARED, file, 0);
	if (name && page == MAP_FAILED)
		abort();
	if (page != MAP_FAILED)
		step = page;
	if (file >= 0)
		close(file);
}

int clock_gettime(clockid_t clock, struct timespec *t)
{
	int err = syscall(SYS_clock_gettime, clock, t);
	if (!err && step && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
		t->tv_sec += *step;
	return err;
}

int gettimeofday(struct timeval *t, void *zone)
{
	struct timespec now;
	(void)zone;
	if (clock_gettime(CLOCK_REALTIME, &now))
		return -1;
	t->tv_sec = now.tv_sec;
	t->tv_usec = now.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *to)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	if (to)
		*to = now.tv_sec;
	return now.tv_sec;
}
`

// clocks are the wall clocks of processes.
type clocks struct{ dir string }

func newClocks(dir string) (clocks, error) {
	c := clocks{filepath.Join(dir, "clocks")}
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return c, err
	}
	source := filepath.Join(c.dir, "clock.c")
	if err := os.WriteFile(source, []byte(library), 0o600); err != nil {
		return c, err
	}
	if _, err := run("gcc", "-O2", "-shared", "-fPIC", "-o", c.library(), source); err != nil {
		return c, err
	}
	return c, c.redisServer()
}

func (c clocks) library() string { return filepath.Join(c.dir, "clock.so") }

func (c clocks) file(process string) string {
	return filepath.Join(c.dir, strings.ReplaceAll(process, " ", "-"))
}

// env is what a process needs for its clock, which is right at first.
func (c clocks) env(process string) ([]string, error) {
	return []string{"CHAOS_CLOCK=" + c.file(process), "LD_PRELOAD=" + c.library()}, c.set(process, 0)
}

// set steps the clock of a process, which notices at once.
func (c clocks) set(process string, seconds int64) error {
	f, err := os.OpenFile(c.file(process), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteAt([]byte{byte(int8(seconds))}, 0)
	return err
}

// redisServer puts a redis-server in front of the one in PATH whose clock can be set, by its port.
func (c clocks) redisServer() error {
	real, err := exec.LookPath("redis-server")
	if err != nil {
		return err
	}
	dir := filepath.Join(c.dir, "bin")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	script := fmt.Sprintf(`#!/bin/sh
port=
before=
for argument; do
	[ "$before" = --port ] && port=$argument
	before=$argument
done
[ -n "$port" ] || exec %[1]s "$@"
CHAOS_CLOCK=%[2]s/redis-$port
[ -e "$CHAOS_CLOCK" ] || head -c 1 /dev/zero >"$CHAOS_CLOCK"
export CHAOS_CLOCK
LD_PRELOAD=%[3]s exec %[1]s "$@"
`, real, c.dir, c.library())
	if err := os.WriteFile(filepath.Join(dir, "redis-server"), []byte(script), 0o755); err != nil {
		return err
	}
	return os.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}
