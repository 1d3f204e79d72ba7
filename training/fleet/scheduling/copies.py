"""PURE: detect that a machine and a copy of its disk ask with the same identity.

A worker's identity is stored on its disk, so a copy of the disk has the same identity; a session is one run of one
worker. The sessions that use a host id, and their order, do not distinguish a copy from a restart, because messages may
be late. A token that the receiver sends, and that sessions return, does distinguish them. Replies to a host's claims
and heartbeats carry the token of the present *round*; a request that returns the token was sent after the round began.
A new round begins when a new session sends its first claim. Two sessions that both return the present token are
alive at once (docs/decisions/0011).
"""

import re
from dataclasses import dataclass, field
from enum import StrEnum

SESSIONS_KEPT = 32  # of one host
_ORDERED_SESSION = re.compile(r"\d{10}-")  # such ids sort by the order of the worker's starts


def older(session: str | None, known: str | None) -> bool:
    """Return True if ``session`` began before ``known``, as far as their ids show."""
    if not session or not known or session == known:
        return False
    ordered = _ORDERED_SESSION.match(session) and _ORDERED_SESSION.match(known)
    return bool(ordered) and session[:10] < known[:10]


def sentence(host: str) -> str:
    """Return the sentence which tells an operator that two machines use this host's identity, and the remedy."""
    return (
        f"two machines ask as {host}, one with a copy of the other's disk, and neither gets new work: on the copy "
        f"stop the worker, run it once with --new-identity, and start it with its own --host-id; {host} resumes when "
        f"the copy has been silent for a lease"
    )


class Standing(StrEnum):
    """The receiver's judgement of a session that claims a job."""

    OWN = "own"  # the current session of this host
    NEW = "new"  # the current session from now on; the one before has ended
    EARLIER = "earlier"  # a late message, or a copy: its next request shows which
    COPY = "copy"  # one of several live sessions


@dataclass
class SessionLine:
    """The sessions of one installation, as its requests show them. Times are those of the receiver's monotonic
    clock."""

    current: str
    round: str
    heard: dict[str, float] = field(default_factory=dict)  # session → last seen
    alive: set[str] = field(default_factory=set)  # sessions seen since the round began
    copied: bool = False
    taken: list[tuple[str, str]] = field(default_factory=list)  # session, claim: ended at a takeover

    def ask(
        self, session: str, echo: str | None, now: float, *, lease_s: float, may_be_silent: bool, new_round: str
    ) -> Standing:
        """Judge ``session``, which sends a claim now, and return its standing.

        ``may_be_silent`` says whether silence may count against other sessions now. ``new_round`` is the token for the
        next round.
        """
        seen = session in self.heard
        self._hear(session, now)
        silent = {each for each, at in self.heard.items() if may_be_silent and each != session and now - at >= lease_s}
        others = set(self.heard) - {session} - silent
        if echo == self.round:
            self.alive.add(session)
        if self.copied:
            if others:
                return Standing.COPY
            return self._begin(session, new_round)
        if session == self.current:
            return self._compare(Standing.OWN)
        began_before = older(session, self.current)
        succeeds = self.current in silent and session in self.alive  # a late message does not
        if succeeds or not (seen or began_before):
            return self._begin(session, new_round)
        if not seen:
            self._open(new_round)
        return self._compare(Standing.EARLIER)

    def heartbeat(self, session: str | None, echo: str | None, now: float) -> None:
        """Count a heartbeat of ``session``; ignore it if the session is None or has never claimed. Like a claim, a
        heartbeat with the present token (``echo``) proves that the session lives, but it does not make the session the
        current one."""
        if session is None or session not in self.heard:
            return
        self._hear(session, now)
        if echo == self.round:
            self.alive.add(session)
            self.copied = self.copied or self._both_live()

    def lose(self, session: str | None, claim_id: str) -> None:
        """Record that a claim was ended because ``session`` seemed to be over."""
        self.taken = [*self.taken, (session or "", claim_id)][-SESSIONS_KEPT:]

    def lost(self) -> list[str]:
        """Return the ids of the recorded claims (:meth:`lose`) whose sessions are alive after all."""
        return [claim_id for session, claim_id in self.taken if session in self.alive]

    def _compare(self, otherwise: Standing) -> Standing:
        self.copied = self._both_live()
        return Standing.COPY if self.copied else otherwise

    def _both_live(self) -> bool:
        return self.current in self.alive and len(self.alive) > 1

    def _begin(self, session: str, new_round: str) -> Standing:
        standing = Standing.OWN if session == self.current else Standing.NEW
        self.current, self.copied = session, False
        self._open(new_round)
        return standing

    def _open(self, new_round: str) -> None:
        self.round, self.alive = new_round, set()

    def _hear(self, session: str, now: float) -> None:
        self.heard.pop(session, None)
        self.heard[session] = now
        while len(self.heard) > SESSIONS_KEPT:
            oldest = next(each for each in self.heard if each != self.current)
            del self.heard[oldest]
