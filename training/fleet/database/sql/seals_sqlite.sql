-- What keeps the checksums of rows right: SQLite's, for one {table} at a time, its {columns}, {key} and so on filled in
-- by seals.py. The triggers are temporary: they belong to a connection of this program and stand in no file,
-- so another program that writes to the file leaves a row whose checksum is not its own.

-- name: seal_columns — a table's columns; one text for all tables, of which one is kept prepared
SELECT name, dflt_value, pk FROM pragma_table_info(?)

-- name: seal_inserted — a new row gets its checksum and is counted
CREATE TEMP TRIGGER seal_{table}_inserted AFTER INSERT ON main.{table} BEGIN
  UPDATE {table} SET seal = seal_of_{table}({new}) WHERE {here};
  UPDATE seals SET n = n + 1 WHERE tbl = '{table}';
END

-- name: seal_updated — a changed row gets its checksum
CREATE TEMP TRIGGER seal_{table}_updated AFTER UPDATE OF {columns} ON main.{table} BEGIN
  UPDATE {table} SET seal = seal_of_{table}({new}) WHERE {here};
END

-- name: seal_deleted — a row that is taken out is counted out
CREATE TEMP TRIGGER seal_{table}_deleted AFTER DELETE ON main.{table} BEGIN
  UPDATE seals SET n = n - 1 WHERE tbl = '{table}';
END

-- name: seal_left_out — rows come that have their checksums
DROP TRIGGER temp.seal_{table}_inserted

-- name: row_next — the number that the next row of a table gets
SELECT coalesce(max(seq), 0) + 1 FROM {table}

-- name: rows_added — many new rows at once …
INSERT INTO {table} ({columns}, seal) VALUES ({values})

-- name: rows_counted — … and are counted here
UPDATE seals SET n = n + ? WHERE tbl = '{table}'

-- name: chain_inserted — the audit's rows carry a digest already, and are only counted
CREATE TEMP TRIGGER seal_{table}_inserted AFTER INSERT ON main.{table} BEGIN
  UPDATE seals SET n = n + 1 WHERE tbl = '{table}';
END

-- name: seal_broken — rows that are not what their checksum says
SELECT {key} FROM {table} WHERE seal IS NOT seal_of_{table}({columns})

-- name: seal_counted — how many rows there are and were counted
SELECT (SELECT count(*) FROM {table}) AS n, (SELECT n FROM seals WHERE tbl = '{table}') AS counted

-- name: unsealed_counted — how many rows there are in a table whose rows nobody counts
SELECT count(*) AS n FROM {table}
