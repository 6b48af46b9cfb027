package slotstest

import (
	"cmp"
	_ "embed"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

// histories is what back ends have to do; its beginning explains the words.
//
//go:embed histories.txt
var histories string

// readHistories returns the steps of each history, and the titles in their order. A title
// is the last line before the steps that is not indented.
func readHistories() (titles []string, steps map[string][]string) {
	title := ""
	steps = map[string][]string{}
	for line := range strings.Lines(histories) {
		text := strings.TrimSpace(line)
		switch {
		case text == "" || strings.HasPrefix(text, "#"):
		case !strings.HasPrefix(line, " "):
			title = text
		default:
			if steps[title] == nil {
				titles = append(titles, title)
			}
			steps[title] = append(steps[title], text)
		}
	}
	return titles, steps
}

// playSteps goes through the steps of a history.
func (s *suite) playSteps(steps ...string) {
	s.Helper()
	for _, step := range steps {
		call, want, ok := strings.Cut(step, "-> ")
		words := strings.Fields(call)
		if !ok || len(words) == 0 {
			s.Fatalf("%q is not a call with its answer", step)
		}
		check := func() error {
			got, err := s.callInWords(words)
			if err == nil && got != want {
				err = fmt.Errorf("got %q", got)
			}
			return err
		}
		if words[0] == "then" {
			words = words[1:]
			s.afterTime(short, step, check)
		} else if err := check(); err != nil {
			s.Fatalf("%s: %v", step, err)
		}
	}
}

// callInWords makes the call that the words say, and returns the answer in words.
func (s *suite) callInWords(words []string) (answer string, err error) {
	operation, words := words[0], words[1:]
	length, limits := long, jobs.Limits{}
	if len(words) > 0 && (words[0] == "short" || words[0] == "endless") {
		length = map[string]time.Duration{"short": short, "endless": math.MaxInt64}[words[0]]
		words = words[1:]
	}
	if i := slices.Index(words, "of"); i >= 0 {
		limits, words = s.limitsOf(words[i+1]), words[:i]
	}
	if operation == "renew" {
		claims := make([]jobs.Claim, len(words))
		for i, word := range words {
			claims[i] = s.claimOf(word)
		}
		lost, err := s.Slots.Renew(s.ctx, claims, length)
		sortClaims(lost)
		return joinTexts("", lost, s.claimText), err
	}
	if operation == "taken" {
		users := make([]string, len(words))
		for i, word := range words {
			users[i] = s.names.realName(word)
		}
		slots, err := s.Slots.Taken(s.ctx, users)
		return s.takenText(slots), err
	}
	claim, user := s.claimOf(words[0]), s.names.realName(words[0])
	var reserved []jobs.Job
	switch operation {
	case "acquire", "try":
		verdict, err := s.Slots.Acquire(s.ctx, claim, limits, length, operation == "acquire")
		return verdictText(verdict), err
	case "forget":
		return "nothing", s.Slots.Forget(s.ctx, claim.Job)
	case "waiting": // so many, and after whom
		n, _ := strconv.Atoi(words[0]) // 0 is an error of the call
		users, err := s.Slots.Waiting(s.ctx, strings.Join(words[1:], ""), n)
		return joinTexts("", users, func(user string) string { return user }), err
	case "usage":
		usage, err := s.Slots.User(s.ctx, user)
		return s.usageText(usage), err
	case "release":
		reserved, err = s.Slots.Release(s.ctx, claim, limits, length)
	case "reserve":
		reserved, err = s.Slots.ReserveFree(s.ctx, user, limits, length)
	case "reserved":
		var usage jobs.Usage
		usage, err = s.Slots.User(s.ctx, user)
		for _, slot := range usage.Reserved {
			reserved = append(reserved, slot.Job)
		}
	default:
		err = fmt.Errorf("there is no operation %q", operation)
	}
	return joinTexts("", reserved, s.jobText), err
}

// names are what words of a history stand for. A word that is not among them stands for
// itself.
type names map[string]string

func (n names) realName(word string) string {
	if name, ok := n[word]; ok {
		return name
	}
	return word
}

// wordFor returns the word that stands for a name.
func (n names) wordFor(name string) string {
	for word, real := range n {
		if real == name {
			return word
		}
	}
	return name
}

// claimOf reads user:job@queue!holder. Without a holder, it is one named after the job.
func (s *suite) claimOf(text string) jobs.Claim {
	user, rest, _ := strings.Cut(text, ":")
	id, rest, _ := strings.Cut(rest, "@")
	queue, holder, hasHolder := strings.Cut(rest, "!")
	claim := jobs.Claim{Job: jobs.Job{User: s.names.realName(user), ID: s.names.realName(id), Queue: s.names.realName(queue)}, Holder: s.names.realName(holder)}
	if !hasHolder {
		claim.Holder = defaultHolder(claim.Job)
	}
	return claim
}

func defaultHolder(job jobs.Job) string { return job.ID + "'s worker" }

// limitsOf reads the total, and for each queue that has one the limit: 3,a=1,b=2. That of * is
// of each queue that is not named.
func (s *suite) limitsOf(text string) (limits jobs.Limits) {
	limits.Queues = map[string]int{}
	for i, part := range strings.Split(text, ",") {
		queue, number, isQueue := strings.Cut(part, "=")
		if !isQueue {
			number = part
		}
		n, err := strconv.Atoi(number)
		if number == "max" {
			n, err = math.MaxInt, nil
		}
		switch {
		case err != nil || isQueue != (i > 0):
			s.Fatalf("%q are not limits", text)
		case queue == "*":
			limits.EachQueue = n
		case isQueue:
			limits.Queues[s.names.realName(queue)] = n
		default:
			limits.Total = n
		}
	}
	return limits
}

// claimText writes what claimOf reads.
func (s *suite) claimText(claim jobs.Claim) string {
	text := s.names.wordFor(claim.User) + ":" + s.names.wordFor(claim.ID) + "@" + s.names.wordFor(claim.Queue)
	if claim.Holder != defaultHolder(claim.Job) {
		text += "!" + s.names.wordFor(claim.Holder)
	}
	return text
}

func (s *suite) jobText(job jobs.Job) string {
	return s.claimText(jobs.Claim{Job: job, Holder: defaultHolder(job)})
}

func verdictText(verdict jobs.Verdict) string {
	text := "refused"
	if verdict.Granted {
		text = "granted"
	}
	text += fmt.Sprintf(", %d running, %d in its queue", verdict.Running, verdict.InQueue)
	if verdict.Place != 0 {
		text += fmt.Sprintf(", place %d", verdict.Place)
	}
	return text
}

// usageText has those who hold slots sorted: they are in no particular order.
func (s *suite) usageText(usage jobs.Usage) string {
	held := func(slot jobs.Slot) string {
		return s.claimText(jobs.Claim{Job: slot.Job, Holder: slot.Holder}) + leftText(slot)
	}
	reserved := func(slot jobs.Slot) string {
		if slot.Holder != "" {
			return held(slot)
		}
		return s.jobText(slot.Job) + leftText(slot)
	}
	slices.SortStableFunc(usage.Held, func(a, b jobs.Slot) int { return strings.Compare(a.ID, b.ID) })
	var parts []string
	for _, part := range []string{
		joinTexts("held ", usage.Held, held), joinTexts("reserved ", usage.Reserved, reserved), joinTexts("parked ", usage.Parked, s.jobText),
	} {
		if part != "nothing" {
			parts = append(parts, part)
		}
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, "; ")
}

// takenText is usageText of the slots of several users, which come in any order.
func (s *suite) takenText(slots []jobs.Slot) string {
	slices.SortFunc(slots, func(a, b jobs.Slot) int { return cmp.Or(strings.Compare(a.User, b.User), strings.Compare(a.ID, b.ID)) })
	var usage jobs.Usage
	for _, slot := range slots {
		if slot.Holder == "" {
			usage.Reserved = append(usage.Reserved, slot)
		} else {
			usage.Held = append(usage.Held, slot)
		}
	}
	return s.usageText(usage)
}

// leftText is nothing for a time that may be left of a slot.
func leftText(slot jobs.Slot) string {
	if slot.Left > 0 && slot.Left <= long {
		return ""
	}
	return fmt.Sprintf(" with %v left", slot.Left)
}

// joinTexts returns the texts of all, or the word nothing.
func joinTexts[T any](prefix string, all []T, text func(T) string) string {
	if len(all) == 0 {
		return "nothing"
	}
	texts := make([]string, len(all))
	for i, one := range all {
		texts[i] = text(one)
	}
	return prefix + strings.Join(texts, ", ")
}
