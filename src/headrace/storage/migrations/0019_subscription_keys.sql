-- The key that a subscription was last asked for with; empty: by someone without a key.
ALTER TABLE subscriptions ADD COLUMN key_id TEXT NOT NULL DEFAULT '';
-- What the key opens: the subscription follows no other streams.
ALTER TABLE subscriptions ADD COLUMN prefix TEXT NOT NULL DEFAULT '';
