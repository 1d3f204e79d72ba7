"""Convert windows to the schema of another data set (--like), so that a model trained on that data set can score them.

Channels that the windows lack become absent; channels that the schema lacks are left out. A channel with another
meaning under the same name is refused.
"""

import re
import shlex
import unicodedata
from collections.abc import Sequence
from dataclasses import replace

from training.data.absent import on_channels
from training.data.classes import USUAL, Benign, benign_of, listed, quoted
from training.data.dataset import NOT_NORMALISED, UNLABELLED
from training.data.errors import DataError
from training.data.ingest.ingested import BOOLEANS, NUMBERS, Ingested
from training.data.ingest.roles import IN_BRACKETS, words_of
from training.data.schema import FeatureSchema, Timing

# As the last word of a channel's name; in brackets also a letter.
(UNITS,) = words_of(
    "percent pct prozent bytes kb mb gb kib mib gib bits bps kbps mbps "
    "sec ms us ns hz khz mhz ghz celsius mw kw mv ma pa hpa"
).values()
WORD = re.compile(r"[^\W_]+")
RATE_SAME = 1e-3  # share by which two rates that were read off times may differ


def made_like(windows: Ingested, schema: FeatureSchema) -> Ingested:
    """Return the windows with the channels and classes of ``schema``. Raises DataError if sampling, channels or classes
    of the windows differ too much from the schema's, or a build made the schema."""
    _check_sampling(windows, schema)
    if schema.normaliser != NOT_NORMALISED:
        raise DataError(
            "--like names a data set of training.data.build, whose values are normalised, as ingested ones never are."
        )
    own = {channel.name: number for number, channel in enumerate(windows.channels)}
    _check_spelling(list(own), schema.channel_names)
    shared = [channel for channel in schema.channels if channel.name in own]
    if not shared:
        raise DataError(f"None of these channels is one of --like, which has {listed(schema.channel_names)}.")
    for channel in shared:
        mine = windows.channels[own[channel.name]]
        if (mine.unit, mine.kind, mine.transform) != (channel.unit, channel.kind, channel.transform):
            raise DataError(
                f"The channel {channel.name!r} is a {mine.kind} in {mine.unit or 'no unit'} here, and by --like a "
                f"{channel.kind} in {channel.unit or 'no unit'}: rename it, or leave it out with --ignore."
            )

    places, reference = [own.get(name) for name in schema.channel_names], windows.reference
    lacking = [channel.name for channel in schema.channels if channel.name not in own]
    beyond = sorted(set(own) - set(schema.channel_names))
    notes = [f"Channels of --like that nothing measures here are missing: {listed(lacking)}."] if lacking else []
    out = [f"channels that --like has not: {listed(beyond)}"] if beyond else []
    return replace(
        _labelled(windows, schema),
        X=on_channels(windows.X, places),
        reference=None if reference is None else replace(reference, X=on_channels(reference.X, places)),
        channels=schema.channels,
        sample_hz=schema.sample_hz,
        stride_s=schema.stride_s,
        notes=(*windows.notes, *notes),
        left_out=(*windows.left_out, *out),
    )


def _check_spelling(own: Sequence[str], known: Sequence[str]) -> None:
    """Raise DataError if a channel looks like another spelling of a channel that --like has and the windows lack."""
    lacking = {as_read(name): name for name in known if name not in own}
    for name in own:
        other = None if name in known else lacking.get(as_read(name))
        if other is not None:
            raise DataError(
                f"The channel {name!r} is spelled {other!r} in --like: rename the column to {other!r} if it is that, "
                f"in the same unit, or leave it out with --ignore {shlex.quote(quoted(name))}."
            )


def as_read(name: str) -> str:
    """Return a channel's name casefolded, without spaces, signs and unit; the name itself if nothing else would be
    left."""
    plain = unicodedata.normalize("NFKC", name).casefold()
    found = IN_BRACKETS.search(plain)
    unit = "".join(WORD.findall(found[1])) if found else ""
    if found and (len(unit) < 2 or unit in UNITS):
        plain = plain[: found.start()]
    words = WORD.findall(plain)
    if len(words) > 1 and words[-1] in UNITS:
        words = words[:-1]
    return "".join(words) or name


def _check_sampling(windows: Ingested, schema: FeatureSchema) -> None:
    if windows.timing is not schema.time:
        raise DataError(
            f"--like names a data set whose times are {schema.time}, and these are {windows.timing}: give --hz "
            "and times, or leave them out, as for that data set."
        )
    if windows.timing is Timing.SECONDS and abs(windows.sample_hz / schema.sample_hz - 1) > RATE_SAME:
        raise DataError(
            f"These samples come at {windows.sample_hz:g} Hz, those of --like at {schema.sample_hz:g} Hz: say --hz "
            f"{schema.sample_hz:g} if these are faster."
        )
    if windows.X.shape[2] != schema.window_samples:
        raise DataError(
            f"These windows have {windows.X.shape[2]} samples, those of --like {schema.window_samples}: if "
            f"they are cut here, say --window-s {schema.window_s:g}."
        )
    if windows.timing is not Timing.NONE and abs(windows.stride_s / schema.stride_s - 1) > RATE_SAME:
        raise DataError(
            f"These windows are {windows.stride_s:g} s apart, those of --like {schema.stride_s:g} s: if they are "
            f"cut here, say --stride-s {schema.stride_s:g}."
        )


def _labelled(windows: Ingested, schema: FeatureSchema) -> Ingested:
    """Return the windows with the classes of the schema.

    If all windows have one benign class that the schema does not have, their label becomes the schema's first benign
    class, if it has one. Raises DataError for other classes that the schema does not have.
    """
    names = tuple(sorted(schema.label_map, key=schema.label_map.__getitem__))
    present = windows.label.present.tolist()
    benign = benign_of(schema)
    if present == [UNLABELLED]:
        return replace(windows, label_names=names, benign=Benign(names=benign, why="as in --like"))
    label = windows.label
    if len(present) == 1 and present[0] in windows.benign.names and present[0] not in names and benign:
        label = label.renamed([benign[0]] * label.names.size)
    elif set(present) - set(names):
        raise DataError(
            f"The classes here are {listed(present)}, and those of --like {listed(names)}: "
            f"{_renaming(windows, present, names, benign)}."
        )
    return replace(windows, label=label, label_names=names, benign=windows.benign._replace(names=benign))


def _renaming(windows: Ingested, present: Sequence[str], names: Sequence[str], benign: Sequence[str]) -> str:
    """Return words that tell the user how to give the labels the class ``names`` of the other data set: by a flag, or
    by editing the labels."""
    numbers = windows.benign.why in (NUMBERS, BOOLEANS) or all(name.isdecimal() for name in present)
    largest = max((int(name) for name in present if name.isdecimal()), default=1)
    if numbers and largest < len(names):
        said = f"say --labels {shlex.quote(','.join(map(quoted, names)))}"
        if sum(name.casefold() in USUAL for name in names) != 1 and benign:
            said += f" --benign {shlex.quote(','.join(map(quoted, benign)))}"
        return f"{said} if their numbers count these from 0, or write the names into the labels"
    spelled = {name.casefold(): name for name in names}
    alike = [(name, spelled[name.casefold()]) for name in present if name not in names and name.casefold() in spelled]
    if alike:
        return "write " + ", ".join(f"{other!r} for {name!r}" for name, other in alike) + " into the column of labels"
    return "write its names into the column of labels"
