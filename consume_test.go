package idem_test

import (
	"context"
	"io"
)

// feedOf returns a next that hands out ds, and then io.EOF.
func feedOf(ds ...*fakeDelivery) func(context.Context) (*fakeDelivery, error) {
	return feedThen(func(context.Context) (*fakeDelivery, error) { return nil, io.EOF }, ds...)
}

// feedThen returns a next that hands out ds, and then what last does.
func feedThen(last func(context.Context) (*fakeDelivery, error), ds ...*fakeDelivery) func(context.Context) (*fakeDelivery, error) {
	return func(ctx context.Context) (*fakeDelivery, error) {
		if len(ds) == 0 {
			return last(ctx)
		}
		d := ds[0]
		ds = ds[1:]
		return d, nil
	}
}

// idle is a broker that has nothing.
func idle(ctx context.Context) (*fakeDelivery, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}
