"""The doctor's check of checksums, which finds rows that another program changed, removed or added. Pure.

:mod:`training.fleet.database.seals` writes the checksums and counts; :mod:`training.fleet.recovery.doctor_rows` checks
promises by other rows, and so also finds what a bug of this program wrote.
"""

from collections.abc import Iterable, Iterator

from training.fleet.database.seals import Sealed
from training.fleet.recovery.findings import BACKUP, Finding
from training.printable import counted

_REMEDY = f"something else than the receiver wrote to the database, or its disk fails; {BACKUP}"


def look_at_seals(tables: Iterable[Sealed]) -> Iterator[Finding]:
    """Report rows that do not match their checksum, and tables whose number of rows differs from the count."""
    for each in tables:
        for key in each.broken:
            named = ", ".join(str(part)[:12] for part in key)
            what = f"row {named} of {each.table} does not match its checksum"
            yield Finding("checksums", what, _REMEDY)
        if each.rows != each.counted:
            said = "no number was" if each.counted is None else f"{each.counted} were"
            what = f"{each.table} holds {counted(each.rows, 'rows')}, and {said} counted"
            yield Finding("counts", what, _REMEDY)
