"""The promises about a machine and a copy of it, and about those that are no copies."""

from __future__ import annotations

from simulation.witness import Checker, Observation


class CopiesAreTold(Checker):
    """Only copies are called copies, and nobody takes work from whom it had succeeded before that one fell silent."""

    def prepare(self) -> None:
        # Host and installation → whose turn it was last, and when it was heard so; who had one before, and was
        # succeeded in the sight of this receiver.
        self._turn: dict[tuple[str, str], tuple[str, float]] = {}
        self._succeeded: dict[tuple[str, str], set[str]] = {}

    def restarted(self) -> None:
        self._succeeded.clear()  # with its end a receiver forgets who was

    def see(self, seen: Observation) -> None:
        request = seen.call.message
        if seen.call.name != "claim" or request.instance_id is None:
            return
        host = request.host_id
        service = self.witness.receiver.service
        known = service.host_registry.known.get(host)
        told = known is not None and service.copied(known) is not None
        self.demand(not told or host in self.world.copied, f"{host} was called a copy and is none")
        if told:
            self.world.tally["copies told"] += 1
        if seen.error is not None or seen.result.ask_again or seen.result.repeated:
            return
        self._takes((host, request.instance_id), request.session_id, seen.at)

    def _takes(self, whose: tuple[str, str], session: str, at: float) -> None:
        for other in [each for each in self._turn if each[0] == whose[0] and each != whose]:
            # Another installation has the name: by its return the receiver has forgotten who was.
            del self._turn[other]
            self._succeeded.pop(other, None)
        last, heard_at = self._turn.get(whose, (session, at))
        self._turn[whose] = session, at
        if session == last:
            return
        succeeded = self._succeeded.setdefault(whose, set())
        if session in succeeded or session[:10] < last[:10]:
            self.demand(
                at - heard_at >= self.policy.stale_after_s - 1.0,
                f"an older session of {whose[0]} took over {at - heard_at:.0f} s after its successor was heard",
            )
        succeeded.add(last)

    def at_end(self) -> None:
        asking = "SELECT DISTINCT host FROM attempts WHERE pardoned = 1 AND end_reason = 'host_lost'"
        pardoned = {row[0] for row in self.witness.rows(asking)}
        self.demand(pardoned <= self.world.copied, "a loss was pardoned where there was no copy")
