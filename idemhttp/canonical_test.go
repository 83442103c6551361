package idemhttp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"runtime"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func canonicalText(t testing.TB, body string) string {
	out, err := CanonicalJSON().Of(nil, []byte(body))
	require.NoError(t, err)
	return string(out)
}

func TestCanonicalJSONEqual(t *testing.T) {
	for _, group := range [][]string{
		{`{"a":1,"b":2}`, `{"b":2,"a":1}`, "{ \"a\" : 1 ,\n\t\"b\" : 2 }", `{"\u0061":1.0,"b":20e-1}`},
		{`1.5`, `1.50`, `15e-1`, `0.15E+1`, `150e-2`},
		{`100`, `1e2`, `1E+2`, `10.0e1`, `1.00e0002`},
		{`0`, `0.0`, `0e5`, `0e-9`},
		{`-1`, `-1.0`},
		{`"é"`, `"\u00e9"`, `"\u00E9"`},
		{`"😀"`, `"\ud83d\ude00"`},
		{`"a/b"`, `"a\/b"`},
		{`[]`, ` [ ] `},
		{`{"B":{"a":1},"A":{"b":2}}`, `{"A":{"b":2},"B":{"a":1}}`}, // one key, but in two objects
		{`{"A":1,"AA":2,"a b":3}`, `{"AA":2,"a b":3,"A":1}`},
		{`{"a":{"c":[1,{"x":1,"y":2}],"b":null}}`, `{"a":{"b":null,"c":[1,{"y":2,"x":1}]}}`},
	} {
		for _, body := range group {
			got := canonicalText(t, body)
			assert.Equal(t, canonicalText(t, group[0]), got, "%s and %s", group[0], body)
			assert.True(t, strings.HasPrefix(got, "json:"), body)
		}
	}
}

func TestCanonicalJSONDifferent(t *testing.T) {
	seen := map[string]string{}
	for _, body := range []string{
		`1`, `10`, `-1`, `0`, `-0`, `1e1000000000`, `1e1000000001`, `9007199254740993`, `9007199254740992`, `0.1`, `0.10000000000000001`,
		`"1"`, `true`, `"true"`, `false`, `null`, `"null"`, `""`, `[]`, `{}`, `[[]]`, `[[],[]]`, `[1,2]`, `[2,1]`, `[12]`, `[[1],2]`, `[[1,2]]`,
		`{"a":1}`, `{"a":"1"}`, `{"a":[1]}`, `{"a":null}`, `{"a":{}}`, `{"a":{"b":1}}`, `{"a:":1}`, `["a",1]`, `["a:1"]`, `"é"`, `"e\u0301"`,
		`1e` + strings.Repeat("9", 70), `1e` + strings.Repeat("9", 71),
	} {
		text := canonicalText(t, body)
		require.NotContains(t, seen, text, "%s and %s", body, seen[text])
		seen[text] = body
	}
}

func TestCanonicalJSONTakesTheBytesOfWhatIsUnclear(t *testing.T) {
	deep := strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000)
	for _, body := range []string{
		``, ` `, `{`, `{"a":1}x`, `{"a":1}{"a":1}`, `{"a":1,"a":2}`, `{"a":1,"\u0061":1}`, `{"x":{"a":1,"a":1}}`, `"\ud800"`, `{"\udc00":1}`, "\"\xff\"", `01`, `+1`,
		`{"amount":1,"Amount":2}`, `{"Amount":2,"amount":1}`, `{"x":[{"\u00e9":1,"\u00c9":2}]}`, `{"key":1,"b":2,"\u212aey":3}`,
		`nan`, `not json`, "\ufeff{}", deep,
	} {
		assert.Equal(t, "raw:"+body, canonicalText(t, body))
	}
}

func TestCanonicalJSONOfDeepNestingIsCheap(t *testing.T) {
	const depth = 9_000
	body := strings.Repeat(`{"a":`, depth) + `"` + strings.Repeat("x", 500_000) + `"` + strings.Repeat("}", depth)
	var out []byte
	allocated := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			out, _ = canonicalJSON([]byte(body))
		}
	}).AllocedBytesPerOp()
	assert.NotEmpty(t, out)
	assert.Less(t, allocated, int64(100<<20), "bytes allocated for a body of half a megabyte")
}

func TestCanonicalJSONWritesStringsAsEncodingJSON(t *testing.T) {
	for r := rune(0); r <= utf8.MaxRune; r++ {
		if r > 0x3000 && r%257 != 0 || r == utf8.RuneError || utf16.IsSurrogate(r) {
			continue
		}
		quoted, err := json.Marshal(string(r))
		require.NoError(t, err)
		escaped := new(strings.Builder)
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(escaped, `\u%04X`, unit)
		}
		require.Equal(t, "json:"+string(quoted), canonicalText(t, string(quoted)))
		require.Equal(t, "json:"+string(quoted), canonicalText(t, `"`+escaped.String()+`"`))
	}
	assert.Equal(t, `json:"/\b\f\n\r\t\"\\"`, canonicalText(t, `"\/\b\f\n\r\t\"\\"`))
}

func TestCanonicalJSONSortsAtEveryDepth(t *testing.T) {
	assert.Equal(t, `json:[{"a":{"c":{},"d":1e0},"b":[{"x":0,"y":[]}]},{"e":1e0,"f":2e0}]`,
		canonicalText(t, `[{"b":[{"y":[],"x":0}],"a":{"d":1,"c":{}}},{"f":2,"e":1}]`))
}

// TestCanonicalJSONNeedsLittleMemory: what many small values cost is what an
// attacker picks.
func TestCanonicalJSONNeedsLittleMemory(t *testing.T) {
	members := new(strings.Builder)
	for i := range 100_000 {
		fmt.Fprintf(members, `"%x":1,`, 200_000-i)
	}
	for name, body := range map[string]string{
		"numbers":       "[" + strings.Repeat("1,", 1<<19) + "1]",
		"fractions":     "[" + strings.Repeat("1.5e7,", 1<<17) + "1]",
		"objects":       "[" + strings.Repeat("{},", 1<<18) + "1]",
		"strings":       "[" + strings.Repeat(`"\u00e9",`, 1<<16) + "1]",
		"members":       "{" + members.String() + `"a":1}`,
		"small objects": "[" + strings.Repeat(`{"b":1,"a":1},`, 1<<16) + "1]",
		"deep":          strings.Repeat(`{"b":1,"a":`, 9_000) + `"` + strings.Repeat("x", 900_000) + `"` + strings.Repeat("}", 9_000),
	} {
		in := []byte(body)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, ok := canonicalJSON(in)
		runtime.ReadMemStats(&after)
		require.True(t, ok, name)
		assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(24*len(body)), name)
	}
}

// FuzzCanonicalJSON compares with what encoding/json reads: two bodies are equal
// exactly when their values are.
func FuzzCanonicalJSON(f *testing.F) {
	for _, pair := range [][2]string{
		{`{"a":1.50,"b":[]}`, `{"b":[],"a":15e-1}`}, {`1`, `2`}, {`"\u00e9"`, `"é"`}, {`{"a":1,"a":2}`, `{"a":2}`}, {`[1e400]`, `[1e400]`}, {`x`, `x `},
	} {
		f.Add(pair[0], pair[1])
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		textA, textB := canonicalText(t, a), canonicalText(t, b)
		if strings.HasPrefix(textA, "raw:") || strings.HasPrefix(textB, "raw:") {
			assert.Equal(t, a == b, textA == textB)
			return
		}
		if naiveA, naiveB := naiveText(a), naiveText(b); naiveA != "" && naiveB != "" {
			assert.Equal(t, naiveA == naiveB, textA == textB, "%s\n%s", naiveA, naiveB)
		}
		var indented bytes.Buffer
		require.NoError(t, json.Indent(&indented, []byte(a), " ", "\t"))
		assert.Equal(t, textA, canonicalText(t, indented.String()))
	})
}

// naiveText writes a body by way of maps and big.Rat, or "" where that is too
// much to ask.
func naiveText(body string) string {
	dec := json.NewDecoder(strings.NewReader(body))
	dec.UseNumber()
	var v any
	if dec.Decode(&v) != nil || !ratNumbers(&v) {
		return ""
	}
	out, _ := json.Marshal(v)
	return string(out)
}

func ratNumbers(v *any) bool {
	switch x := (*v).(type) {
	case json.Number:
		_, exp, _ := strings.Cut(strings.ToLower(string(x)), "e")
		r, ok := new(big.Rat).SetString(string(x))
		if !ok || len(exp) > 4 || r.Sign() == 0 { // the sign of zero isn't a Rat's
			return false
		}
		*v = map[string]any{"\x00rat": r.RatString()}
	case []any:
		for i := range x {
			if !ratNumbers(&x[i]) {
				return false
			}
		}
	case map[string]any:
		for k, item := range x {
			if !ratNumbers(&item) {
				return false
			}
			x[k] = item
		}
	}
	return true
}
