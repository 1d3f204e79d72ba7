"""Read a host's own references from recordings of its ordinary work, to watch the host or to adapt a model to it."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from training.data import normalise
from training.data.assemble import BuildOptions, choose_channels, measure_references
from training.data.cut import PlannedWindows, cut_at_once
from training.data.dataset import WindowSet
from training.data.episode import find_episodes
from training.data.extract import Extract, extract
from training.data.schema import FeatureSchema
from training.trainer.contract import BadData


class OwnReferences(NamedTuple):
    """A host's own references: its resting levels (see `training.data.normalise`), and the windows (M) of its reference
    recordings.

    ``windows`` is None if there are no windows.
    """

    references: normalise.NormalReferences
    windows: WindowSet | None


def own_references(paths: Sequence[str], host: str, view: str, schema: FeatureSchema) -> OwnReferences:
    """Read the reference recordings of ``host`` at ``paths``, files or folders. Raises ``BadData``.

    A model that measures hosts from their references needs at least one path; another model must be given none.
    """
    chosen = choose_channels((), schema)
    wanted = schema.normaliser.get("type") == normalise.RULE["type"]
    if not paths:
        if wanted:
            raise BadData(
                f"the model measures each host from its own reference: record one while {host} does its ordinary work "
                "(cis490 record --baseline), and name it with --reference"
            )
        return OwnReferences(normalise.NormalReferences(channels=schema.channel_names, hosts={}, fleet=None), None)
    if not wanted:
        raise BadData(
            "the model was trained on recordings without references, and measures no host from its own: give no "
            "reference, or train it again on recordings with some (record --baseline makes them)"
        )
    good = [one for path in paths for one in _reference(path, host, view, schema.sample_hz)]
    references = measure_references(good, chosen, schema.sample_hz)
    if host not in references.hosts:
        seconds = normalise.SECONDS_MIN
        raise BadData(f"the references hold less than {seconds:g} s of {host}: record a longer one")
    options = BuildOptions(window_s=schema.window_s, stride_s=schema.stride_s, like=schema)
    planned = PlannedWindows.of(good, schema.sample_hz, options)
    return OwnReferences(
        references, None if planned is None else cut_at_once(planned, chosen, references, schema.window_samples)
    )


def recorded(place: Path, sample_hz: float) -> list[Extract]:
    """Read the reference recordings at ``place``, a file or a folder, also those that cannot be used; an empty list if
    there are none. Raises ``BadData``."""
    found = [extract(one, sample_hz) for one in (find_episodes(place) if place.is_dir() else [place])]
    return [one for one in found if one.facts.verdict.is_reference]


def _reference(path: str, host: str, view: str, sample_hz: float) -> list[Extract]:
    """Return the reference recordings of a host at one place. Raises ``BadData`` if one cannot be used, or there is
    none."""
    if not Path(path).exists():
        raise BadData(
            f"there is no {path}: name the folder or file that record --baseline --out wrote, with --reference"
        )
    usual = recorded(Path(path), sample_hz)
    mine = [one for one in usual if one.facts.meta.host == host]
    if not mine:
        others = sorted({one.facts.meta.host for one in usual})
        has = f"only those of {', '.join(others)}: name one with --host" if others else "none at all"
        raise BadData(f"{path} has no reference recording of {host} ({has}; record --baseline makes one)")
    for verdict, meta in ((one.facts.verdict, one.facts.meta) for one in mine):
        if not verdict.ok:
            raise BadData(f"the reference {verdict.episode_id} cannot be used: {verdict.reasons[0]}")
        if meta.view != view:
            raise BadData(
                f"the reference {verdict.episode_id} was recorded with --view {meta.view}, and other data of "
                f"this host here with --view {view}: use the same for both"
            )
    return mine
