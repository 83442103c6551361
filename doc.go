// Package idem keeps a message consumer from handling the same message twice.
package idem
