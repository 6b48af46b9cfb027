package chaos

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// steps is a file of package time's in the commands that a run builds: it adds to the wall clock, and to no other, the seconds
// in the first byte of a file. (Libraries that fake time for programs in C do nothing for those in Go, which ask the kernel by
// themselves.)
const steps = `package time

import "syscall"

var chaosSteps []byte

func init() {
	name, ok := syscall.Getenv("CHAOS_CLOCK")
	if !ok {
		return
	}
	file, err := syscall.Open(name, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		panic("CHAOS_CLOCK: " + err.Error())
	}
	chaosSteps, err = syscall.Mmap(file, 0, 1, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic("CHAOS_CLOCK: " + err.Error())
	}
	_ = syscall.Close(file)
}

func chaosStep() int64 {
	if chaosSteps == nil {
		return 0
	}
	return int64(int8(chaosSteps[0]))
}
`

// library is the same for programs in C, which load it before all others. (Debian's libfaketime does not come to terms with
// the allocator of Redis.)
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

// clocks are the wall clocks of processes, by process.
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
	_, err := run("gcc", "-O2", "-shared", "-fPIC", "-o", c.library(), source)
	return c, err
}

func (c clocks) library() string { return filepath.Join(c.dir, "clock.so") }

// build builds agent and polygen, whose clocks can be set, into a folder.
func (c clocks) build(to string, race bool) error {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return err
	}
	timeDir := filepath.Join(strings.TrimSpace(string(root)), "src", "time")
	text, err := os.ReadFile(filepath.Join(timeDir, "time.go"))
	if err != nil {
		return err
	}
	const before, step = "\tsec, nsec, mono := runtimeNow()\n\tif mono == 0 {", "\tsec, nsec, mono := runtimeNow()\n\tsec += chaosStep()\n\tif mono == 0 {"
	if strings.Count(string(text), before) != 1 {
		return errors.New("this version of Go reads its clock in another way: see steps in test/chaos/clock.go")
	}
	written := map[string]string{
		"time.go":       strings.Replace(string(text), before, step, 1),
		"chaos_step.go": steps,
	}
	// Where Go keeps what it has built: every package uses package time, and with files of other names all would be built anew.
	cache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	cache = filepath.Join(cache, "sluice-chaos")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	overlay := map[string]string{}
	for name, text := range written {
		overlay[filepath.Join(timeDir, name)] = filepath.Join(cache, name)
		if err := os.WriteFile(filepath.Join(cache, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	list, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		return err
	}
	file := filepath.Join(cache, "overlay.json")
	if err := os.WriteFile(file, list, 0o600); err != nil {
		return err
	}
	args := []string{"build", "-trimpath", "-overlay", file, "-o", to + "/"}
	if race {
		args = append(args, "-race")
	}
	out, err := exec.Command("go", append(args, "github.com/sluice-qos/sluice/cmd/spoa", "github.com/sluice-qos/sluice/cmd/polygen")...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("build the commands: %w\n%s", err, out)
	}
	return nil
}

func (c clocks) file(process string) string {
	return filepath.Join(c.dir, strings.ReplaceAll(process, " ", "-"))
}

// env is what a process needs for its clock, which is right at first.
func (c clocks) env(process string) ([]string, error) {
	// Those in Go do not look at LD_PRELOAD.
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
