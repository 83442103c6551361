package idemhttp

import (
	"context"

	"github.com/idem-go/idem/idemhttp/internal/mark"
)

// Committing says, within a request, that a transaction is about to be
// committed. Should the request fail after this, its claim is kept: whether the
// work was committed isn't known, and it must not run again. Pass the context of
// the request. Outside of a deduplicated request it does nothing.
//
// Where pgstore's Begin or Tracer is used, it is called already.
func Committing(ctx context.Context) { mark.From(ctx).Committing() }

// Committed says, within a request, that its work is committed: whatever fails
// after this, the claim is kept and the endpoint doesn't run again for this key.
// Pass the context of the request. Outside of a deduplicated request it does
// nothing; after the claim was released it is too late, and is logged as an error.
//
// Where pgstore's Begin or Tracer is used, it is called already.
func Committed(ctx context.Context) { mark.From(ctx).Committed() }
