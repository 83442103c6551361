package main

// The actors of the sequence diagrams.
const (
	client = iota
	middleware
	endpoint
	database
)

func actors(c *canvas) *sequence {
	return newSequence(c, 860, "client", "idemhttp", "endpoint", "PostgreSQL")
}

// httpRelease is claim-and-release.
func httpRelease(c *canvas) {
	s := actors(c)
	s.says(client, middleware, "POST, Idempotency-Key: k")
	s.says(middleware, database, "1  INSERT the claim, decided by its primary key")
	s.says(middleware, endpoint, "runs")
	s.says(endpoint, database, "its own work, COMMIT")
	s.note(endpoint, "shell", "the middleware hears of the COMMIT:", "from now on nothing releases the claim")
	s.answers(endpoint, middleware, "201, held back")
	s.note(middleware, "danger", "A process that dies here has done the work", "and answered nobody: 409 until ClaimTTL is over")
	s.says(middleware, database, "2  UPDATE the claim with the answer")
	s.answers(middleware, client, "201")
	s.part("a copy while the first runs")
	s.says(client, middleware, "POST, Idempotency-Key: k")
	s.says(middleware, database, "INSERT finds the claim there; SELECT: no answer yet")
	s.answers(middleware, client, "409, Retry-After: 1")
	s.part("a copy after it")
	s.says(client, middleware, "POST, Idempotency-Key: k")
	s.says(middleware, database, "INSERT finds the claim there; SELECT: the answer")
	s.answers(middleware, client, "201, Idempotent-Replayed: true")
	s.part("the endpoint fails, and nothing was committed")
	s.says(middleware, database, "DELETE the claim: the next attempt runs")
	s.answers(middleware, client, "500")
	s.done()
}

// httpInTx is the claim inside the endpoint's transaction.
func httpInTx(c *canvas) {
	s := actors(c)
	s.says(client, middleware, "POST, Idempotency-Key: k")
	s.says(middleware, database, "1  look-up | BEGIN, in one flush")
	s.says(middleware, endpoint, "runs, with the transaction")
	s.says(endpoint, database, "its own work")
	s.answers(endpoint, middleware, "201, held back")
	s.says(middleware, database, "2  INSERT the claim with its answer | COMMIT, in one flush")
	s.note(database, "safe", "Work, claim and answer are", "there together, or not at all")
	s.answers(middleware, client, "201")
	s.part("a copy at the same time: it runs too, and loses at its commit")
	s.says(middleware, database, "2  INSERT the claim | COMMIT")
	s.answers(database, middleware, "the key is taken: nothing is committed")
	s.says(middleware, database, "3  ROLLBACK | look-up, in one flush")
	s.answers(middleware, client, "the winner's 201, as a replay")
	s.part("a copy after it")
	s.says(client, middleware, "POST, Idempotency-Key: k")
	s.says(middleware, database, "1  look-up | BEGIN")
	s.answers(middleware, client, "201, Idempotent-Replayed: true")
	s.done()
}

// layer is one middleware around the next.
type layer struct{ name, why string }

// httpWhere is where the middleware belongs: further in than all these.
func httpWhere(c *canvas) {
	layers := []layer{
		{"logging, request id, recovery", "they see replays and refusals, too"},
		{"CORS, compression", "what they add belongs to one request, not to the stored answer"},
		{"authentication", "the scope needs to know the caller; a replay needs a caller who may come in"},
		{"method override, http.TimeoutHandler", "the claim must know the real method, and outlast the time-out"},
		{"router", "its 404, 405 and redirects are not the endpoint's answers"},
	}
	const step, rim = 46, 12
	inner := 14 + len(layers)*step // where the middleware's own box begins
	c.width, c.height = 860, inner+104+len(layers)*rim+10
	for i, l := range layers {
		inset, top := 14+i*20, 14+i*step
		c.rect(inset, top, c.width-2*inset, c.height-10-i*rim-top, "shell")
		c.text(inset+12, top+20, "title", "start", l.name)
		c.text(inset+12, top+36, "small", "start", l.why)
	}
	inset := 14 + len(layers)*20
	c.rect(inset, inner, c.width-2*inset, 100, "actor")
	c.text(inset+12, inner+22, "on", "start", "idemhttp: Deduplicate, DeduplicateWithResponse, InTx")
	c.rect(inset+20, inner+36, c.width-2*inset-40, 50, "endpoint")
	c.text(c.width/2, inner+66, "", "middle", "the endpoint")
}
