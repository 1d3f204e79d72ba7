"""Messages of the plan endpoints: a plan that was read and checked elsewhere, and what a reload would change."""

from typing import Annotated

from msgspec import Meta

from training.fleet.wire.message import JsonObject, Wire
from training.fleet.wire.messages import ReloadReply
from training.fleet.wire.views import RemovedView

PLAN_BODY_MAX = 4 * 1024 * 1024  # bytes of a plan on the wire: some 9,000 jobs
PLAN_JOBS_MAX = 20_000
SHOWN_MAX = 1_000  # jobs in one answer
TAKEN_MAX = 10  # names of jobs for one host
HOSTS_MAX = 200
ADVICE_MAX = 100  # on memory
ROTATIONS_MAX = 100

_Text = Annotated[str, Meta(max_length=4096)]
_Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


def _table(of: str) -> Meta:
    """Return the documentation of a table: a reference to the manifest's declaration of its keys, by which the receiver
    checks the table."""
    return Meta(extra_json_schema={"$ref": f"#/components/schemas/{of}"})


_Job = Annotated[JsonObject, _table("JobSpec")]
_Host = Annotated[JsonObject, _table("HostSpec")]
_Trainer = Annotated[JsonObject, _table("TrainerSpec")]


class PlanRequest(Wire, forbid_unknown_fields=True):
    """``POST /v1/manifest/plan``: a plan as tables with the manifest's keys; the receiver checks these tables like its
    manifest's, but asks no custom trainer for its flags.

    Matrices are expanded, and jobs have no id, because the receiver computes it. ``jobs`` null: the file has no list of
    jobs. The receiver compares the commands in ``trainers`` with its plan's, and never runs them.
    """

    jobs: Annotated[list[_Job], Meta(max_length=PLAN_JOBS_MAX)] | None = None
    hosts: dict[str, _Host] = {}
    trainers: dict[str, _Trainer] = {}
    retention: JsonObject = {}
    scheduling: _Text | None = None
    # each channel by a digest: whom it reaches, and where its secrets lie, is not sent. Null: the caller does not tell
    notify: Annotated[dict[str, _Digest], Meta(max_length=1_000)] | None = None
    file: _Text = "plan.toml"  # its name in mistakes

    @property
    def tables(self) -> JsonObject:
        """Return the plan as the manifest's tables, without ``notify``; ``jobs`` and ``scheduling`` are left out where
        they are null."""
        given = {"jobs": self.jobs, "scheduling": self.scheduling}
        found = {key: value for key, value in given.items() if value is not None}
        return found | {"hosts": self.hosts, "trainers": self.trainers, "retention": self.retention}


class PlannedJob(Wire):
    """A job as it would be under the plan: ``state`` is its status, or ``new``."""

    name: str
    job_id: str
    state: str
    outcome: str  # inserted, updated or unchanged, as a reload counts it
    host: str | None = None  # that trains it, or trained it
    at: float | None = None  # since when it runs, or when it ended
    artifact_id: str | None = None
    removed: RemovedView | None = None  # of its model, if that is not kept any more
    keys: list[str] = []  # which of its keys are edited
    was: str | None = None  # its name before
    ended_by: str | None = None
    held_by: str | None = None


class HostOutlook(Wire):
    """The number of waiting jobs that a host could take, and the obstacles that keep the other jobs from this host."""

    host: str
    takes: int
    jobs: list[str]  # the first of them
    obstacles: dict[str, int] = {}  # why not → how many jobs
    note: str | None = None  # as that it was not heard for long


class MemoryAdvice(Wire):
    """Jobs of the plan that ask for much more or much less memory than earlier trainers of such jobs used."""

    jobs: list[str]  # the first of them
    count: int
    asked_gib: float  # their min_ram_gib
    held_gib: float  # the most that such a trainer held
    propose_gib: float  # what to ask instead: a fifth more than that


class PlannedRotation(Wire):
    """Jobs of the plan that differ only in the tested host and the seed."""

    name: str
    jobs: int
    hosts: list[str]  # of which each trains unless it is tested
    tested: list[str]  # each alone
    seeds: list[int]


class PlanReply(Wire):
    """The answer of the plan endpoints: what a reload would change, and which hosts could take the jobs. The call
    itself changes nothing."""

    changed: bool  # a reload would change something
    reload: ReloadReply  # what it would answer
    states: dict[str, int]  # of all jobs of the plan, by state
    jobs: list[PlannedJob]  # the first thousand
    waiting: int  # jobs that would wait for a host
    hosts: list[HostOutlook]
    nowhere: dict[str, str] = {}  # job → why no known host could take it
    memory: list[MemoryAdvice] = []  # of at most 100 kinds of jobs
    rotations: list[PlannedRotation] = []  # the first hundred
    file: str | None = None  # the manifest on the receiver's machine
    mark: str | None = None  # of that file as it lies there now: who finds the same mark there is on that machine
    machine: str | None = None  # the receiver's machine
    now: float | None = None
