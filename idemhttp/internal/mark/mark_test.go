package mark

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestMark(t *testing.T) {
	tests := []struct {
		name  string
		marks func(*Mark)
		want  bool
	}{
		{"nothing", func(*Mark) {}, false},
		{"committed", (*Mark).Committed, true},
		{"sent", (*Mark).Committing, true},
		{"sent, then known to have failed", func(m *Mark) { m.Committing(); m.RolledBack() }, false},
		{"sent and committed", func(m *Mark) { m.Committing(); m.Committed() }, true},
		{"one committed, one failed", func(m *Mark) { m.Committing(); m.Committed(); m.Committing(); m.RolledBack() }, true},
		{"two sent, one failed", func(m *Mark) { m.Committing(); m.Committing(); m.RolledBack() }, true},
		{"failed more often than sent", func(m *Mark) { m.RolledBack(); m.RolledBack(); m.Committing() }, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := new(Mark)
			tt.marks(From(With(context.Background(), m)))
			assert.Equal(t, tt.want, m.Close(nil))
		})
	}
}

func TestALateMarkIsToldEachTime(t *testing.T) {
	m, late := new(Mark), 0
	m.Close(func() { late++ })
	m.Committing()
	m.Committed()
	m.RolledBack() // says that nothing is there: not late
	assert.Equal(t, 2, late)
}

func TestALateMarkOfCommittedWorkIsFine(t *testing.T) {
	m := new(Mark)
	m.Committed()
	assert.True(t, m.Close(func() { t.Error("told as too late") }))
	m.Committed()
}

// TestTheOuterMarkHearsToo: of middleware on another store around this one.
func TestTheOuterMarkHearsToo(t *testing.T) {
	for want, marks := range map[bool]func(*Mark){
		true:  (*Mark).Committed,
		false: func(m *Mark) { m.Committing(); m.RolledBack() },
	} {
		outer, inner := new(Mark), new(Mark)
		ctx := With(With(With(context.Background(), outer), inner), inner)
		marks(From(ctx))
		assert.Equal(t, want, inner.Close(nil))
		assert.Equal(t, want, outer.Close(nil))
	}
	outer := new(Mark)
	From(With(With(context.Background(), outer), new(Mark))).Committing()
	assert.True(t, outer.Close(nil), "sent counts")
}

func TestNoMark(t *testing.T) {
	m := From(context.Background())
	assert.Nil(t, m)
	m.Committing()
	m.Committed()
	m.RolledBack()
}
