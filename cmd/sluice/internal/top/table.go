package top

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/cmd/sluice/internal/terms"
	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/api/client"
	"github.com/sluice-qos/sluice/internal/terminal"
)

// column is one of a list, as people and as programs see its name. Numbers are on the right.
type column struct {
	people, programs string
	number           bool
}

// userColumns are those of users with most.
var userColumns = []column{
	{"user", "#user", false},
	{"tier", "tier", false},
	{"state", "state", false},
	{"rate/s", "rate/s", true},
	{"refused/s", "refused/s", true},
	{"in progress", "in_progress", true},
	{"down", "down_B/s", true},
	{"up", "up_B/s", true},
	{"nearest", "nearest", false},
	{"used", "used_%", true},
	{"seen", "seen_s", true},
}

// costColumns are those of lists by cost.
var costColumns = []column{
	{"user", "#user", false},
	{"tier", "tier", false},
	{"state", "state", false},
	{"limit", "limit", false},
	{"used", "used", true},
	{"of", "max", true},
	{"part", "used_%", true},
	{"left", "left", true},
	{"resets in", "resets_s", true},
	{"rate/s", "rate/s", true},
	{"seen", "seen_s", true},
}

// minName is how many columns a name keeps at least in a terminal that is too narrow.
const minName = 8

// formatTable is the lines of a list: who says it, the names of the columns, and the users.
// Names become shorter where the lines would be longer than wide; 0 is no limit.
func formatTable(p list, people bool, wide int) []string {
	columns, rows := p.columns(), [][]string{nil}
	for _, c := range columns {
		name := c.programs
		if people {
			name = c.people
		}
		rows[0] = append(rows[0], name)
	}
	rows = append(rows, p.rows(people)...)
	widths, total := make([]int, len(columns)), -2
	for i := range columns {
		for _, r := range rows {
			widths[i] = max(widths[i], terminal.ColumnsOf(r[i]))
		}
		total += widths[i] + 2
	}
	if wide > 0 && total > wide {
		widths[0] = max(widths[0]-(total-wide), minName)
	}
	lines := []string{p.headline()}
	for _, r := range rows {
		var b strings.Builder
		for i, c := range columns {
			cell := terminal.CutToWidth(r[i], widths[i])
			pad := strings.Repeat(" ", widths[i]-terminal.ColumnsOf(cell))
			if c.number {
				cell = pad + cell
			} else {
				cell += pad
			}
			if i > 0 {
				b.WriteString("  ")
			}
			b.WriteString(cell)
		}
		lines = append(lines, strings.TrimRight(b.String(), " "))
	}
	return lines
}

// answerer says who answers, and when.
func answerer(from api.From) string {
	return fmt.Sprintf("%s  polygen %s, %s", from.Time.UTC().Format(time.RFC3339), terminal.QuoteName(from.Polygen), client.DescribeRole(from))
}

func (p *picture) columns() []column {
	if p.byCost() {
		return costColumns
	}
	return userColumns
}

func (p *picture) rows(people bool) (rows [][]string) {
	row := formatRow
	if p.byCost() {
		row = formatCostRow
	}
	for _, u := range p.Ranked {
		rows = append(rows, row(u, p.Time, people))
	}
	return rows
}

func (p *picture) byCost() bool {
	_, is := p.Sort.CostUnit()
	return is
}

// headline says who answers, and how many users it knows of.
func (p *picture) headline() string {
	line := fmt.Sprintf("%s, limits version %s, users seen: %d", answerer(p.From), terminal.QuoteName(p.Version), p.Seen)
	if p.Dropped > 0 {
		line += fmt.Sprintf(" (forgotten, because there were too many: %d)", p.Dropped)
	}
	return line + ", by " + terminal.QuoteName(string(p.Sort))
}

// formatRow are what a list says of a user. None is empty or has a blank.
func formatRow(u ranked, now time.Time, people bool) []string {
	number := forWhom(people)
	limit, used := "-", "-"
	if n := u.Nearest; n != nil {
		percent := strconv.FormatFloat(n.Share*100, 'f', 0, 64)
		limit, used = terminal.QuoteWord(n.Limit), number(percent, percent+"%")
		if n.Mode != "enforce" {
			limit += "(" + terminal.QuoteWord(n.Mode) + ")"
		}
	}
	return []string{
		terminal.QuoteWord(u.User), terminal.QuoteWord(u.Tier), terminal.QuoteWord(string(u.State)),
		strconv.FormatFloat(u.Rate, 'f', 1, 64), strconv.FormatFloat(u.Refused, 'f', 1, 64), strconv.Itoa(u.InProgress),
		number(strconv.FormatInt(u.Down, 10), strings.ReplaceAll(terms.PerSecond(u.Down), " ", "")),
		number(strconv.FormatInt(u.Up, 10), strings.ReplaceAll(terms.PerSecond(u.Up), " ", "")),
		limit, used,
		formatSeen(u, now, people),
	}
}

// formatCostRow is formatRow, in a list by cost.
func formatCostRow(u ranked, now time.Time, people bool) []string {
	number := forWhom(people)
	cells := []string{terminal.QuoteWord(u.User), terminal.QuoteWord(u.Tier), terminal.QuoteWord(string(u.State))}
	if c := u.Cost; c == nil || c.Left == nil || c.Resets == nil || c.Max < 1 {
		// A polygen says all of it of each user. What else answers here may not.
		cells = append(cells, "-", "-", "-", "-", "-", "-")
	} else {
		limit := terminal.QuoteWord(c.Name)
		if c.Mode != "enforce" {
			limit += "(" + terminal.QuoteWord(c.Mode) + ")"
		}
		percent := strconv.FormatInt(100*c.Used/c.Max, 10) // rounded down, so that 100 is all of it
		resets := max(c.Resets.Sub(now), 0)
		cells = append(cells, limit, strconv.FormatInt(c.Used, 10), strconv.FormatInt(c.Max, 10), number(percent, percent+"%"),
			strconv.FormatInt(*c.Left, 10), number(strconv.FormatFloat(resets.Seconds(), 'f', 0, 64), resets.Round(time.Second).String()))
	}
	return append(cells, strconv.FormatFloat(u.Rate, 'f', 1, 64), formatSeen(u, now, people))
}

func formatSeen(u ranked, now time.Time, people bool) string {
	seen := max(now.Sub(u.Seen), 0)
	return forWhom(people)(strconv.FormatFloat(seen.Seconds(), 'f', 1, 64), formatAge(seen))
}

func forWhom(people bool) func(programs, people string) string {
	return func(plain, withUnit string) string {
		if people {
			return withUnit
		}
		return plain
	}
}

// formatAge is a time span for people: 0.4s, 12s, 3m20s.
func formatAge(d time.Duration) string {
	if d < 10*time.Second {
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + "s"
	}
	return d.Round(time.Second).String()
}
