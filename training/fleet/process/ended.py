"""PURE: the end of a trainer's process, as seen by the worker; worker/state/exit_code.py interprets it."""

import signal

from training.contract import Exit
from training.frozen import frozen

SIGKILL = 9
RSS_SHARE = 0.8  # share of the free memory: a process killed while using that much was killed for it


@frozen
class Ended:
    """The end of one trainer: its exit ``code``, or the ``signal`` that killed it; neither when its launcher died or
    did not answer, so that the exit status was lost. ``cpu_s`` (seconds) and ``max_rss_kib`` are 0 where the system
    does not report them.

    ``left``: how many processes of its tree could not be ended. ``oom_kills``: how many processes the kernel killed for
    lack of memory while the trainer ran, in our control groups or on the whole machine. ``free_kib``: the memory that
    was free at the trainer's start, or what our control groups allow if that is less. ``oom_kills`` and ``free_kib``
    are 0 unless SIGKILL or exit status 137 ended the trainer.
    """

    code: int | None = None
    signal: int | None = None
    cpu_s: float = 0.0
    max_rss_kib: int = 0
    oom_kills: int = 0
    free_kib: int = 0
    left: int = 0

    @property
    def lost(self) -> bool:
        return self.code is None and self.signal is None

    @property
    def killed_for_memory(self) -> bool:
        """Return True if SIGKILL or exit status 137 ended the trainer and memory was short. Memory was short if the
        kernel killed processes for lack of it, or the trainer used at least ``RSS_SHARE`` of the free memory."""
        killed = self.signal == SIGKILL or self.code == Exit.OUT_OF_MEMORY
        full = self.free_kib > 0 and self.max_rss_kib >= RSS_SHARE * self.free_kib
        return killed and (self.oom_kills > 0 or full)

    def describe(self) -> str:
        """Describe the end for people: ``exit status 2``, ``killed by SIGKILL``, ``lost together with its
        launcher``."""
        if self.code is not None:
            return f"exit status {self.code}"
        if self.lost:
            return "lost together with its launcher"
        try:
            name = signal.Signals(self.signal or 0).name
        except ValueError:
            name = f"signal {self.signal}"
        return f"killed by {name}"
