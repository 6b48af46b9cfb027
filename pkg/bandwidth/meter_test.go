package bandwidth

import (
	"fmt"
	"testing"
)

// A meterStep is what a meter hears, and what it thinks can be used then.
type meterStep struct {
	ms   int64 // since the beginning
	do   string
	most int64 // 0: any number
}

func TestMeter(t *testing.T) {
	const limit = 1_000_000 // its least part is 5000
	tests := []struct {
		name  string
		steps []meterStep
	}{
		{"not limited", []meterStep{{0, "see 0", 0}, {300, "see 10", 0}, {1300, "see 20", 0}}},
		{"too early to tell", []meterStep{{0, "share 100000", 0}, {0, "see 0", 0}, {190, "see 1", 0}}},
		{"a brief look, then exact ones", []meterStep{
			{0, "share 100000", 0}, {0, "see 0", 0},
			{200, "see 10000", 61000}, // 50 kB/s
			{1190, "see 59500", 61000},
			{1200, "see 60000", 57500},
		}},
		{"nearly all of it, in a brief look: a longer one tells", []meterStep{
			{0, "share 100000", 0}, {0, "see 0", 0},
			{200, "see 19000", 0},
			{400, "see 30000", 89000},
		}},
		{"a share raised meanwhile: the next look tells", []meterStep{
			{0, "share 100000", 0}, {0, "see 0", 0},
			{100, "share 200000", 0},
			{200, "see 20000", 0},
			{400, "see 40000", 0}, // it was followed late, perhaps
			{600, "see 60000", 117000},
		}},
		{"a share raised meanwhile and not even the old one used", []meterStep{
			{0, "share 100000", 0}, {0, "see 0", 0},
			{100, "share 200000", 0},
			{200, "see 10000", 61000},
		}},
		{"the count begins anew", []meterStep{
			{0, "share 100000", 0}, {0, "see 50000", 0},
			{100, "see 10", 0},
			{310, "see 10510", 61000},
		}},
		{"the clock is set back", []meterStep{
			{900_000, "share 100000", 0}, {900_000, "see 0", 0},
			{100, "see 1000", 0},
			{300, "see 11000", 61000},
		}},
		{"a user of all that was left gets more, each time more", []meterStep{
			{0, "share 500000", 0}, {0, "see 0", 0},
			{200, "see 20000", 117000}, // 100 kB/s
			{300, "share 117000", 117000},
			{1200, "see 137000", 177500},
			{1250, "share 177500", 177500},
			{1400, "see 172500", 177500},
			{1600, "see 208000", 298500},
			{1650, "share 298500", 298500},
			{1800, "see 267700", 298500},
			{2000, "see 327400", 540500},
			{2050, "share 540500", 540500},
			{2200, "see 435500", 540500},
			{2400, "see 543600", 0},
		}},
		{"a user of much more than was wanted wants any number", []meterStep{
			{0, "share 500000", 0}, {0, "see 0", 0},
			{200, "see 0", 5001},
			{1200, "see 500000", 0},
		}},
		{"who can use nearly the limit can use any number", []meterStep{
			{0, "share 1000000", 0}, {0, "see 0", 0},
			{200, "see 0", 5001},
			{1200, "see 970000", 0},
		}},
		{"a demand that varies keeps its peaks for a while", []meterStep{
			{0, "share 500000", 0}, {0, "see 0", 0},
			{200, "see 20000", 117000},
			{1200, "see 120000", 110000},
			{2200, "see 214000", 104500}, // not 103 700
			{3200, "see 314000", 110000},
			{4200, "see 364000", 57500},
		}},
		{"short requests as a whole", []meterStep{
			{0, "share 100000", 0}, {0, "start 500", 0},
			{20, "see 700", 0},
			{20, "end 1500", 5000 + 22400}, // 1000 bytes in no less than 50 ms
			{500, "start 1500", 27400},
			{600, "end 1500", 5001},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := meter{span: int64(briefLook)}
			for _, s := range tt.steps {
				var what string
				var n int64
				if _, err := fmt.Sscan(s.do, &what, &n); err != nil {
					t.Fatal(err)
				}
				now := 1_700_000_000*second + s.ms*second/1000
				switch what {
				case "share":
					m.enforce(now, n)
				case "see":
					m.observe(now, n, limit)
				case "start":
					m.startRequests(now, n)
				case "end":
					m.endRequests(now, n, limit)
				}
				if m.usableRate != s.most {
					t.Errorf("at %d ms: %s: most = %d, want %d", s.ms, s.do, m.usableRate, s.most)
				}
			}
		})
	}
}
