-- From version 16 to 17.

-- What attempts that are live now may use of their hosts is not known: a core each is taken for true.
ALTER TABLE attempts ADD COLUMN booked TEXT;
