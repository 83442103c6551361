package idemhttp

import "fmt"

// enumName is the text of the n-th of names, which make up an enumeration.
func enumName(typ string, n uint8, names ...string) string {
	if int(n) < len(names) {
		return names[n]
	}
	return fmt.Sprintf("%s(%d)", typ, n)
}
