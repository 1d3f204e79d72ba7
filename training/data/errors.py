"""The faults that data can have, as exceptions whose text is one sentence for a person.

DataError          the data themselves: exit code 65, never retried
  SchemaMismatch   data of another schema than expected; names the first field that differs
"""


class DataError(Exception):
    """The data cannot be used as they are."""


class SchemaMismatch(DataError):  # noqa: N818 - reads as what it is
    """The data were extracted under another schema."""
