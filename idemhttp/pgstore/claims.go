package pgstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/idem-go/idem/idemhttp"
)

// statements are the store's, with its table in them. All columns are listed
// always: the next version of the library may have added some.
type statements struct {
	expire  *statement // deletes the row of an id if it has expired
	lookup  *statement
	claim   *statement
	answer  *statement
	holder  *statement
	release *statement
	forget  *statement
	reap    *statement
	insert  *statement // a claim with its answer, inside the work's transaction
	replace *statement // insert, in the place of a row that has expired
	fresh   *statement // looks again, under the lock of WithExclusive
}

const (
	bytea  = pgtype.ByteaOID
	int2   = pgtype.Int2OID
	int4   = pgtype.Int4OID
	int8   = pgtype.Int8OID
	tstz   = pgtype.TimestamptzOID
	record = "token, fingerprint, fingerprint_version, state, status, headers, body, expires_at <= clock_timestamp()"

	expiredColumn = 7 // the last of record
)

// statementsFor makes the statements. Expiry is the server's to tell:
// clock_timestamp where a row is written or judged, since now() of a transaction
// that waited is long past; statement_timestamp in the reaper, since a volatile
// function there can't use the index.
func statementsFor(table string) statements {
	with := func(sql string, oids ...uint32) *statement {
		sql = strings.ReplaceAll(strings.Join(strings.Fields(sql), " "), "TTL", "clock_timestamp() + $1 * interval '1 microsecond'")
		return prepared(strings.ReplaceAll(sql, "CLAIMS", table), oids...)
	}
	const all = "(expires_at, id, token, fingerprint, fingerprint_version, state, status, headers, body)"
	const insert = `INSERT INTO CLAIMS AS c ` + all + `
		VALUES (TTL, $2, CASE WHEN now() = $10 THEN $3 END, $4, $5, $6, $7, $8, $9)`
	return statements{
		expire: with(`DELETE FROM CLAIMS WHERE id = $1 AND expires_at <= clock_timestamp()`, bytea),
		lookup: with(`SELECT `+record+` FROM CLAIMS WHERE id = $1`, bytea),
		fresh: with(`SELECT `+record+` FROM CLAIMS WHERE id = $1
			AND current_setting('transaction_isolation') = 'read committed'`, bytea),
		claim: with(`INSERT INTO CLAIMS (expires_at, id, token, fingerprint, fingerprint_version, state)
			VALUES (TTL, $2, $3, $4, $5, 0) ON CONFLICT (id) DO NOTHING`, int8, bytea, bytea, bytea, bytea),
		answer: with(`INSERT INTO CLAIMS AS c `+all+` VALUES (TTL, $2, $3, $4, $5, $6, $7, $8, $9)
			ON CONFLICT (id) DO UPDATE SET expires_at = excluded.expires_at, token = excluded.token,
				fingerprint = excluded.fingerprint, fingerprint_version = excluded.fingerprint_version,
				state = excluded.state, status = excluded.status, headers = excluded.headers, body = excluded.body
			WHERE c.expires_at <= clock_timestamp() OR (c.token = excluded.token AND c.state = 0)`,
			int8, bytea, bytea, bytea, bytea, int2, int4, bytea, bytea),
		holder:  with(`SELECT token FROM CLAIMS WHERE id = $1 AND expires_at > clock_timestamp()`, bytea),
		release: with(`DELETE FROM CLAIMS WHERE id = $1 AND token = $2 AND state = 0`, bytea, bytea),
		forget:  with(`DELETE FROM CLAIMS WHERE id = $1 AND state <> 0 AND expires_at > clock_timestamp()`, bytea),
		reap: with(`DELETE FROM CLAIMS WHERE id IN (SELECT id FROM CLAIMS WHERE expires_at <= statement_timestamp()
			ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED)`, int8),
		insert: with(insert, int8, bytea, bytea, bytea, bytea, int2, int4, bytea, bytea, tstz),
		// A DELETE in front would read: at SERIALIZABLE different keys would abort one
		// another, and above READ COMMITTED it fails where the reaper was first. A row
		// that is another's by now gets no state, which the table refuses.
		replace: with(insert+` ON CONFLICT (id) DO UPDATE SET expires_at = excluded.expires_at, token = excluded.token,
				fingerprint = excluded.fingerprint, fingerprint_version = excluded.fingerprint_version,
				state = CASE WHEN c.expires_at <= clock_timestamp() THEN excluded.state END,
				status = excluded.status, headers = excluded.headers, body = excluded.body, created_at = excluded.created_at`,
			int8, bytea, bytea, bytea, bytea, int2, int4, bytea, bytea, tstz),
	}
}

// claimParams are $1 to $5 of claim, answer and insert.
func claimParams(c idemhttp.Claim, ttl time.Duration) [][]byte {
	const all = 10 // with what is appended
	return append(make([][]byte, 0, all), microseconds(ttl), c.ID[:], c.Token[:], c.Sum.Hash[:], []byte(c.Sum.Version))
}

// answerParams are $6 to $9 of answer and insert. A nil response is work that is
// done and has no answer.
func answerParams(resp *idemhttp.Response) [][]byte {
	if resp == nil {
		return [][]byte{int2Param(idemhttp.Unanswered), nil, nil, nil}
	}
	body := resp.Body
	if body == nil {
		body = []byte{}
	}
	return [][]byte{int2Param(idemhttp.Answered), int4Param(resp.Status), encodeHeader(resp.Header), body}
}

// decodeRecord reads a row of lookup.
func decodeRecord(id idemhttp.ID, row [][]byte) (idemhttp.Record, error) {
	rec := idemhttp.Record{Claim: idemhttp.Claim{ID: id}}
	token, hash, version, state := row[0], row[1], row[2], row[3]
	if len(token) != len(rec.Token) || len(hash) != len(rec.Sum.Hash) || len(state) != 2 {
		return rec, errors.New("idem: a claim in the table is not of this library's making")
	}
	copy(rec.Token[:], token)
	copy(rec.Sum.Hash[:], hash)
	rec.Sum.Version = string(version)
	rec.State = idemhttp.State(binary.BigEndian.Uint16(state))
	switch rec.State {
	case idemhttp.Running, idemhttp.Unanswered:
		return rec, nil
	case idemhttp.Answered:
		resp, err := decodeResponse(row[4], row[5], row[6])
		rec.Response = resp
		return rec, err
	}
	return rec, fmt.Errorf("idem: a claim in the table has the state %d, which this version doesn't know", rec.State)
}

func decodeResponse(status, headers, body []byte) (*idemhttp.Response, error) {
	if len(status) != 4 {
		return nil, errors.New("idem: an answered claim in the table has no status")
	}
	header, err := decodeHeader(headers)
	if err != nil {
		return nil, err
	}
	return &idemhttp.Response{Status: int(binary.BigEndian.Uint32(status)), Header: header, Body: body}, nil
}

// encodeHeader writes names and values, each with its length in front: header
// values are bytes, not text, so JSON would not hold them.
func encodeHeader(h http.Header) []byte {
	out := []byte{}
	for _, name := range slices.Sorted(maps.Keys(h)) {
		for _, value := range h[name] {
			out = appendBytes(appendBytes(out, name), value)
		}
	}
	return out
}

func appendBytes(out []byte, s string) []byte {
	return append(binary.AppendUvarint(out, uint64(len(s))), s...)
}

func decodeHeader(in []byte) (http.Header, error) {
	h := http.Header{}
	for len(in) > 0 {
		var pair [2]string
		for i := range pair {
			n, size := binary.Uvarint(in)
			if size <= 0 || n > uint64(len(in)-size) {
				return nil, errors.New("idem: the headers of a claim in the table are damaged")
			}
			pair[i], in = string(in[size:size+int(n)]), in[size+int(n):]
		}
		h[pair[0]] = append(h[pair[0]], pair[1])
	}
	return h, nil
}

// microseconds is a ttl as a parameter, rounded up so that none becomes 0.
func microseconds(ttl time.Duration) []byte {
	n := int64(ttl / time.Microsecond)
	if ttl%time.Microsecond > 0 {
		n++
	}
	return int8Param(n)
}

func int8Param(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }

func int4Param(n int) []byte {
	return binary.BigEndian.AppendUint32(nil, uint32(min(n, math.MaxInt32)))
}

func int2Param(s idemhttp.State) []byte { return binary.BigEndian.AppendUint16(nil, uint16(s)) }
