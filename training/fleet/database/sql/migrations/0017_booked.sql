-- From version 16 to 17: what a grant books of its host.

-- What attempts that are live now may use of their hosts is not known: a core each is taken for true.
ALTER TABLE attempts ADD COLUMN booked TEXT;
