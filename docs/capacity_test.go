package docs

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// The worked examples of docs/capacity.md follow from what one of each costs.
func TestWorkedExamples(t *testing.T) {
	cells := map[string][]float64{} // of three examples, by how the row begins
	number := regexp.MustCompile(`[\d.]+`)
	for _, row := range rows(t, "docs/capacity.md", 4) {
		label, _, _ := strings.Cut(row[0], ":")
		for _, cell := range row[1:] {
			for _, n := range number.FindAllString(strings.ReplaceAll(strings.ReplaceAll(cell, " 000", "000"), " 000", "000"), -1) {
				value, err := strconv.ParseFloat(n, 64)
				if err != nil {
					t.Fatal(err)
				}
				cells[label] = append(cells[label], value)
			}
		}
	}
	for i := range 3 {
		instances, questions := cells["instances"][i], cells["questions/s"][i]
		users := cells["users in the file; active at a time"]
		file, active := users[2*i], users[2*i+1]
		masters := questions*0.25e-3 + instances*2.5e-3
		const polygens = 2 // one leads
		for label, want := range map[string]float64{
			"cores of Redis":                        masters,
			"**masters**":                           math.Ceil(masters / 0.5),
			"cores of polygen":                      questions * 0.25e-3,
			"**polygens**":                          polygens,
			"cores of each agent":                   questions * 0.65e-3 / instances,
			"**memory of each agent**":              math.Ceil((15+file*90e-6+active*2.1e-3)/10) * 10,
			"**of each polygen**":                   math.Ceil((30+file*90e-6+active*2.4e-3)/10) * 10,
			"**of Redis' masters together**":        math.Ceil(2 + active*0.6e-3 + file*7.2e-6),
			"**network into Redis**":                (questions*1.2 + instances*5) / 1000,
			"**out of Redis**":                      questions * 0.4 / 1000,
			"connections of each master while idle": 4*instances + 7*polygens,
		} {
			row := cells[label]
			if len(row) != 3 {
				t.Fatalf("the row %q has the numbers %v, want three", label, row)
			}
			if got := row[i]; math.Abs(got-want) > 0.12*want {
				t.Errorf("example %d: %s = %v, want %v", i+1, label, got, want)
			}
		}
	}
}
