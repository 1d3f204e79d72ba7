"""The identities of workers: one live installation per host id, only its newest session, and no copy of a machine.

The rules are those of :mod:`training.fleet.scheduling.copies`. No HTTP and no SQL.
"""

from collections.abc import Callable
from dataclasses import replace

from training.fleet.scheduling import copies
from training.fleet.scheduling.job import Attempt
from training.fleet.scheduling.policy import SilenceWatch
from training.fleet.service.fleet import Calls, FleetState
from training.fleet.service.guards import other_protocol, refuse_twin
from training.fleet.service.hosts import KnownHost
from training.fleet.wire.attempts import ClaimReply, ClaimRequest, HeartbeatRequest
from training.fleet.wire.constants import ProblemType, Refusal
from training.printable import duration


class HostSessions(Calls):
    """The sessions of every host, as the host's requests show them."""

    def __init__(self, fleet: FleetState, new_round: Callable[[], str]) -> None:
        """``new_round`` draws the random token of a round, which replies to claims and heartbeats carry."""
        super().__init__(fleet)
        self._new_round = new_round
        self._lines: dict[str, tuple[str, copies.SessionLine]] = {}  # host → installation, its sessions

    def guard_identity(self, request: ClaimRequest) -> ClaimReply | None:
        """Admit a claim only from the one live installation of its host id, from that installation's newest session,
        and not from a copy.

        Return None if the claim may continue, else a reply to be sent at once; or raise Refusal.
        """
        known = self._hosts.called(request.host_id)
        if known is not None and known.name != request.host_id:
            twin = refuse_twin(request.host_id, known.name)
            self._note_conflict(known, f"a worker asks as {request.host_id}: {twin.detail}")
            raise twin
        if unlike := other_protocol(request):
            if known is not None:
                self._note_conflict(known, unlike.detail)
            raise unlike
        if known is None or request.instance_id is None or known.instance_id is None:
            return None
        watch = self._fleet.watch.look(self._clock.now(), self._clock.monotonic(), self._policy)
        if known.instance_id != request.instance_id:
            # As with its claims, the other one is lost only after a whole lease of observed silence.
            if watch.may_sweep and not self._fleet.alive(known):
                return None
            self._note_conflict(known, self._stranger(request.instance_id, known))
            raise Refusal(
                ProblemType.HOST_ID_CONFLICT,
                f"another installation has the host id {request.host_id} and was not seen silent for a lease; "
                "give this one its own --host-id, or stop the other and wait for a lease",
            )
        return None if request.session_id is None else self._guard_session(request, known, watch)

    def _stranger(self, instance_id: str, known: KnownHost) -> str:
        lease = duration(self._policy.stale_after_s)
        return (
            f"a worker whose state folder is another's or new (installation {instance_id[:8]}, known is "
            f"{str(known.instance_id)[:8]}) asks as {known.name} and gets no work: it is let in when the known one "
            f"was silent for {lease}, or give it a --host-id of its own"
        )

    def _note_conflict(self, known: KnownHost, sentence: str) -> None:
        at = self._clock.monotonic()
        self._hosts.put(replace(known, conflict=sentence, conflict_at=at))

    def refused(self, known: KnownHost) -> str | None:
        """Return a sentence for operators if, within the last lease, a claim of another installation, or under this
        name in other case, was refused. Else return None."""
        since_s = self._clock.monotonic() - known.conflict_at
        return known.conflict if since_s < self._policy.stale_after_s else None

    def _guard_session(self, request: ClaimRequest, known: KnownHost, watch: SilenceWatch) -> ClaimReply | None:
        assert request.session_id is not None
        line = self.line(request, known)
        copied = line.copied
        standing = line.ask(
            request.session_id,
            request.echo,
            self._clock.monotonic(),
            lease_s=self._policy.stale_after_s,
            may_be_silent=watch.may_sweep,
            new_round=self._new_round(),
        )
        if standing in (copies.Standing.OWN, copies.Standing.NEW):
            return None
        host = request.host_id
        if standing is copies.Standing.EARLIER:
            return ClaimReply(
                reason=f"another session of host {host} was seen; the living one asks again",
                ask_again=True,
                echo=line.round,
            )
        sentence = copies.sentence(host)
        if copied:
            raise Refusal(ProblemType.HOST_ID_CONFLICT, sentence)
        self._queue.quarantines.refund(line.lost())
        return ClaimReply(reason=sentence, ask_again=True, echo=line.round)

    def line(self, request: ClaimRequest, known: KnownHost) -> copies.SessionLine:
        assert request.session_id is not None
        assert request.instance_id is not None
        instance, line = self._lines.get(request.host_id, ("", None))
        if line is None or instance != request.instance_id:
            current = known.session_id or request.session_id
            silent_s = max(0.0, self._clock.now() - known.last_seen)
            heard = {current: self._clock.monotonic() - silent_s}
            line = copies.SessionLine(current, self._new_round(), heard)
            self._lines[request.host_id] = request.instance_id, line
        return line

    def round_of(self, host: str) -> str | None:
        """Return the token that this host's worker must send back with its next request; None if there is none."""
        _, line = self._lines.get(host, ("", None))
        return None if line is None else line.round

    def copied(self, known: KnownHost) -> str | None:
        """Return a sentence for operators if this machine and a copy of its disk use the same identity; else None."""
        instance, line = self._lines.get(known.name, ("", None))
        copied = line is not None and line.copied and instance == known.instance_id
        return copies.sentence(known.name) if copied else None

    def handed_on(self, attempt: Attempt, session: str | None) -> bool:
        """Return True if the host's current session has taken over the attempt from the session ``session``."""
        _, line = self._lines.get(attempt.host, ("", None))
        if line is None or session is None or session == attempt.session_id:
            return False
        return session in line.heard and attempt.session_id == line.current

    def heard(self, attempt: Attempt, request: HeartbeatRequest) -> None:
        """Count a heartbeat as a sign of life of its session. If the heartbeat shows a copy of the machine, stop
        counting against jobs the attempts that were ended although their sessions are alive."""
        _, line = self._lines.get(attempt.host, ("", None))
        if line is None:  # of another installation's sessions it knows none
            return
        session = request.session_id or attempt.session_id  # another session may deliver what one left
        copied = line.copied
        line.heartbeat(session, request.echo, self._clock.monotonic())
        if line.copied and not copied:
            self._queue.quarantines.refund(line.lost())

    def lose(self, host: str, attempt: Attempt) -> None:
        """Record that a session of the host ended and that its attempt was lost with it."""
        self._lines[host][1].lose(attempt.session_id, attempt.claim_id)

    def forget(self, host: str) -> None:
        """Forget the sessions of a host."""
        self._lines.pop(host, None)
