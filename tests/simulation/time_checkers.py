"""The promises about time: leases, silence, and what may be concluded from it."""

from __future__ import annotations

from simulation.checkers import OnlyTheOwnerActs
from simulation.witness import Checker, Observation


class Silence(Checker):
    """The facts behind the promise about silence: when each claim was last seen, and since when it was watched."""

    def prepare(self) -> None:
        self.heard: dict[str, float] = {}  # claim → when
        self.watched_since = 0.0
        self._stepped_s = 0.0  # the receiver's wall clock, since its last look
        self._astray_s = 0.0  # how far it was off meanwhile, at most
        self.unseen_s = 0.0  # the same, when it was right again before anybody looked

    def restarted(self) -> None:
        self.watched_since = self.world.now
        self._stepped_s = 0.0

    def slept(self, seconds: float) -> None:
        if seconds > 3 * self.policy.sweep_period_s:  # a shorter nap passes for a slow look
            self.watched_since = self.world.now

    def stepped(self, seconds: float) -> None:
        self._stepped_s += seconds
        self._astray_s = max(self._astray_s, abs(self._stepped_s))

    def see(self, seen: Observation) -> None:
        for claim in seen.after.live.keys() - seen.before.live.keys():
            self.heard[claim] = seen.at
        if seen.call.name in ("heartbeat", "upload") and seen.error is None:
            self.heard[OnlyTheOwnerActs.claim(seen.call)] = seen.at
        if seen.call.name == "tick":
            if abs(self._stepped_s) > self.policy.clock_step_s:
                self.watched_since = seen.at
            else:  # what was stamped between two steps that cancel each other is wrong for good
                self.unseen_s = max(self.unseen_s, self._astray_s)
            self._stepped_s = self._astray_s = 0.0
            self.looked(seen)

    @property
    def off_s(self) -> float:
        """By how much something that was stamped may be wrong for good."""
        return max(self.unseen_s, self._astray_s)

    def looked(self, seen: Observation) -> None:
        """The receiver looked who was silent."""


class SweptAfterObservedSilence(Silence):
    """Silence ends an attempt only when the receiver watched for a whole lease and heard nothing."""

    def looked(self, seen: Observation) -> None:
        enough = self.policy.stale_after_s - 0.01
        for claim in sorted(seen.before.live.keys() - seen.after.live.keys()):
            silent_s, watched_s = seen.at - self.heard[claim], seen.at - self.watched_since
            self.demand(silent_s >= enough - self.unseen_s, f"swept after {silent_s:.1f} s of silence")
            self.demand(watched_s >= enough, f"swept after watching for {watched_s:.1f} s")


class LostHostsAreNoticed(Silence):
    """A claim that nobody speaks for ends soon after a lease of watching; nothing stays leased for ever."""

    def looked_in_vain(self) -> None:
        self.watched_since = self.world.now

    def looked(self, seen: Observation) -> None:
        # A look may itself begin a new lease of watching: allow two, and a few periods.
        most = 2 * self.policy.stale_after_s + 5 * self.policy.sweep_period_s + 10
        for claim in sorted(seen.after.live):
            silent_s = seen.at - max(self.heard[claim], self.watched_since)
            self.demand(silent_s <= most, f"claim {claim[:8]} lives after {silent_s:.0f} s of silence")


class LeasesAreTrue(Checker):
    """No worker is told of a longer lease than its claim has."""

    def prepare(self) -> None:
        # What is stamped between a step of the clock and its discovery counts from the discovery.
        self._slack_s = self.policy.sweep_period_s + 1.0
        self._heard: dict[str, float] = {}

    def restarted(self) -> None:
        """Nobody is swept for a lease after a start, so that much may be promised, and is when times were mended."""
        self._heard = dict.fromkeys(self._heard, self.world.now)

    def see(self, seen: Observation) -> None:
        for claim in seen.after.live.keys() - seen.before.live.keys():
            self._heard[claim] = seen.at
        if seen.error is not None or seen.call.name not in ("claim", "heartbeat", "upload"):
            return
        if seen.call.name == "claim":
            claim, lease_s = seen.result.claim_id, seen.result.lease_s
        else:
            claim = OnlyTheOwnerActs.claim(seen.call)
            self._heard[claim] = seen.at
            lease_s = getattr(seen.result, "lease_s", None)
        if claim is not None and lease_s is not None:
            left_s = max(0.0, self._heard[claim] + self.policy.stale_after_s - seen.at)
            self.demand(lease_s <= left_s + self._slack_s, f"told of {lease_s:.0f} s of lease, {left_s:.0f} s are left")
