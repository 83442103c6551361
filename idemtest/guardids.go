package idemtest

import (
	"fmt"
	"runtime"
	"strings"
	"unsafe"
	"weak"

	"github.com/idem-go/idem"
)

func quote(text string, length int) string {
	if len(text) < length {
		return fmt.Sprintf("%q... of %d bytes", text, length)
	}
	return fmt.Sprintf("%q", text)
}

// allDiffer has each id begun and settled while the others are in other states.
func (r *guardRig) allDiffer(ids []idem.Identity) {
	r.t.Helper()
	claims := make([]idem.Claim, len(ids))
	for i, id := range ids {
		claims[i] = r.begin(id)
	}
	for i, c := range claims {
		settleVerbs[i%3].call(r.IdempotencyGuard, c)
	}
	for i, id := range ids {
		r.found(id, settleVerbs[i%3].leads, "as this id was settled, and no other")
	}
}

// exactness: what looks alike to a careless eye, to C, to Unicode and to who joins
// two strings.
func (r *guardRig) exactness() {
	r.allDiffer([]idem.Identity{
		idem.IDAt("ab", "c"), idem.IDAt("a", "bc"), idem.IDAt("abc", ""),
		idem.IDAt("b\x00", "c"), idem.IDAt("b", "\x00c"), idem.IDAt("b\x00c", ""),
		idem.IDAt("1:a", "b"), idem.IDAt("1", "a:b"),
		idem.ID("A"), idem.ID("a "), idem.ID(" a"), idem.ID("aa"),
		idem.ID("\x00"), idem.ID("\x00\x00"), idem.ID(" "), idem.ID("0"), idem.ID("00"),
		idem.ID("\xff"), idem.ID("\xfe"), idem.ID("\uFFFD"), // not UTF-8, and what it is often turned into
		idem.ID("\u00e9"), idem.ID("e\u0301"), // e with an acute accent, composed and not
	})
}

// longIDs differ in one byte, at the beginning, in the middle and at the end, around
// the lengths where a guard may go over to a digest.
func (r *guardRig) longIDs() {
	for i, n := range []int{63, 64, 65, 255, 256, 257, 4096, 1 << 16} {
		same := strings.Repeat(string(rune('a'+i)), n)
		ids := []idem.Identity{idem.ID(same), idem.ID(same + same[:1])}
		for _, at := range []int{0, n / 2, n - 1} {
			ids = append(ids, idem.ID(same[:at]+"y"+same[at+1:]))
		}
		r.allDiffer(ids)
	}
}

func (r *guardRig) destinations() {
	id := r.id().ID
	here, there, nowhere := idem.IDAt(id, "here"), idem.IDAt(id, "there"), idem.ID(id)
	if r.spec.MessageIdentity == idem.IDAndDestination {
		r.allDiffer([]idem.Identity{here, there, nowhere})
		return
	}
	c := r.begin(here)
	r.found(there, idem.InFlight, "because the destination is to be ignored")
	r.Complete(c)
	r.found(nowhere, idem.Completed, "because the destination is to be ignored")
}

// reusedMemory has the id lie over a buffer that is written again as soon as
// TryBegin has returned, as a client's read buffer is.
func (r *guardRig) reusedMemory() {
	for _, v := range settleVerbs {
		for _, length := range []int{16, 200} {
			buffer := []byte((r.id().ID + strings.Repeat("x", length))[:length])
			id := idem.ID(string(buffer))
			c := r.begin(idem.ID(unsafe.String(unsafe.SliceData(buffer), length)))
			copy(buffer, "overwritten")
			r.found(id, idem.InFlight, "although the memory of the id is used for something else")
			v.call(r.IdempotencyGuard, c)
			copy(buffer, "overwritten again")
			r.found(id, v.leads, "after "+v.name+", although the memory of the id is used for something else")
		}
	}
}

// keepsNothing has the id be a small part of a large payload, which the guard must
// let go.
func (r *guardRig) keepsNothing() {
	settled := r.payload(func(c idem.Claim) { r.Complete(c) })
	inFlight := r.payload(func(idem.Claim) {})
	for range 10 {
		runtime.GC()
		if settled.Value() == nil && inFlight.Value() == nil {
			return
		}
	}
	if settled.Value() != nil {
		r.t.Error("the guard keeps the payload alive that a completed id was cut from")
	}
	if inFlight.Value() != nil {
		r.t.Error("the guard keeps the payload alive that an id in flight was cut from")
	}
	runtime.KeepAlive(r)
}

//go:noinline
func (r *guardRig) payload(then func(c idem.Claim)) weak.Pointer[byte] {
	payload := make([]byte, 1<<16)
	n := copy(payload, r.id().ID)
	then(r.begin(idem.ID(unsafe.String(unsafe.SliceData(payload), n))))
	return weak.Make(unsafe.SliceData(payload))
}
