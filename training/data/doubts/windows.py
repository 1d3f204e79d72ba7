"""The input of all detectors of doubtful data: windows with facts about them; and the detectors' common signature."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from training.data.rows import CodedRows
from training.data.values import Floats32, Ints


class WindowsInQuestion(NamedTuple):
    """N windows of T samples on C channels, with the facts about them that detectors need."""

    X: Floats32  # (N, C, T)
    channels: Sequence[str]
    rows: CodedRows
    benign: Sequence[str]  # classes that raise no alarm
    sample_hz: float
    timed: bool = True  # the rate and the distance of windows are known
    one_clock: bool = True  # times of different recordings can be compared
    exempt: Collection[str] = ()  # channels that may tell the label, or repeat a value
    by_flags: bool = True  # flags mend them, rather than other meta data of the recordings

    @property
    def remedy(self) -> str:
        """The end of a sentence that names the remedy for a doubtful channel: a flag, or a change of each meta.json."""
        if self.by_flags:
            return "--ignore NAME; --level NAME if it is measured"
        return "if so, take it out of each meta.json"


def evenly(rows: Ints, most: int) -> Ints:
    """Return at most ``most`` of the ``rows``, drawn at even distances."""
    return rows[np.linspace(0, rows.size - 1, min(rows.size, most)).astype(np.int64)]


Detector = Callable[[WindowsInQuestion], list[str]]  # sentences; raises DataError for what is surely wrong


def doubts(windows: WindowsInQuestion, detectors: Iterable[Detector]) -> list[str]:
    """Return the sentences of all detectors, in the order of the detectors. Raises DataError if a detector refuses the
    windows."""
    return [note for detector in detectors for note in detector(windows)]
