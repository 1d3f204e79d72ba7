"""A host's self-test, reported with every claim: its folders can be written, its disk has room, its GPU's driver
answers, and trainers start.

The test runs often, so it is cheap: a trainer is started only the first time, after the interpreter or the trainers'
code changed, or a minute after a failure. Of a GPU only the driver is tested, because a GPU is reported only if torch
could use it under the present driver.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from training.checkout import is_ours, stamp, stamps
from training.clock import Clock
from training.files import cause_of, free_bytes, scarce, to_free
from training.fleet.capability.describe import PROGRAMS, DescribeError, Describer, ProcessDescriber, describe_command
from training.fleet.process.usage import driver_complaint
from training.fleet.worker.attempt import DISK_WANTED_BYTES, WorkerFolders

AGAIN_S = 60.0  # after trainers did not start


@dataclass
class SelfTest:
    """The self-test of a host. A call returns the first fault found in a sentence, or ``None``."""

    places: WorkerFolders
    state_dir: Path
    clock: Clock
    describe: Describer = field(default_factory=ProcessDescriber)
    driver: Callable[[], str | None] = driver_complaint
    _known: tuple[object, str | None, float] | None = None  # of which state, what, when

    def __call__(self) -> str | None:
        return self._folders() or self._room() or self._driver() or self._trainers()

    def _folders(self) -> str | None:
        for folder in (self.state_dir, self.places.artifacts, self.places.reports):
            try:
                folder.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=folder) as file:
                    file.write(b"?")
            except OSError as error:
                return f"its folder {folder} cannot be written ({cause_of(error, folder)})"
        return None

    def _room(self) -> str | None:
        free = free_bytes(self.places.artifacts)
        if free >= DISK_WANTED_BYTES:
            return None
        return f"{scarce(self.places.artifacts, free)} at {self.places.artifacts}; {to_free(self.places.artifacts)}"

    def _driver(self) -> str | None:
        complaint = self.driver()
        remedy = "restart this machine, or start its worker with CUDA_VISIBLE_DEVICES=-1 to train without a GPU"
        return None if complaint is None else f"{complaint}; {remedy}"

    def _trainers(self) -> str | None:
        """Start one built-in trainer, unless an earlier result still counts, and return why it fails. Return None if it
        starts, or if the trainers belong to another checkout."""
        if not is_ours(self.places.repo_root):
            return None
        python, now = self.places.inputs.python, self.clock.monotonic()
        try:
            state = [stamp(python), *stamps("trainer")]
        except OSError as error:
            return f"its trainers do not start: {error}"
        if self._known is not None:
            then, complaint, at = self._known
            if then == state and (complaint is None or now - at < AGAIN_S):
                return complaint
        complaint = None
        try:
            self.describe([str(python), *describe_command(PROGRAMS[0])[1:]])
        except DescribeError as error:
            complaint = f"its trainers do not start: {error}"
        self._known = (state, complaint, now)
        return complaint
