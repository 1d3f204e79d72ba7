"""The receiver's decisions as one object, with a method for each protocol call; the module for that call implements it.

No HTTP and no SQL. Every protocol call runs inside one transaction of the writer. A call either returns a reply or
raises :class:`training.fleet.wire.constants.Refusal`, which undoes all that the call wrote to the database.
"""

import secrets
from collections.abc import Callable, Iterable
from functools import partial

from training.fleet.queue.jobs import JobQueue
from training.fleet.queue.plan_write import PlanWrite
from training.fleet.queue.rows import jobs_by_host
from training.fleet.queue.schedule_cache import MadeSchedule, Situation
from training.fleet.scheduling.policy import Scheduling
from training.fleet.service import unconfirmed
from training.fleet.service.changes import notes, told
from training.fleet.service.claims import Claims
from training.fleet.service.endings import Endings, Uploads
from training.fleet.service.fleet import FleetState
from training.fleet.service.heartbeats import Heartbeats
from training.fleet.service.hosts import Plan
from training.fleet.service.operator_calls import OperatorCalls
from training.fleet.service.sessions import HostSessions
from training.fleet.store.artifacts import ArtifactStore
from training.fleet.wire.messages import ReloadReply
from training.strict_json import Json


class Service(FleetState):
    """The service: all protocol calls, and the plan in force. The protocol calls of its one instance run on the
    writer's thread (or the simulation's only thread)."""

    def __init__(
        self,
        queue: JobQueue,
        store: ArtifactStore,
        plan: Plan | None = None,
        *,
        new_round: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        """``new_round`` draws the random token of a round, by which copies of a machine are found
        (:mod:`training.fleet.scheduling.copies`)."""
        super().__init__(queue, store, plan)
        queue.plan.passes_over = 1
        self._planned = plan is not None  # until then there is nothing to compare a plan with
        queue.ahead.kinds.learned = self.learned(queue.db)
        sessions, endings, uploads = HostSessions(self, new_round), Endings(self), Uploads(self)
        claims, operator = Claims(self, sessions), OperatorCalls(self)
        self.refused, self.copied = sessions.refused, sessions.copied
        self.claim, self.claim_again, self.as_booked = claims.claim, claims.claim_again, claims.as_booked
        self.heartbeat, self.output = Heartbeats(self, sessions).heartbeat, endings.output
        self.completable, self.complete, self.fail = endings.completable, endings.complete, endings.fail
        self.upload_permission, self.upload_done = uploads.upload_permission, uploads.upload_done
        self.no_longer_uploading, self.hosts_of = uploads.no_longer_uploading, uploads.hosts_of
        self.deliverable, self.deliver = uploads.deliverable, uploads.deliver
        self.resolve, self.resolve_to_change = operator.resolve, operator.resolve_to_change
        self.cancel, self.requeue, self.readable = operator.cancel, operator.requeue, operator.readable
        self.hold, self.unhold, self.expel = operator.hold, operator.unhold, operator.expel
        self.forget_useless = partial(unconfirmed.forget_useless, self)
        self.release, self.order, self.resume_host = operator.release, operator.order, operator.resume_host

    def reload(self, jobs: Iterable[Json] | PlanWrite, plan: Plan) -> ReloadReply:
        """Put a checked manifest into force. Running jobs continue with what they were granted."""
        before = self.compared_with
        synced = jobs.finish() if isinstance(jobs, PlanWrite) else self.queue.sync(jobs)
        self.host_registry.plan, self._planned = plan, True
        self.queue.plan.keep_datasets(plan.dataset_names)
        return told(synced, before, self.host_registry, jobs_by_host(self.queue.db))

    @property
    def compared_with(self) -> Plan | None:
        """Return the plan with which a reload compares; None until there is a plan."""
        return self.plan if self._planned else None

    def resume(self, plan: Plan, jobs: int) -> ReloadReply:
        """Put the plan into force after a restart; ``jobs`` is the number of the plan's jobs, which the queue has
        already."""
        self.host_registry.plan, self._planned = plan, True
        return ReloadReply(inserted=0, updated=0, unchanged=jobs, removed=0, notes=notes(self.host_registry))

    # ── the schedule, where a thread makes it beside the calls ──────────────────────────────

    @property
    def must_schedule(self) -> bool:
        """Return True if a new schedule is due. Any thread may call this."""
        return self.plan.scheduling is Scheduling.SOONEST and self.queue.ahead.is_due(self.policy)

    def begin_schedule(self) -> Situation:
        """Return the facts from which :meth:`Scheduler.make` computes a new schedule."""
        return self.queue.ahead.begin(self.fleet(out=self.taken_out(self.queue.db)).alive, self.policy)

    def follow_schedule(self, situation: Situation, made: MadeSchedule) -> list[str]:
        """Put a schedule into force; return the hosts with an open claim that may get a job by it now."""
        self.queue.ahead.follow(situation, made)
        return self.queue.ahead.called(self.host_registry.waiting_hosts())
