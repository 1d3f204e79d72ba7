-- From version 15 to 16: operators' orders for hosts, and for how long trainers were paused.

CREATE TABLE host_orders (
  seq      INTEGER PRIMARY KEY,
  host     TEXT NOT NULL,
  kind     TEXT NOT NULL CHECK (kind IN ('pause', 'drain', 'hand_back')),
  since    REAL NOT NULL,
  by       TEXT NOT NULL,
  ended_at REAL,
  ended_by TEXT,
  seal INTEGER,
  CHECK ((ended_at IS NULL) = (ended_by IS NULL))
) STRICT;
CREATE UNIQUE INDEX host_orders_one_open ON host_orders (host) WHERE ended_at IS NULL;
INSERT INTO seals (tbl, n, unsealed) VALUES ('host_orders', 0, 0);

ALTER TABLE attempts ADD COLUMN paused INTEGER NOT NULL DEFAULT 0 CHECK (paused IN (0, 1));
ALTER TABLE attempts ADD COLUMN paused_s REAL NOT NULL DEFAULT 0;
