package daemon

import (
	"context"
	"errors"
	"sync"
)

// Run calls every function with a context of their own, cancels that context as
// soon as one of them returns an error or ctx ends, and returns when all have
// returned: with nil if ctx ended and nothing else went wrong, and otherwise
// with the errors. A function that returns nil has simply finished.
func Run(ctx context.Context, loops ...func(context.Context) error) error {
	own, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(loops))
	var wg sync.WaitGroup
	for i, loop := range loops {
		wg.Go(func() {
			err := loop(own)
			if own.Err() != nil && errors.Is(err, context.Canceled) {
				return // told to stop, and stopped
			}
			if errs[i] = err; err != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
