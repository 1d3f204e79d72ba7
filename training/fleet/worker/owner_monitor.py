"""Observe the machine for its owner's conditions every few seconds, and keep the machine awake while it trains.

The observations are made on a thread of their own, because the system may take seconds to answer. The thread decides
nothing: it posts observations as events, and the worker's loop decides whether to keep the machine awake.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from training.fleet.capability.owner import Observer
from training.fleet.process.inhibitor import Inhibitor
from training.fleet.wire.attempts import HostTerms
from training.fleet.worker.state import events as t
from training.fleet.worker.state.owner import LOOK_S

log = logging.getLogger("training.fleet.worker")


@dataclass
class Lookout:
    """Observes the machine on a thread of its own.

    ``works`` returns whether there is a current job: without a job and without conditions nothing needs observing.
    """

    observer: Observer
    inhibitor: Inhibitor
    terms: Callable[[], HostTerms]
    works: Callable[[], bool]
    post: Callable[[t.Event], None]
    _wanted: bool = False  # to stay awake
    _held: bool = False
    _told: str | None = None  # why that was not to be had

    def __post_init__(self) -> None:
        self._stopping, self._woken = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="lookout", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def keep_awake(self, on: bool) -> None:
        """Order the thread to keep the machine from falling asleep, or to allow it; return at once.

        The thread gets the lock at once, unless the system refused the lock before. The thread releases the lock only
        at the next observation, so that a job that follows at once finds the lock still held. Getting the lock starts a
        process, which may take longer than a job. If the system refuses the lock, the next observation tries again.
        """
        self._wanted = on
        if on and not self._held and self._told is None:
            self._woken.set()

    def stop(self, patience_s: float = 10.0) -> None:
        """Allow the machine to sleep, and stop observing."""
        self._stopping.set()
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join(patience_s)

    def look(self) -> None:
        """Observe the machine once, if a job or a condition needs that, and post what was seen; get or release the lock
        that keeps the machine awake."""
        terms = self.terms()
        if terms.observes or self.works():
            sight = self.observer.look(
                person=terms.pause_when_used,
                load=terms.pause_above_cpu is not None,
                gpu=terms.pause_above_gpu is not None,
                heat=terms.pause_above_celsius is not None,
            )
            self.post(t.Seen(sight))
        self._stay()

    def _stay(self) -> None:
        if not self._wanted:
            self._held = False
            self.inhibitor.release()
            return
        why = self.inhibitor.hold()
        self._held = why is None
        if why is not None and why != self._told:  # once: the program that is to hold the lock ends a moment later
            log.info("this machine may fall asleep while it trains: %s", why)
            self._told = why

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    self.look()
                except Exception:  # a system that answers nonsense keeps no job from its end
                    log.debug("looking at the machine failed", exc_info=True)
                if self._woken.wait(LOOK_S):
                    self._woken.clear()
        finally:
            self.inhibitor.release()
