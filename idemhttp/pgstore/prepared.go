package pgstore

import (
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// pgx takes the name of a prepared statement for its text, and lets an argument
// rewrite a text. What a tracer is told of is what was given: this file tells what
// is sent.

// hiddenKey is where a connection keeps the texts of its prepared statements whose
// names show less than they may commit.
const hiddenKey = stmtNamesKey + ".hidden"

// anything is a text that may commit whatever can be committed.
const anything = "?; COMMIT"

// notePrepared remembers a statement that is prepared under a misleading name. Few
// are: no more is kept, as nobody says when a statement is gone.
func notePrepared(conn *pgx.Conn, name, sql string) {
	if name == "" || strings.HasPrefix(name, "stmtcache_") || shows(name, sql) { // the former are pgx's own
		return
	}
	data := conn.PgConn().CustomData()
	hidden, _ := data[hiddenKey].(map[string]string)
	if hidden == nil {
		hidden = map[string]string{}
		data[hiddenKey] = hidden
	}
	if known, ok := hidden[name]; ok && known != sql {
		sql = anything // whichever of the two the server took
	}
	hidden[name] = sql
}

// shows reports whether a name, read as a text, is thought to commit all that sql
// may.
func shows(name, sql string) bool {
	for _, inside := range []bool{false, true} {
		if mayCommit(sql, inside) && !mayCommit(name, inside) || commitsInside(sql, inside) && !commitsInside(name, inside) {
			return false
		}
	}
	return true
}

// textOf is what a connection sends for a text.
func textOf(conn *pgx.Conn, sql string) string {
	hidden, _ := conn.PgConn().CustomData()[hiddenKey].(map[string]string)
	if text, ok := hidden[sql]; ok {
		return text
	}
	return sql
}

// rewritten reports whether another text may be sent than was given. pgx's own
// named arguments change nothing but the names of parameters.
func rewritten(args []any) bool {
	return slices.ContainsFunc(args, func(arg any) bool {
		switch arg.(type) {
		case pgx.NamedArgs, pgx.StrictNamedArgs:
			return false
		}
		_, ok := arg.(pgx.QueryRewriter)
		return ok
	})
}
