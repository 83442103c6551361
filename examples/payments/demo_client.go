package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"
)

// shopper is a client that retries as a careful one does: always with the same
// key, after what may be temporary, and not after what isn't.
type shopper struct {
	url, user string
	http      *http.Client
	transport *http.Transport

	mu          sync.Mutex
	loseAnswers int      // this many answers never arrive
	faults      []string // X-Fault of the first tries
	onSend      func()
}

func newShopper(url, user string) *shopper {
	// On a connection that it has used before, net/http sends a request with an
	// Idempotency-Key again by itself, and a lost answer would go unseen.
	c := &shopper{url: url, user: user, transport: &http.Transport{DisableKeepAlives: true}}
	c.http = &http.Client{Transport: c, Timeout: 10 * time.Second}
	return c
}

// try is what came of sending a request once.
type try struct {
	status   int // 0: no answer
	replayed bool
	problem  string // the last part of its type
}

func (t try) String() string {
	switch {
	case t.status == 0:
		return "no answer"
	case t.replayed:
		return fmt.Sprintf("%d replayed", t.status)
	case t.problem != "":
		return fmt.Sprintf("%d %s", t.status, t.problem)
	}
	return strconv.Itoa(t.status)
}

const (
	maxTries = 8
	pause    = 20 * time.Millisecond
)

// pay sends one payment until it is known what came of it.
func (c *shopper) pay(ctx context.Context, key, body string) (tries []try) {
	for len(tries) < maxTries {
		t, wait := c.send(ctx, key, body)
		tries = append(tries, t)
		temporary := t.status == 0 || t.status >= 500 || t.problem == "in-progress"
		if !temporary {
			return tries
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return tries
		}
	}
	return tries
}

func (c *shopper) send(ctx context.Context, key, body string) (try, time.Duration) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/payments", strings.NewReader(body))
	if err != nil {
		return try{}, pause
	}
	req.Header.Set("X-User", c.user)
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Idempotency-Key", `"`+key+`"`)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return try{}, pause
	}
	defer resp.Body.Close()
	t := try{status: resp.StatusCode, replayed: resp.Header.Get("Idempotent-Replayed") == "true"}
	var p struct{ Type string }
	if json.NewDecoder(resp.Body).Decode(&p) == nil {
		_, t.problem, _ = strings.Cut(path.Base(p.Type), "#")
	}
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
		return t, time.Duration(seconds) * time.Second
	}
	return t, pause
}

var errLost = errors.New("the answer was lost on its way back")

// RoundTrip implements http.RoundTripper: it sends a request with the fault
// whose turn it is, and may lose the answer.
func (c *shopper) RoundTrip(req *http.Request) (*http.Response, error) {
	lose := c.prepare(req)
	resp, err := c.transport.RoundTrip(req)
	if err != nil || !lose {
		return resp, err
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return nil, errLost
}

func (c *shopper) prepare(req *http.Request) (lose bool) {
	if req.Method != http.MethodPost {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.faults) > 0 {
		req.Header.Set("X-Fault", c.faults[0])
		c.faults = c.faults[1:]
	}
	if c.onSend != nil {
		c.onSend()
	}
	if lose = c.loseAnswers > 0; lose {
		c.loseAnswers--
	}
	return lose
}

// count asks how many payments the user has made.
func (c *shopper) count(ctx context.Context) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+"/payments", nil)
	if err != nil {
		return 0, err
	}
	req.Header.Set("X-User", c.user)
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var list struct{ Count int }
	err = json.NewDecoder(resp.Body).Decode(&list)
	return list.Count, err
}

// summary says how often each answer came, in the order of their first.
func summary(tries []try) string {
	var order []string
	times := map[string]int{}
	for _, t := range tries {
		if times[t.String()]++; times[t.String()] == 1 {
			order = append(order, t.String())
		}
	}
	for i, text := range order {
		if n := times[text]; n > 1 {
			order[i] = fmt.Sprintf("%s (%d times)", text, n)
		}
	}
	return strings.Join(order, ", ")
}
