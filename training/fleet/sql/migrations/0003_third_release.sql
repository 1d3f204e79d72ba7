-- From version 2 to 3.

-- What attempts of before were granted is not known: the plan may have been edited while they ran.
ALTER TABLE attempts ADD COLUMN granted TEXT;
