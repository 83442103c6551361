// Package ids makes message ids for the benchmarks: unique ones, and streams in
// which some come again.
package ids

// Of appends the id of a number below 1<<40 to b, length bytes long: hexadecimal
// digits, with dashes where a UUID has them if length is 36. Ids look random, as
// UUIDs do, and those of 16 bytes or more differ if their numbers do.
func Of(b []byte, number uint64, length int) []byte {
	var word uint64
	for i, digit := 0, 0; i < length; i++ {
		if length == 36 && (i == 8 || i == 13 || i == 18 || i == 23) {
			b = append(b, '-')
			continue
		}
		if digit%16 == 0 {
			word = scramble(number + uint64(digit)<<40)
		}
		b = append(b, "0123456789abcdef"[word>>60])
		word <<= 4
		digit++
	}
	return b
}

// scramble is one step of splitmix64: a bijection whose values look random.
func scramble(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
