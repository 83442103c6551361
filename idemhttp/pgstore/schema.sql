-- The claims of idemhttp/pgstore, version 1, for those who run migrations with a
-- tool of their own. Store.Migrate runs the same text, with the schema and table
-- of the Store in place of public and idem_claims.
--
-- Later versions only add columns, all of them nullable: two versions of the
-- library may use one table during a roll-out.
CREATE TABLE IF NOT EXISTS "public"."idem_claims" (
	id                  bytea       NOT NULL PRIMARY KEY, -- SHA-256 of domain, endpoint, scope and key
	token               bytea       NOT NULL,             -- who may answer or release it
	fingerprint         bytea       NOT NULL,             -- SHA-256 of the request
	fingerprint_version bytea       NOT NULL,             -- the name of the way that was made
	state               smallint    NOT NULL,             -- 0 running, 1 done without an answer, 2 answered
	status              integer,                          -- the answer: status,
	headers             bytea,                            -- names and values, each with its length in front,
	body                bytea,                            -- and body, in the clear
	created_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
	expires_at          timestamptz NOT NULL              -- by this server's clock
);

CREATE INDEX IF NOT EXISTS "idem_claims_expires_at_idx" ON "public"."idem_claims" (expires_at);
