package redisbus

import (
	"context"

	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
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
	// eventParts divide the users of a report, so that a question about one of them reads few
	// of the others.
	eventParts = 16
)

// AddEvents puts what an instance tells of a second into the buckets of it in Redis. Some
// events of a failed call may be there. The caller may send the same ones again within
// eventsTTL: a report is kept by its name, so that it counts once, and no two reports may
// have the same name. Negative numbers and invalid classes fail the call before anything is
// sent.
func (b *Bus) AddEvents(ctx context.Context, report string, e Events) error {
	// Before anything is sent: one wrong number would make this part of the bucket unreadable for everybody.
	for _, of := range slices.Concat(e.Users, e.Tiers) {
		if err := of.validate(); err != nil {
			return fmt.Errorf("add events: %w", err)
		}
	}
	users := make([][eventParts][]byte, b.shards)
	for i := range e.Users {
		of := &e.Users[i]
		// In parts, so that a question about one user reads few of the others, and not a field for each user: that would
		// cost Redis more than all else together.
		part := &users[b.ShardOf(of.Name)][eventPartOf(of.Name)]
		*part = of.append(*part)
	}
	// A tier has users in all shards: its bucket lies with what concerns the whole cluster.
	var tiers []byte
	for i := range e.Tiers {
		tiers = e.Tiers[i].append(tiers)
	}
	var buckets []bucket
	for shard := range users {
		buckets = appendBucket(buckets, report, eventsKey(strconv.Itoa(shard), e.Second), users[shard][:])
	}
	buckets = appendBucket(buckets, report, eventsKey(clusterTag, e.Second), [][]byte{tiers})
	if len(buckets) == 0 {
		return nil
	}
	return b.callRedis(ctx, "events", "add events", func(ctx context.Context) error { return b.addFields(ctx, buckets) })
}

// bucket is a bucket in Redis, and what a report puts into it: fields, each with its value.
type bucket struct {
	key    string
	fields []any
}

func (b *Bus) addFields(ctx context.Context, buckets []bucket) error {
	calls := make([]call, len(buckets))
	for i, to := range buckets {
		calls[i] = call{script: eventsScript, keys: []string{to.key}, args: append([]any{int64(eventsTTL / time.Second)}, to.fields[:2]...)}
	}
	// A script sees to it that a bucket expires before the rest comes, which goes without one: Redis takes thrice as long
	// for what passes through Lua. The rest renews that, for Redis may have been emptied in between.
	if _, err := b.evalScripts(ctx, calls...); err != nil {
		return err
	}
	pipe := b.client.Pipeline()
	for _, to := range buckets {
		if rest := to.fields[2:]; len(rest) > 0 {
			pipe.HSet(ctx, to.key, rest...)
			pipe.Expire(ctx, to.key, eventsTTL)
		}
	}
	// An empty pipeline is no call.
	_, err := pipe.Exec(ctx)
	return err
}

func (of *EventsOf) validate() error {
	if of.Name == "" || of.Ends < 0 {
		return fmt.Errorf("%d ends of %.60q", of.Ends, of.Name)
	}
	for _, c := range of.Classes {
		if c.Class == "" || !ValidClass(c.Class) || c.Starts < 0 || c.Refused < 0 {
			return fmt.Errorf("%d starts and %d refusals of class %.60q", c.Starts, c.Refused, c.Class)
		}
	}
	return nil
}

// append writes the events of a name, as words; see internal/redisbus/wire.go. Of nothing it writes
// nothing.
func (of *EventsOf) append(text []byte) []byte {
	// What is 0 takes no words.
	started := slices.DeleteFunc(slices.Clone(of.Classes), func(c StartedClass) bool { return c.Starts+c.Refused == 0 })
	if len(started) == 0 && of.Ends == 0 {
		return text
	}
	if len(text) == 0 {
		text = append(text, wireVersion...)
	}
	text = appendText(append(text, ' '), of.Name)
	text = strconv.AppendInt(append(text, ' '), of.Ends, 10)
	return appendClasses(text, started)
}

func decodeEvents(text string) (all []EventsOf, err error) {
	w := words{rest: text}
	w.takeVersion(wireVersion)
	for w.hasMore() {
		of := EventsOf{Name: w.takeText(), Ends: w.takeNumber(), Classes: w.takeClasses()}
		// From another process, and perhaps from another version of it.
		if err := of.validate(); err != nil {
			w.failWith(err)
		}
		all = append(all, of)
	}
	if w.err != nil {
		return nil, fmt.Errorf("a report of events: %w", w.err)
	}
	return all, nil
}

// appendBucket adds the parts of a report that say something. An empty bucket says no more than none.
func appendBucket(buckets []bucket, report, key string, parts [][]byte) []bucket {
	var fields []any
	for part, text := range parts {
		// The field has the report's name, so that a report which is repeated replaces itself.
		if len(text) > 0 {
			fields = append(fields, report+"/"+strconv.Itoa(part), text)
		}
	}
	if len(fields) == 0 {
		return buckets
	}
	return append(buckets, bucket{key, fields})
}

// TierEvents reads what all instances have counted in a second, by tier. The events are sorted
// by name, and their classes too.
func (b *Bus) TierEvents(ctx context.Context, second int64) (all []EventsOf, err error) {
	sums := map[string]*EventsOf{}
	err = b.callRedis(ctx, "tier_events", "read events", func(ctx context.Context) error {
		reports, err := b.client.HVals(ctx, eventsKey(clusterTag, second)).Result()
		if err != nil {
			return err
		}
		// Added up here, and not by Redis as they come: a report that is repeated must count once.
		for _, report := range reports {
			events, err := decodeEvents(report)
			if err != nil {
				return err
			}
			for _, of := range events {
				if sums[of.Name] == nil {
					sums[of.Name] = &EventsOf{Name: of.Name}
				}
				sums[of.Name].addCounts(of)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		all = append(all, *sums[name])
	}
	return all, nil
}

// addCounts adds the events of the same name, seen by another instance.
func (of *EventsOf) addCounts(more EventsOf) {
	of.Ends += more.Ends
	for _, c := range more.Classes {
		// Sorted all the time, so that the answer does not depend on who reported first.
		at, known := slices.BinarySearchFunc(of.Classes, c.Class, func(c StartedClass, class string) int { return strings.Compare(c.Class, class) })
		if !known {
			of.Classes = slices.Insert(of.Classes, at, StartedClass{Class: c.Class})
		}
		of.Classes[at].Starts += c.Starts
		of.Classes[at].Refused += c.Refused
	}
}

// UserEvents reads what all instances have counted of a user in each of some seconds. The
// answer has their order, and a second of which nothing is known is zero.
func (b *Bus) UserEvents(ctx context.Context, user string, seconds []int64) ([]EventsOf, error) {
	events := make([]EventsOf, len(seconds))
	err := b.callRedis(ctx, "user_events", "read events", func(ctx context.Context) error {
		keys := make([]string, len(seconds))
		for i, second := range seconds {
			keys[i] = eventsKey(strconv.Itoa(b.ShardOf(user)), second)
		}
		parts, err := b.partsOfReports(ctx, keys, eventPartOf(user))
		if err != nil {
			return err
		}
		for i := range parts {
			events[i].Name = user
			for _, part := range parts[i] {
				all, err := decodeEvents(part)
				if err != nil {
					return err
				}
				// A part has a sixteenth of all users of the shard.
				for _, of := range all {
					if of.Name == user {
						events[i].addCounts(of)
					}
				}
			}
		}
		return nil
	})
	return events, err
}

// partsOfReports reads one part of all reports that each of some buckets has.
func (b *Bus) partsOfReports(ctx context.Context, keys []string, part int) ([][]string, error) {
	// Their names first, and then one part of each: all parts together are sixteen times as much to send.
	pipe := b.client.Pipeline()
	fields := make([]*redis.StringSliceCmd, len(keys))
	for i, key := range keys {
		fields[i] = pipe.HKeys(ctx, key)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, err
	}
	suffix := "/" + strconv.Itoa(part)
	found := make([]*redis.SliceCmd, len(keys))
	some := false
	for i, key := range keys {
		of := slices.DeleteFunc(fields[i].Val(), func(field string) bool { return !strings.HasSuffix(field, suffix) })
		if len(of) > 0 {
			found[i], some = pipe.HMGet(ctx, key, of...), true
		}
	}
	parts := make([][]string, len(keys))
	// An empty pipeline is no call: most users are in no bucket of most seconds.
	if !some {
		return parts, nil
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, err
	}
	for i, values := range found {
		if values == nil {
			continue
		}
		for _, value := range values.Val() {
			// A bucket may have expired between the two calls.
			if text, there := value.(string); there {
				parts[i] = append(parts[i], text)
			}
		}
	}
	return parts, nil
}
