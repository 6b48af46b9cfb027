package bus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/internal/policy"
)

// Events are the requests that one instance saw start and end in a second.
type Events struct {
	Second int64      // since the epoch, by the cluster's clock
	Users  []EventsOf // users near a limit, and those with most requests
	Tiers  []EventsOf // tiers, each with the requests of all its users
}

// EventsOf are the events of a user, or of a tier.
type EventsOf struct {
	Name    string         // the user's key, or the tier
	Classes []StartedClass // requests that were admitted, of each verb and operation class
	Ends    int64          // requests that ended, of all classes
}

const (
	// eventsTTL is how long a bucket is kept after the last report that it got.
	eventsTTL = time.Minute
	// A field of a bucket is startField, the class, "|" and a name; or endField and a name.
	startField, endField = "start|", "end|"
	// maxEventFields is how many fields one call of the script changes, exceeded by at most
	// the fields of one name.
	maxEventFields = 512
)

// AddEvents adds what an instance tells of a second to the buckets of it in Redis. Some
// events of a failed call may be counted. The caller may send the same ones again within
// eventsTTL: the buckets know the names of the reports that they have, and count each once.
// So no two reports may have the same name.
// Negative numbers and invalid classes fail the call before anything is sent.
func (b *Bus) AddEvents(ctx context.Context, report string, e Events) error {
	var calls []call
	byShard := make(map[int][]EventsOf, 1)
	for _, of := range slices.Concat(e.Users, e.Tiers) {
		if err := of.validate(); err != nil {
			return fmt.Errorf("add events: %w", err)
		}
	}
	for _, of := range e.Users {
		shard := b.shardOf(of.Name)
		byShard[shard] = append(byShard[shard], of)
	}
	for shard := range b.shards {
		calls = appendEvents(calls, report, strconv.Itoa(shard), e.Second, byShard[shard])
	}
	calls = appendEvents(calls, report, clusterTag, e.Second, e.Tiers)
	if len(calls) == 0 {
		return nil
	}
	return b.do(ctx, "events", "add events", func(ctx context.Context) error {
		_, err := b.eval(ctx, calls...)
		return err
	})
}

func (of *EventsOf) validate() error {
	if of.Name == "" || of.Ends < 0 {
		return fmt.Errorf("%d ends of %.60q", of.Ends, of.Name)
	}
	for _, c := range of.Classes {
		if c.Class == "" || !policy.ValidClass(c.Class) || c.Starts < 0 {
			return fmt.Errorf("%d starts of class %.60q", c.Starts, c.Class)
		}
	}
	return nil
}

// appendEvents adds the calls that count events in the bucket of a tag.
func appendEvents(calls []call, report, tag string, second int64, events []EventsOf) []call {
	const head = 2 // arguments before the fields
	keys := []string{eventsKey(tag, second), reportedKey(tag, second)}
	var args []any
	part := 0
	for i := range events {
		if len(args) == 0 { // a new call, which Redis runs or does not run as a whole
			args = append(args, int64(eventsTTL/time.Second), report+"/"+strconv.Itoa(part))
			part++
		}
		of := &events[i]
		for _, c := range of.Classes {
			if c.Starts > 0 {
				args = append(args, startField+c.Class+"|"+of.Name, c.Starts)
			}
		}
		if of.Ends > 0 {
			args = append(args, endField+of.Name, of.Ends)
		}
		if last := i == len(events)-1; len(args) > head && (last || len(args) > 2*maxEventFields) {
			calls = append(calls, call{script: eventsScript, keys: keys, args: args})
			args = nil
		}
	}
	return calls
}

// TierEvents reads what all instances have counted in a second, by tier.
func (b *Bus) TierEvents(ctx context.Context, second int64) (all []EventsOf, err error) {
	err = b.do(ctx, "tier_events", "read events", func(ctx context.Context) error {
		fields, err := b.client.HGetAll(ctx, eventsKey(clusterTag, second)).Result()
		if err == nil {
			all, err = decodeEvents(fields)
		}
		return err
	})
	return all, err
}

// UserEvents reads what all instances have counted of a user and these classes, in each of
// some seconds. The answer has their order, and a second of which nothing is known is zero.
func (b *Bus) UserEvents(ctx context.Context, user string, classes []string, seconds []int64) ([]EventsOf, error) {
	// The fields are named, because a bucket has those of all users of the shard.
	fields := []string{endField + user}
	for _, class := range classes {
		fields = append(fields, startField+class+"|"+user)
	}
	events := make([]EventsOf, len(seconds))
	err := b.do(ctx, "user_events", "read events", func(ctx context.Context) error {
		pipe := b.client.Pipeline()
		for _, second := range seconds {
			pipe.HMGet(ctx, eventsKey(strconv.Itoa(b.shardOf(user)), second), fields...)
		}
		answers, err := pipe.Exec(ctx)
		if err != nil {
			return err
		}
		for i, answer := range answers {
			found := map[string]string{}
			values, err := answer.(interface{ Result() ([]any, error) }).Result()
			if err != nil {
				return err
			}
			for j, value := range values {
				if text, there := value.(string); there {
					found[fields[j]] = text
				}
			}
			of, err := decodeEvents(found)
			if err != nil {
				return err
			}
			if len(of) > 0 {
				events[i] = of[0]
			}
			events[i].Name = user
		}
		return nil
	})
	return events, err
}

// decodeEvents reads a bucket's fields. The events are sorted by name, and their classes too.
func decodeEvents(fields map[string]string) ([]EventsOf, error) {
	byName := map[string]*EventsOf{}
	of := func(name string) *EventsOf {
		if byName[name] == nil {
			byName[name] = &EventsOf{Name: name}
		}
		return byName[name]
	}
	for field, text := range fields {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("field %.60q of events is %.60q", field, text)
		}
		if name, ok := strings.CutPrefix(field, endField); ok {
			of(name).Ends = n
			continue
		}
		rest, started := strings.CutPrefix(field, startField)
		class, name, ok := strings.Cut(rest, "|")
		if !started || !ok {
			return nil, errors.New("events have a field that is none of Sluice's")
		}
		of(name).Classes = append(of(name).Classes, StartedClass{Class: class, Starts: n})
	}
	var all []EventsOf
	for _, events := range byName {
		slices.SortFunc(events.Classes, func(a, b StartedClass) int { return strings.Compare(a.Class, b.Class) })
		all = append(all, *events)
	}
	slices.SortFunc(all, func(a, b EventsOf) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}
