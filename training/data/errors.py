"""The exceptions for faults of data; their text is one sentence for a person.

DataError          the data cannot be used: exit code 65; the fleet does not try such a job again
  SchemaMismatch   the data have another schema than expected; the text names a difference
"""

from training.contract import Exit


class DataError(Exception):
    """The data cannot be used as they are; the text is one sentence with the reason."""

    code = Exit.BAD_DATA


class SchemaMismatch(DataError):  # noqa: N818 - reads as what it is
    """The data were made under another schema than the expected one."""
