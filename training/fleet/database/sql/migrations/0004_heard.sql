-- From version 3 to 4.

-- How long attempts that are live now were heard training is known since their receiver's start at best: counted anew.
ALTER TABLE attempts ADD COLUMN heard_s REAL DEFAULT 0;
