package docs

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/jobs"
	"github.com/sluice-qos/sluice/pkg/jobs/pgslots"
	"github.com/sluice-qos/sluice/pkg/jobs/redisslots"
)

// told is a command of a document, and what the document says that it prints.
type told struct {
	line    int
	command string
	prints  string
}

// commandsOf are those of the blocks of a chapter: lines that begin with "$ ", each with what is below it.
func commandsOf(t *testing.T, file, chapter string) (commands []told) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	inChapter, inBlock := false, false
	for i, line := range strings.Split(string(text), "\n") {
		command, isCommand := strings.CutPrefix(line, "$ ")
		switch {
		case strings.HasPrefix(line, "## "):
			inChapter = line == "## "+chapter
		case !inChapter:
		case strings.HasPrefix(line, "```"):
			inBlock = line == "```sh"
		case inBlock && isCommand:
			commands = append(commands, told{line: i + 1, command: command})
		case inBlock:
			commands[len(commands)-1].prints += line + "\n"
		}
	}
	return commands
}

// run runs the commands in one shell, in the repository's root, and compares what they print.
func run(t *testing.T, commands []told, env ...string) {
	t.Helper()
	if len(commands) < 10 {
		t.Fatalf("the chapter has %d commands, want those of all operations", len(commands))
	}
	const mark = "the end of a command"
	var script strings.Builder
	for _, told := range commands {
		fmt.Fprintf(&script, "%s\necho \"%s $?\"\n", told.command, mark)
	}
	shell := exec.Command("bash")
	shell.Dir, shell.Env, shell.Stdin = "..", append(os.Environ(), env...), strings.NewReader(script.String())
	var errors bytes.Buffer
	shell.Stderr = &errors
	out, err := shell.Output()
	if err != nil || errors.Len() > 0 {
		t.Errorf("bash: %v: %s", err, errors.String())
	}
	answers := strings.SplitAfter(string(out), mark+" 0\n")
	for i, told := range commands {
		if i >= len(answers) {
			t.Fatalf("line %d: %s did not end well: %s", told.line, told.command, out)
		}
		if got := strings.TrimSuffix(answers[i], mark+" 0\n"); got != told.prints {
			t.Errorf("line %d: %s\nprints %q, want %q as the document says", told.line, told.command, got, told.prints)
		}
	}
}

// leftBehind looks, as a worker in Go does, at what the commands left: a slot that is held and one that is reserved.
func leftBehind(t *testing.T, slots jobs.Slots) {
	t.Helper()
	usage, err := slots.User(t.Context(), "alice")
	if err != nil {
		t.Fatal(err)
	}
	holds := func(slots []jobs.Slot) (all []string) {
		for _, slot := range slots {
			all = append(all, slot.ID+" "+slot.Queue+" "+slot.Holder)
		}
		return all
	}
	if held, reserved := holds(usage.Held), holds(usage.Reserved); !slices.Equal(held, []string{"py/3 report worker-2.1"}) || !slices.Equal(reserved, []string{"py/5 report "}) || len(usage.Parked) != 0 {
		t.Errorf("a Go worker sees %q held, %q reserved, %d parked; want what the document says", held, reserved, len(usage.Parked))
	}
	// Two slots are taken by the other worker, of two.
	claim := jobs.Claim{Job: jobs.Job{User: "alice", ID: "go/1", Queue: "report"}, Holder: "go"}
	verdict, err := slots.Acquire(t.Context(), claim, jobs.Limits{Total: 2}, time.Minute, false)
	if err != nil || verdict.Granted || verdict.Running != 2 {
		t.Errorf("Acquire() by a Go worker = %+v, %v, want it refused for two slots that are taken", verdict, err)
	}
}

// Workers in other languages use the same slots, by what docs/jobs-contract.md says.
func TestTheContractIsAsWritten(t *testing.T) {
	const document = "jobs-contract.md"
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		server := testkit.Postgres(t)
		run(t, commandsOf(t, document, "PostgreSQL"), "DATABASE_URL="+server.DSN, "PGOPTIONS=--client-min-messages=warning")
		pool, err := pgxpool.New(t.Context(), server.DSN)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		if err := pgslots.Migrate(t.Context(), pool, ""); err != nil {
			t.Errorf("Migrate() = %v of a schema that psql made", err)
		}
		leftBehind(t, pgslots.New(pool, ""))
	})
	t.Run("Redis", func(t *testing.T) {
		t.Parallel()
		_, addr := testkit.Redis(t)
		run(t, commandsOf(t, document, "Redis"), "REDIS_URL=redis://"+addr)
		client := redis.NewClient(&redis.Options{Addr: addr})
		defer client.Close()
		leftBehind(t, redisslots.New(client))
	})
}

// The document names the migrations that there are.
func TestTheContractHasTheSchemasVersion(t *testing.T) {
	steps, err := filepath.Glob("../pkg/jobs/pgslots/migrations/*.sql")
	if err != nil || len(steps) != 1 {
		t.Errorf("there are the migrations %q (%v): docs/jobs-contract.md says 1 is the version", steps, err)
	}
}
