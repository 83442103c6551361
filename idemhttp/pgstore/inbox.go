package pgstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"crypto/rand"

	"github.com/jackc/pgx/v5"

	idem "github.com/idem-go/idem"
	"github.com/idem-go/idem/idemhttp"
	"github.com/idem-go/idem/idemhttp/internal/storageid"
)

// Inbox runs the handler of a message once, across processes and restarts: the
// message is claimed in the transaction its work is done in. Make it with
// Store.Inbox. It may be used from any number of goroutines.
type Inbox struct {
	store     *Store
	consumer  string
	retention time.Duration
}

// DefaultRetention is how long an Inbox remembers a message.
const DefaultRetention = 7 * 24 * time.Hour

// InboxOption sets up an Inbox.
type InboxOption func(*Inbox) error

// WithRetention sets how long a handled message is remembered: longer than the
// broker may take to deliver it again. The default is 7 days; 0 and less are
// refused.
func WithRetention(d time.Duration) InboxOption {
	return func(i *Inbox) error {
		if d <= 0 {
			return fmt.Errorf("idem: WithRetention: %v, it has to be above 0", d)
		}
		i.retention = d
		return nil
	}
}

// Inbox returns the inbox of a consumer. The consumer's name is part of every
// claim's id: two consumers of one event both run. It is a name picked once and
// kept; changing it forgets what was handled.
func (s *Store) Inbox(consumer string, opts ...InboxOption) (*Inbox, error) {
	if strings.TrimSpace(consumer) == "" {
		return nil, fmt.Errorf("idem: Inbox: the consumer's name %q is blank", consumer)
	}
	i := &Inbox{store: s, consumer: consumer, retention: DefaultRetention}
	for n, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("idem: Inbox: option %d is nil", n)
		}
		if err := opt(i); err != nil {
			return nil, err
		}
	}
	return i, nil
}

// Do runs fn in a transaction, once per message, and claims the message in the
// same transaction. err is nil exactly when the message is handled: by this call
// (ran), or before, or by another one at the same time. After an error nothing
// is known to be claimed: have the message delivered again.
//
// fn neither commits nor rolls back; its error rolls back. A message without an
// ID runs without a claim. There is no rejected message here: a handler's error
// claims nothing.
func (i *Inbox) Do(ctx context.Context, id idem.Identity, fn func(ctx context.Context, tx pgx.Tx) error) (ran bool, err error) {
	ses, rec, err := i.store.open(ctx, i.plan(id))
	if err != nil || rec != nil {
		return false, err
	}
	st := &txState{store: i.store, pool: i.store.pool, ses: ses}
	settled := false
	defer func() {
		if !settled { // a panic, or runtime.Goexit: it goes on with its own value
			ses.rollback(ctx, errors.New("idem: the handler panicked"), false)
			_ = st.finish(ctx, false)
		}
	}()
	e := i.settle(st.in(ctx), st, fn)
	settled = true
	if err := st.finish(ctx, e.ending == committed); err != nil {
		i.store.log(ctx, slog.LevelError, "AfterCommit of a message that is handled", errAttr(err), slog.String("consumer", i.consumer))
	}
	switch e.ending {
	case committed:
		return true, nil
	case overtaken:
		return false, nil
	case unknown:
		return false, fmt.Errorf("idem: whether the message was handled isn't known: %w", e.err)
	}
	return false, e.err
}

func (i *Inbox) settle(ctx context.Context, st *txState, fn func(ctx context.Context, tx pgx.Tx) error) end {
	err := fn(ctx, st.ses.tx)
	if err == nil {
		err = st.failed()
	}
	if err != nil {
		return st.ses.rollback(ctx, err, true)
	}
	return st.ses.commit(ctx, nil)
}

func (i *Inbox) plan(id idem.Identity) plan {
	p := plan{pool: i.store.pool, begin: beginSQL, ttl: i.retention}
	if id.ID == "" {
		return p
	}
	claim := idemhttp.Claim{ID: i.storageID(id)}
	_, _ = rand.Read(claim.Token[:]) // never fails
	p.claim = &claim
	return p
}

func (i *Inbox) storageID(id idem.Identity) idemhttp.ID {
	return storageid.New(storageid.Inbox, i.consumer, id.ID, id.Destination)
}

// Forget makes a handled message unknown again, for a planned replay, and tells
// whether it was known.
func (i *Inbox) Forget(ctx context.Context, id idem.Identity) (bool, error) {
	if id.ID == "" {
		return false, nil
	}
	return i.store.Forget(ctx, i.storageID(id))
}
