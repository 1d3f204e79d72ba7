"""Stand-ins for the outside world, shared by the tests: a clock that only moves when told, a shelf without a disk."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from training.fleet.process import usage

EPOCH = 1_700_000_000.0  # where fake time begins; any instant far from zero would do


class FakeClock:
    """A :class:`training.clock.Clock` under the test's command.

    Wall and boot time move together with :meth:`advance`, the wall alone with :meth:`step`, and neither of them is
    "awake" time during :meth:`suspend`.
    """

    def __init__(self, now=EPOCH, boot=1_000.0):
        self._now, self._boot, self._awake = now, boot, boot

    def now(self):
        return self._now

    def monotonic(self):
        return self._boot

    def awake(self):
        return self._awake

    def advance(self, seconds):
        """Time goes by."""
        assert seconds >= 0, "time does not run backwards; use step() for a wall clock that does"
        self.suspend(seconds)
        self._awake += seconds

    def step(self, seconds):
        """Somebody set the wall clock."""
        self._now += seconds

    def suspend(self, seconds):
        """The machine slept."""
        self._now += seconds
        self._boot += seconds

    def restart(self, *, boot=10.0):
        """The machine was started anew: the boot clock begins again, the wall clock goes on."""
        self._boot = self._awake = boot


@dataclass
class FakeShelf:
    """A store as the service uses it, answered from memory."""

    room: bool = True
    root: Path = Path("/")
    bundles: set[tuple[str, str, str]] = field(default_factory=set)

    def put(self, artifact_id, *, model, mode):
        self.bundles.add((artifact_id, model, mode))

    def has_room(self, incoming_bytes=0):
        return self.room

    def find(self, artifact_id, *, model, mode):
        key = (artifact_id, model, mode)
        return key if key in self.bundles else None


class Counting:
    """A source of claim ids that a test can read: ``claim-1``, ``claim-2`` …"""

    def __init__(self, prefix="claim"):
        self.prefix, self.drawn = prefix, 0

    def __call__(self):
        self.drawn += 1
        return f"{self.prefix}-{self.drawn}"


class FakePynvml(ModuleType):
    """nvidia-ml-py with the answers of a test, ``nvmlDeviceGetCount`` without its prefix for example."""

    class NVMLError(Exception):
        pass

    def __init__(self, monkeypatch, **answers):
        super().__init__("pynvml")
        self.open = 0
        vars(self).update({f"nvml{name}": answer for name, answer in answers.items()})
        monkeypatch.setitem(sys.modules, "pynvml", self)
        monkeypatch.setattr(usage, "_has_nvml", lambda: True)

    def __getattr__(self, name):
        def fails(*_):
            raise self.NVMLError(name)

        return fails

    def nvmlInit(self):
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1
