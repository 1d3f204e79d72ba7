-- From version 4 to 5: readers beside hosts and operators. A CHECK cannot be changed, so the tables are made anew.

CREATE TABLE certificates_new (
  fingerprint TEXT PRIMARY KEY,
  role        TEXT NOT NULL CHECK (role IN ('host', 'operator', 'reader')),
  name        TEXT NOT NULL,
  issued_at   REAL NOT NULL,
  expires_at  REAL NOT NULL,
  revoked_at  REAL,
  seal INTEGER
) STRICT;
INSERT INTO certificates_new SELECT fingerprint, role, name, issued_at, expires_at, revoked_at, seal FROM certificates;
DROP TABLE certificates;
ALTER TABLE certificates_new RENAME TO certificates;

CREATE TABLE invitations_new (
  code_sha256 TEXT PRIMARY KEY,
  role        TEXT NOT NULL CHECK (role IN ('host', 'operator', 'reader')),
  name        TEXT NOT NULL,
  created_at  REAL NOT NULL,
  expires_at  REAL NOT NULL,
  used_by     TEXT,
  seal INTEGER
) STRICT;
INSERT INTO invitations_new SELECT code_sha256, role, name, created_at, expires_at, used_by, seal FROM invitations;
DROP TABLE invitations;
ALTER TABLE invitations_new RENAME TO invitations;

-- Tokens of before are operators'. NULL, so that their checksums stay right.
ALTER TABLE tokens ADD COLUMN role TEXT CHECK (role IN ('reader'));
