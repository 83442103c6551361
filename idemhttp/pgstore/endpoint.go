package pgstore

import (
	"fmt"
	"net/http"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idem-go/idem/idemhttp"
	"github.com/idem-go/idem/idemhttp/internal/seam"
)

// Endpoint is an idemhttp.Endpoint that can also make the claim a part of the
// endpoint's own transaction. Both ways share the table, so a route can be moved
// from one to the other at any time.
type Endpoint struct {
	*idemhttp.Endpoint

	store           *Store
	policy          idemhttp.Policy
	pool            *pgxpool.Pool // where the endpoint works
	site            *site         // nil: in the store's own pool
	begin           *statement
	exclusive       bool
	withoutResponse bool
	retries         int
	prefetch        func(*http.Request, *pgx.Batch)
}

// EndpointOption sets up an Endpoint for InTx and InTxMiddleware.
type EndpointOption func(*Endpoint) error

// Endpoint returns the endpoint of that name. See idemhttp.New for the name and
// the policy; an error wraps idemhttp.ErrInvalidPolicy and names the field or
// the option.
func (s *Store) Endpoint(name string, p idemhttp.Policy, opts ...EndpointOption) (*Endpoint, error) {
	inner, err := idemhttp.New(s, name, p)
	if err != nil {
		return nil, err
	}
	e := &Endpoint{Endpoint: inner, store: s, policy: inner.Policy(seam.Pass{}), pool: s.pool, begin: beginSQL}
	for i, opt := range opts {
		if opt == nil {
			return nil, refuseOption("option %d is nil", i)
		}
		if err := opt(e); err != nil {
			return nil, err
		}
	}
	if e.pool != s.pool {
		e.site = newSite(e)
	}
	return e, nil
}

func refuseOption(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{idemhttp.ErrInvalidPolicy}, args...)...)
}

// WithTxOptions sets the isolation level and deferrability of the endpoint's
// transaction; the default is the database's. It is the only way to set them:
// by the time the endpoint runs, the transaction has begun. A read-only
// transaction couldn't write the claim and is refused, and so are BeginQuery and
// CommitQuery.
func WithTxOptions(opts pgx.TxOptions) EndpointOption {
	return func(e *Endpoint) error {
		levels := []pgx.TxIsoLevel{"", pgx.Serializable, pgx.RepeatableRead, pgx.ReadCommitted, pgx.ReadUncommitted}
		switch {
		case opts.AccessMode != "" && opts.AccessMode != pgx.ReadWrite:
			return refuseOption("WithTxOptions: AccessMode %q can't write the claim", opts.AccessMode)
		case opts.BeginQuery != "" || opts.CommitQuery != "":
			return refuseOption("WithTxOptions: BeginQuery %q and CommitQuery %q are not for a managed transaction", opts.BeginQuery, opts.CommitQuery)
		case !slices.Contains(levels, opts.IsoLevel):
			return refuseOption("WithTxOptions: IsoLevel %q is unknown", opts.IsoLevel)
		case !slices.Contains([]pgx.TxDeferrableMode{"", pgx.Deferrable, pgx.NotDeferrable}, opts.DeferrableMode):
			return refuseOption("WithTxOptions: DeferrableMode %q is unknown", opts.DeferrableMode)
		}
		e.begin = prepared(beginText(opts))
		return nil
	}
}

func beginText(opts pgx.TxOptions) string {
	text := "begin"
	if opts.IsoLevel != "" {
		text += " isolation level " + string(opts.IsoLevel)
	}
	if opts.AccessMode != "" {
		text += " " + string(opts.AccessMode)
	}
	if opts.DeferrableMode != "" {
		text += " " + string(opts.DeferrableMode)
	}
	return text
}

// WithPrefetch lets the endpoint's first queries travel with BEGIN: queue them on
// the batch, and read their rows with Prefetched. They run inside the
// transaction, also for a request that turns out to be a repeat, so they should
// only read. Callbacks of the batch's queries aren't called.
//
// The function may read the body, or parse it as a form, and the endpoint reads
// it from its start all the same. It is called again for each run of WithRetry,
// and each time a request that WithExclusive holds looks for its turn. The body of
// a request whose claim isn't part of the transaction (see WithRetry) isn't kept:
// what the function reads of it is gone for the endpoint, but a form that it parses
// is the endpoint's, too.
//
// A query that fails, or that ends the transaction, fails the request, and the
// endpoint doesn't run.
func WithPrefetch(queue func(r *http.Request, b *pgx.Batch)) EndpointOption {
	return func(e *Endpoint) error {
		if queue == nil {
			return refuseOption("WithPrefetch: the function is nil")
		}
		e.prefetch = queue
		return nil
	}
}

// WithExclusive refuses a repeat while the first request runs: 409 after
// Policy.Wait. Without it the repeat runs as well and loses at its commit. It
// costs no round trip: a lock that ends with the transaction is asked for
// together with BEGIN.
//
// At REPEATABLE READ and SERIALIZABLE a repeat that comes at the very moment of
// the first one's commit may still run, and then loses.
func WithExclusive() EndpointOption {
	return func(e *Endpoint) error {
		e.exclusive = true
		return nil
	}
}

// WithRetry runs the endpoint again, up to n times, where the server gave the
// transaction up for its timing (class 40: serialization failure, deadlock) and
// no other request has won. The endpoint's effects outside the database happen
// again then. The default is 0; negative values are refused.
//
// A request whose claim isn't part of the transaction runs again only if it has no
// body, as that isn't kept: one without a key, or claimed further out, or any where
// WithWorkPool leads to another database.
func WithRetry(n int) EndpointOption {
	return func(e *Endpoint) error {
		if n < 0 {
			return refuseOption("WithRetry: %d must not be negative", n)
		}
		e.retries = n
		return nil
	}
}

// WithoutResponse claims without keeping the answer: a repeat is answered 409.
func WithoutResponse() EndpointOption {
	return func(e *Endpoint) error {
		e.withoutResponse = true
		return nil
	}
}

// WithWorkPool runs the endpoint's transaction on another pool than the store's,
// such as one with another role. The claim can be part of the transaction only
// if pool leads to the same database of the same server: that is asked when the
// endpoint is made, or at its first request if it can't be told by then. Where
// it is another database the endpoint is claimed up front and released after a
// failure instead (claim and release), around a plain transaction on pool, and a
// warning is logged that names it.
func WithWorkPool(pool *pgxpool.Pool) EndpointOption {
	return func(e *Endpoint) error {
		if pool == nil {
			return refuseOption("WithWorkPool: the pool is nil")
		}
		e.pool = pool
		return nil
	}
}
