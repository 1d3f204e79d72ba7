-- From version 17 to 18: an operator may close a change of which the watched host will never tell the end.

ALTER TABLE host_changes ADD COLUMN closed_by TEXT;
ALTER TABLE host_changes ADD COLUMN closed_at REAL CHECK ((closed_at IS NULL) = (closed_by IS NULL));
