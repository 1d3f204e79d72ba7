"""Find copies among ingested windows; refuse them, or with --allow-copies keep and note them."""

from dataclasses import replace

from training.data.errors import DataError
from training.data.identity import Kinship, find_kin, of_two_hosts
from training.data.ingest.ingested import Ingested


def without_copies(windows: Ingested, *, allow: bool) -> Ingested:
    """Return the same windows with notes on copies and on recordings that share samples or time.

    Raises DataError if windows are copies of others, unless ``allow``; and always for the same samples under two hosts,
    because only the user knows from which host they are.
    """
    kin = find_kin(windows.X, [channel.name for channel in windows.channels], windows.rows)
    if kin.strangers is not None and windows.X.shape[2] == 1:
        one, group, other, elsewhere = kin.strangers
        raise DataError(
            f"Equal rows are in two groups, the first {one!r} of {group} and {other!r} of {elsewhere}, and would "
            "train and test a model: keep one of each, as pandas' drop_duplicates does."
        )
    if kin.strangers is not None:
        raise DataError(of_two_hosts(kin.strangers))
    if kin.equal and not allow:
        raise DataError(
            f"{_count(kin)}: leave the copies out (a class becomes no more certain by them), or say --allow-copies, "
            "and what is equal stays on one side of every split."
        )
    said = [] if not kin.equal else [f"{_count(kin)}; --allow-copies took them along."]
    return replace(windows, notes=(*windows.notes, *said, *kin.notes))


def _count(kin: Kinship) -> str:
    total = sum(pair.windows for pair in kin.equal)
    first = kin.equal[0]
    where = (
        f"in the recording {first.first!r}"
        if first.first == first.other
        else f"in the recordings {first.first!r} and {first.other!r}"
    )
    return f"{total:,} windows are copies of others, the first {where}"
