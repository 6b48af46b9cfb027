package bus

import (
	"context"
	"errors"
)

// A Letter is what one polygen writes to another, or to all. What it says is theirs.
type Letter struct {
	To   string // "" is all
	Body []byte
}

func (Letter) isEvent() {}

// Send publishes a letter to the polygens.
func (b *Bus) Send(ctx context.Context, l Letter) error {
	// The body last, and without its length: only who is meant looks at it.
	message := append(append(appendText([]byte(wireVersion+" "), l.To), ' '), l.Body...)
	return b.publish(ctx, "send_letter", "send a letter to polygens", PolygensChannel, message)
}

func decodeLetter(message string) (Letter, error) {
	w := words{rest: message}
	w.takeVersion(wireVersion)
	l := Letter{To: w.takeText(), Body: []byte(w.rest)}
	// What it says is not looked at here, but it says something.
	if w.rest == "" {
		w.failWith(errors.New("it says nothing"))
	}
	return l, w.err
}
