package idemhttp

import (
	"net/http"
	"net/textproto"
)

// alwaysStored are the response headers that belong to the answer itself.
var alwaysStored = []string{
	"Content-Type", "Content-Language", "Content-Encoding", "Content-Disposition",
	"Location", "Content-Location", "Etag", "Last-Modified", "Link",
	"Cache-Control", "X-Content-Type-Options",
}

// neverStored are those that belong to one caller or one connection.
var neverStored = map[string]bool{
	"Set-Cookie": true, "Set-Cookie2": true, "Www-Authenticate": true, "Authorization": true,
	"Proxy-Authenticate": true, "Proxy-Authorization": true,
	"Authentication-Info": true, "Proxy-Authentication-Info": true, "Clear-Site-Data": true,
	"Content-Length": true, "Transfer-Encoding": true, "Te": true, "Trailer": true,
	"Connection": true, "Proxy-Connection": true, "Keep-Alive": true, "Upgrade": true,
	"Date": true,
}

// neverKeys are request headers in which no key can be: they mean something to
// net/http or to a proxy, which may take them away.
var neverKeys = map[string]bool{
	"Host": true, "Content-Length": true, "Transfer-Encoding": true, "Te": true, "Trailer": true,
	"Connection": true, "Proxy-Connection": true, "Keep-Alive": true, "Upgrade": true, "Expect": true,
}

// storedHeaders returns the canonical names of what is stored.
func storedHeaders(more []string) []string {
	names := append([]string(nil), alwaysStored...)
	for _, h := range more {
		names = append(names, textproto.CanonicalMIMEHeaderKey(h))
	}
	return names
}

// keep returns a copy of those headers of h that are named.
func keep(h http.Header, names []string) http.Header {
	kept := make(http.Header)
	for _, name := range names {
		if values := h[name]; len(values) > 0 {
			kept[name] = append([]string(nil), values...)
		}
	}
	return kept
}
