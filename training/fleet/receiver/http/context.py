"""The objects that all endpoints share: access to the writer, the reader and the disk, and the waiting claims."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from starlette.requests import Request

from training.clock import Clock
from training.crashpoint import crashpoint
from training.fleet.database.sqlite import SqliteDatabase
from training.fleet.database.writer import DatabaseError, Writer, id_of
from training.fleet.receiver import wake_on_lan
from training.fleet.receiver.http.origins import own_names
from training.fleet.receiver.metrics.counters import Tally
from training.fleet.receiver.security.authentication import Authenticator
from training.fleet.receiver.security.authority import Authority
from training.fleet.receiver.security.registry import Registry
from training.fleet.scheduling.job import TRANSITIONS, JobStatus
from training.fleet.scheduling.policy import Scheduling
from training.fleet.service.audit import AuditLog
from training.fleet.service.catalogue import index_rows
from training.fleet.service.delivery import DeliverySteps
from training.fleet.service.incident_table import IncidentTable
from training.fleet.service.logs import Folding
from training.fleet.service.preview import Previews
from training.fleet.service.retention import Retention
from training.fleet.service.service import Service
from training.fleet.service.states import SavedStates
from training.fleet.service.views import Views
from training.fleet.service.wakes import Wakes
from training.fleet.store.artifacts import ArtifactStore
from training.fleet.store.datasets import DatasetStore
from training.fleet.store.states import StateStore
from training.fleet.wire.constants import ARTIFACT_BYTES_MAX, ProblemType, Refusal
from training.fleet.wire.messages import ReloadReply
from training.logs import HOURLY

if TYPE_CHECKING:
    from training.fleet.receiver.metrics.exposition import Exposition
    from training.fleet.service.forecasts import Forecasts

logger = logging.getLogger(__name__)
T = TypeVar("T")

# Threads of work off the event loop. Asking a trainer for its flags may take a minute, and only other reloads wait for
# that; nor does a reload wait for previews, a page for a forecast, or anything for the hashing of gigabytes.
_THREADS = {"reader": 1, "disk": 4, "plan": 1, "preview": 1, "hash": 4, "forecast": 1, "schedule": 1}
_REST = 2.0  # after a schedule was made, in units of the time that it took
FOLD_SOON_BYTES = 4 * 1024**2  # of new output
PREVIEWS_MAX = 4
PREVIEW_TRIES = 3  # each spoilt by a reload
_LARGE_BODIES = 4  # JSON of megabytes that is read at once
_TO_PENDING = tuple(row.name for row in TRANSITIONS.values() if row.target is JobStatus.PENDING)


class ReceiverSettings(NamedTuple):
    """The receiver's settings; durations in seconds, sizes in bytes."""

    operator_token: str | None = None
    secure: bool = False  # callers must prove who they are, by a certificate or an operator's token
    host: str = "127.0.0.1"
    names: tuple[str, ...] = ()  # names of the receiver in browsers, beside host and this machine's
    public_url: str = ""  # the receiver's URL for new machines
    # A proxy holds the connections, so none can be cut when a host is revoked.
    proxied: bool = False
    version: str = "unknown"  # of this program
    body_s: float = 10.0  # for a JSON body
    upload_window_s: float = 30.0  # an upload must bring upload_window_bytes in each such time
    upload_window_bytes: int = 256 * 1024
    artifact_bytes_max: int = ARTIFACT_BYTES_MAX
    part_age_s: float = 7 * 86400.0  # unfinished uploads older than this are swept


class WaitingRoom:
    """The claims that wait for a job. A wake, for all hosts or for some, makes their waiting claims ask the queue
    again."""

    def __init__(self) -> None:
        self.closed = False
        self._news = 0
        self._of: Counter[str] = Counter()  # news for single hosts
        self._bells: dict[str, asyncio.Event] = {}

    def news(self, host: str) -> int:
        """Return a number that rises at every wake for this host. Read the number before asking the queue, so that no
        wake is missed meanwhile."""
        return self._news + self._of[host]

    def wake(self, hosts: Iterable[str] | None = None) -> None:
        if hosts is None:
            self._news += 1
        else:
            self._of.update(hosts)
        for host in [*self._bells] if hosts is None else hosts:
            if host in self._bells:
                self._bells.pop(host).set()

    def close(self) -> None:
        """End all waits; later waits end at once."""
        self.closed = True
        self.wake()

    async def wait(self, host: str, news: int, timeout_s: float, gone: asyncio.Future[object]) -> None:
        """Wait until a wake for the host, until ``timeout_s`` is over, or until ``gone`` is done. Return at once if
        ``news`` is out of date, and after :meth:`close`."""
        if self.closed or self.news(host) != news:
            return
        rings = self._bells.setdefault(host, asyncio.Event()).wait()
        bell: asyncio.Future[object] = asyncio.ensure_future(rings)
        try:
            await asyncio.wait((bell, gone), timeout=timeout_s, return_when="FIRST_COMPLETED")
        finally:
            bell.cancel()


@dataclass
class ReceiverContext:
    """The shared objects of one application. ``reader`` is a second, read-only database connection; ``read_manifest``
    reads the manifest and makes it the plan in force."""

    service: Service
    writer: Writer
    store: ArtifactStore
    datasets: DatasetStore
    states: StateStore
    reader: SqliteDatabase
    clock: Clock
    settings: ReceiverSettings
    authority: Authority | None = None
    read_manifest: Callable[[str], ReloadReply] | None = None  # the caller → the changes
    previews: Previews | None = None
    room: WaitingRoom = field(default_factory=WaitingRoom)
    # The server's: close the connections whose certificate has been revoked.
    hang_up: Callable[[Callable[[str], bool]], None] = field(default=lambda _revoked: None)
    send_wake: Callable[[str], None] = wake_on_lan.send  # to a hardware address

    def __post_init__(self) -> None:
        self.database_id = id_of(self.reader)
        self.own_names = own_names((self.settings.host, *self.settings.names))
        # On the writer's thread: the database is in its hands from now on.
        self.registry = self.writer.submit(lambda: Registry(self.service.queue.db, self.clock)).result()
        own_token, secure = self.settings.operator_token, self.settings.secure
        self.authenticator = Authenticator(self.registry, self.clock, own_token, secure=secure)
        self.service.put_out = self.registry.put_out
        self.service.data_bytes = self.datasets.size_of
        self.saved_states = SavedStates(self.service, self.states, self.clock)
        self.service.state_of = self.saved_states.of
        self.views = Views(self.reader, self.service, self.store.logs, self.store)
        self.folding = Folding(self.service, self.store.logs, self.reader)
        self.much_output = asyncio.Event()  # it is time to fold
        self._appended = 0  # bytes of output when that was said last
        self.delivery = DeliverySteps(
            self.service, self.store, self.reader, self.clock, bytes_max=self.settings.artifact_bytes_max
        )
        self.large_bodies = asyncio.Semaphore(_LARGE_BODIES)
        self.retention = Retention(self.service, self.store, self.datasets, self.reader)
        self.wakes = Wakes(self.service)
        self.letting_go = asyncio.Lock()  # one at a time: the hour's and an operator's
        self._reloading, self._reloads = asyncio.Lock(), 0
        self.audit = AuditLog(self.service.queue.db, self.clock)
        self.incidents = IncidentTable(self.service.queue.db, self.clock, self.audit)
        self.tally = Tally()
        self.writer.timed = lambda: self.tally.transactions.timing(self.clock)
        self.last_event = self.reader.number("newest_event")  # at the start
        self.exposition: Exposition | None = None  # made at the first scrape
        self._threads = {name: ThreadPoolExecutor(n, thread_name_prefix=name) for name, n in _THREADS.items()}
        self._asked = Counter[str]()  # plans and forecasts that are being made, or wait for that
        self._fired = self._made_pending()
        self._scheduling: asyncio.Future[None] | None = None  # holds on to the task
        self.service.queue.ahead.make_beside(self.reader, self.service.learned(self.reader))

    async def call(self, decide: Callable[[], T]) -> T:
        """Run ``decide`` on the writer's thread and return its result; what it wrote is durable then."""
        result = await self._written(decide)
        self._notice()
        crashpoint("receiver.answering")
        return result

    async def act(self, request: Request, decide: Callable[[], T]) -> T:
        """Run ``decide`` by :meth:`call`. Raises Refusal if the caller was revoked meanwhile, which the same
        transaction checks."""

        def decide_for_whom_may() -> T:
            self.authenticator.recheck_revocation(request, on_record=True)
            return decide()

        return await self.call(decide_for_whom_may)

    async def reload(self, who: str) -> ReloadReply:
        """Read the manifest again, off the event loop; return what changed. A bad manifest raises Refusal and changes
        nothing."""
        read = self.read_manifest
        if read is None:
            raise Refusal(ProblemType.BAD_MANIFEST, "this receiver was started without a manifest")
        async with self._reloading:
            self._reloads += 1
            counts = await self._on("plan", lambda: read(who))
        self._notice()
        return counts

    async def preview(self, request: Request, look: Callable[[Previews], T]) -> T:
        """Run ``look`` on the thread of previews, or an operator's on that of reloads; run it again if a reload began
        meanwhile. Raises Refusal if too many previews wait, reloads do not cease, or the receiver has no manifest."""
        previews = self.previews
        if previews is None:
            raise Refusal(ProblemType.BAD_MANIFEST, "this receiver was started without a manifest")
        threads = "plan" if self.authenticator.is_operator(request) else "preview"
        with self._turn(threads, "other plans are being judged"):
            for _ in range(PREVIEW_TRIES):
                async with self._reloading:
                    reloads = self._reloads
                found = await self._on(threads, lambda: look(previews))
                if self._reloads == reloads:
                    return found
        raise Refusal(ProblemType.SLOW_DOWN, "the plan is reloaded again and again; ask again in a moment")

    @cached_property
    def forecasts(self) -> Forecasts:
        """The object that makes forecasts; it is made, and its module loaded, for the first forecast."""
        from training.fleet.service.forecasts import Forecasts

        return Forecasts(self.service, self.reader, self.previews)

    async def foretell(self, look: Callable[[Forecasts], T]) -> T:
        """Run ``look`` on the thread of forecasts, one at a time. Raises Refusal if too many wait."""
        with self._turn("forecast", "other forecasts are being made"):
            return await self._on("forecast", lambda: look(self.forecasts))

    @contextmanager
    def _turn(self, threads: str, busy: str) -> Iterator[None]:
        """During the ``with`` block, count one request more that uses these threads or waits for them. Raises Refusal
        if ``PREVIEWS_MAX`` requests already use them or wait for them."""
        if self._asked[threads] >= PREVIEWS_MAX:
            raise Refusal(ProblemType.SLOW_DOWN, f"{busy}; ask again in a moment")
        self._asked[threads] += 1
        try:
            yield
        finally:
            self._asked[threads] -= 1

    async def look(self, view: Callable[[], T]) -> T:
        """Run a read-only query on the reader's thread, while the writer works."""
        return await self._on("reader", view)

    async def disk(self, work: Callable[[], T]) -> T:
        """Run file work off the event loop."""
        return await self._on("disk", work)

    async def hash(self, work: Callable[[], T]) -> T:
        """Run ``work``, which reads whole bundles, on threads that do nothing else."""
        return await self._on("hash", work)

    async def _on(self, threads: str, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads[threads], work)

    def _notice(self) -> None:
        """After a write, wake waiting claims for new pending jobs unless scheduling is SOONEST, start a due schedule,
        and set ``much_output`` after much output."""
        fired = self._made_pending()
        if fired != self._fired:
            self._fired = fired
            if self.service.plan.scheduling is not Scheduling.SOONEST:
                self.room.wake()
        if self._scheduling is None and self.service.must_schedule:
            self._scheduling = asyncio.ensure_future(self._schedule())
        appended = self.service.queue.attempts.appended_bytes
        if appended - self._appended >= FOLD_SOON_BYTES:
            self._appended = appended
            self.much_output.set()

    async def _schedule(self) -> None:
        """Compute a schedule on its own thread, and wake the waiting claims of the hosts that get a job by the
        schedule."""
        service = self.service
        try:
            situation = await self._written(service.begin_schedule)
            made = await self._on("schedule", lambda: service.queue.ahead.make(situation))
            self.room.wake(await self._written(lambda: service.follow_schedule(situation, made)))
            await asyncio.sleep(_REST * made.cost_s)
        except DatabaseError as error:  # the next call begins another
            logger.info("the schedule was not made: %s", error, extra=HOURLY)
        finally:
            self._scheduling = None
        if service.must_schedule:
            self._notice()

    async def _written(self, decide: Callable[[], T]) -> T:
        """Run ``decide`` on the writer's thread."""
        return await asyncio.wrap_future(self.writer.submit(decide))

    def _made_pending(self) -> int:
        fired = self.service.queue.events.fired
        return sum(map(fired.__getitem__, _TO_PENDING))

    # -- the index ----------------------------------------------------------------------------------------------

    async def repair_index(self) -> None:
        """Repair the store's index from the database."""
        self.delivery.index_stale = False  # before: what goes stale meanwhile stays so
        try:
            repair = await self.look(lambda: self.store.index.repair(index_rows(self.reader)))
        except BaseException:
            self.delivery.index_stale = True
            raise
        if repair.rebuilt or repair.cut_bytes:
            logger.warning("the index was repaired: %d rows", repair.rows)

    # -- time ---------------------------------------------------------------------------------------------------

    async def tick(self) -> None:
        """Do the work that is due every few seconds. End silent attempts, delete uploads of attempts that are over,
        wake sleeping hosts, repair a stale index."""
        try:
            swept = await self.call(self.service.tick)
        except DatabaseError:
            await self.call(self.service.forget_look)
            raise
        if swept:
            logger.warning("%d attempts had no heartbeat for a lease and were ended", swept)
        await self.forget_uploads()
        await self._wake_sleepers()
        if self.delivery.index_stale:
            await self.repair_index()

    async def _wake_sleepers(self) -> None:
        """Send Wake-on-LAN packets to sleeping hosts that would finish a job sooner than any host that is awake."""
        for host, mac in (await self.call(self.wakes.due) if self.wakes.any_can_be else {}).items():
            try:
                await self.disk(partial(self.send_wake, mac))
            except OSError as error:
                logger.warning("%s cannot be woken: %s", host, error.strerror or error, extra=HOURLY)
            else:
                logger.info("%s is woken: a job waits that it would have done sooner", host)

    async def forget_uploads(self) -> None:
        """Delete unfinished uploads, of bundles and of saved states, whose attempts are over and may deliver nothing
        more."""
        claims, drafts = await self.disk(self.store.incoming.claims), self.states.claims()
        if not claims and not drafts:
            return
        put_out = self.registry.put_out()  # no attempt delivers late
        over, ended = await self.call(
            lambda: (self.service.no_longer_uploading(claims, put_out), self.saved_states.ended(drafts))
        )
        await self.disk(lambda: self.states.forget_drafts(ended))
        freed = await self.disk(lambda: self.store.incoming.forget(over)) if over else 0
        if freed:
            logger.info("%d bytes of uploads whose attempts are over were removed", freed)

    async def sweep_parts(self) -> None:
        before = self.clock.now() - self.settings.part_age_s
        removed = await self.disk(lambda: self.store.incoming.sweep(before))
        if removed:
            logger.info("%d unfinished uploads were removed", removed)
        await self.call(lambda: self.service.forget_useless(before))
        await self.disk(partial(self.datasets.sweep, before))
        await self.disk(partial(self.states.sweep, before))

    def close(self) -> None:
        """End all waits and the threads; the caller closes the writer and the reader's connection."""
        self.room.close()
        for name, threads in self._threads.items():
            threads.shutdown(wait=True, cancel_futures=name in ("plan", "preview", "forecast", "schedule"))
