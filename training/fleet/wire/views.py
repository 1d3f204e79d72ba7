"""Messages of the endpoints that read: jobs, attempts, output, curves, models, hosts, retention and health."""

from training.fleet.wire.constants import LOOK_AGAIN_S
from training.fleet.wire.message import JsonObject, Wire


class AttemptView(Wire):
    attempt: int
    generation: int
    host: str
    granted_at: float
    ended_at: float | None
    end_reason: str | None
    error: str | None
    exit_code: int | None
    progress: JsonObject | None
    artifact_id: str | None
    record: JsonObject | None = None
    granted: JsonObject  # the job dict as it was granted
    # digests of data and code and the checkout's commit; null: not known
    trained: dict[str, str | None] | None = None
    booked: JsonObject | None = None  # the part of its host that it may use, as in the answer to its claim


class RemovedView(Wire):
    """Something that the plan's [retention] deleted."""

    what: str  # bundle, log or curve
    attempt: int
    at: float
    why: str


class EventView(Wire):
    seq: int
    at: float
    job_id: str
    transition: str
    from_status: str | None
    to_status: str
    attempt: int | None
    host: str | None
    detail: str | None


class Figure(Wire):
    """A figure of a report with its 95 % interval. A value or interval that is absent is null, and ``why`` has the
    reason."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    why: str | None = None


class ResultView(Wire):
    """The result of a job, as its trainer's report states it."""

    bytes: int = 0  # of the report
    why: str | None = None  # it is not readable
    auroc: Figure = Figure()
    caught: Figure = Figure()  # share of malicious-like windows
    promised: float | None = None  # share of false alarms
    false_alarms: Figure = Figure()  # realised
    alarms_a_day: Figure = Figure()  # of a host
    calls_a_day: Figure = Figure()  # false ones, of a host: incidents in benign time
    verdict: str = ""  # in lines: what it catches, false calls, new behaviours, a plain method
    more: str = ""  # the verdict's other sentences
    level: str = ""  # good, caution, poor; "": not said
    because: str = ""  # the reason for the level, in a clause
    windows: int = 0  # of the test
    episodes: int = 0
    hosts: list[str] = []  # of the test; the first twenty
    hosts_in_all: int = 0
    never_tested: list[str] = []
    test: str = ""  # equal where two models were judged on the same windows; "": not known


class TwinView(Wire):
    """The completed job of the same model in the other mode. If ``same_test`` is true, the difference in AUROC shows
    what the channels contribute that only the laboratory has."""

    job_id: str
    name: str
    mode: str
    in_manifest: bool
    auroc: Figure
    same_test: bool


class ModelView(Wire):
    """A completed job's model, among those judged on the same test."""

    job_id: str
    name: str
    model: str
    mode: str
    host: str | None  # where it was trained
    finished_at: float | None
    artifact_id: str | None
    in_manifest: bool
    # first; tied: its interval overlaps the first one's; behind: it does not; unknown: one of the two has none
    standing: str
    result: ResultView
    twin: TwinView | None = None
    removed: RemovedView | None = None  # the model is not here any more


class TestView(Wire):
    """A test: the windows on which models were judged."""

    test: str  # its key; "": of these models it is not known
    models: int
    name: str = ""  # its data set and split, as the newest of these models' job has them


class NamedJob(Wire):
    """A job's id and name."""

    job_id: str
    name: str
    in_manifest: bool = True


class FoldedView(Wire):
    """One figure averaged over a rotation's jobs; ``mean``, both spreads and ``worst`` are null if no job has the
    figure."""

    mean: float | None = None  # over hosts, of each host's mean over seeds
    spread: float | None = None  # standard deviation between the hosts' means; null of one host
    seed_spread: float | None = None  # standard deviation between seeds on one host, pooled; null of one seed
    worst: float | None = None  # that host's mean
    worst_host: str = ""
    hosts: int = 0  # with a figure


class RotatedHost(Wire):
    """A host of a rotation, with the figures of the models that were tested on it and not trained on it: means over
    seeds."""

    host: str
    auroc: float | None
    caught: float | None
    false_alarms: float | None
    jobs: list[NamedJob]
    test: str = ""  # the windows, as in a result; "": not known, or not the same for all seeds


class RotationGap(Wire):
    """The AUROC of a rotation minus that of the best one on the same tests and seeds, host by host."""

    to: str
    mean: float
    spread: float | None  # standard deviation between hosts
    ahead: int  # on so many of the hosts it has the higher AUROC
    hosts: int


class DeployView(Wire):
    """A job that trains a rotation's model on all of the rotation's hosts."""

    job_id: str
    name: str
    status: str


class RotationView(Wire):
    """Jobs that differ only in the tested host and the seed, with their averaged figures."""

    name: str
    model: str
    mode: str
    hosts: list[str]
    seeds: list[int]
    jobs: int
    done: int  # with a result that counts
    states: dict[str, int]  # of the jobs
    in_manifest: bool
    auroc: FoldedView
    caught: FoldedView
    false_alarms: FoldedView
    promised: float | None  # share of false alarms; null also where the jobs promise different ones
    by_host: list[RotatedHost]
    gap: RotationGap | None = None
    deploy: list[DeployView] = []  # at most three, what is trained before what is not
    notes: list[str] = []  # what does not count, and why


class ModelsReply(Wire):
    """``GET /v1/models``: the models judged on one test, the best first."""

    test: str
    tests: list[TestView]  # the one of most of the plan's models first
    models: list[ModelView]
    without: int  # completed jobs without a report
    without_jobs: list[NamedJob]  # the newest of them
    now: float
    rotations: list[RotationView] = []  # with the first page
    next_after: str | None = None


class HostFigures(Wire):
    host: str
    windows: int
    auroc: Figure
    caught: Figure
    false_alarms: Figure


class Line(Wire):
    """A drawn line: points [x, y]."""

    label: str
    points: list[tuple[float, float]]


class ReportView(Wire):
    """The figures of a report that pages draw. ``per_host`` has at most 40 hosts, ``roc`` at most four lines of at most
    200 points."""

    result: ResultView
    roc: list[Line] = []
    per_host: list[HostFigures] = []
    baselines: dict[str, Figure] = {}  # AUROC of plain methods on the same windows
    notes: list[str] = []


class JobView(Wire):
    """A job as ``GET /v1/jobs`` shows it. Times are epoch seconds of the receiver's clock."""

    job_id: str
    name: str
    model: str
    mode: str
    status: str
    priority: int
    host: str | None
    attempt: int
    generation: int
    trainer_failures: int
    host_losses: int
    progress: JsonObject | None  # includes eta_s when the trainer gives one
    error: str | None
    ended_by: str | None
    artifact_id: str | None
    created_at: float
    claimable_at: float
    claimed_at: float | None
    heartbeat_at: float | None
    finished_at: float | None
    obstacle: str | None  # why no known host can run a pending job; null when one can
    in_manifest: bool
    passed_over: bool = False  # it left the plan, and no host is granted it before it is back, or requeued
    held_by: str | None = None  # the operator who holds it, at any status; null: not held
    held_at: float | None = None
    note: str | None = None  # a further note for the operator, as the host it waits for
    paused: str | None = None  # why the trainer of a live job stands still; null: it does not
    # of a completed job: digests of `data` and `code`, and the checkout's `commit`; null: not known
    trained: dict[str, str | None] | None = None
    auroc: Figure | None = None  # of a completed job, on its test; null: there is no report
    test: str | None = None  # equal where two models were judged on the same windows; null: not known
    settings: JsonObject = {}  # the hyperparameters and seeds that the plan gives it
    removed: RemovedView | None = None  # of a completed job: its model is gone; null: it is in the store


class JobsReply(Wire):
    jobs: list[JobView]
    counts: dict[str, int]  # by status, of the plan's jobs
    now: float
    unplanned: dict[str, int] = {}  # the same of jobs that are not in the plan
    next_after: int | None = None  # pass as ?after= for the next page
    unlike: list[str] = []  # on the first page: differences among the plan's completed jobs, in words


class JobDetail(Wire):
    job: JobView
    spec: JsonObject
    attempts: list[AttemptView]
    events: list[EventView]
    now: float
    result: ResultView | None = None  # of a completed job; null: its report is not here
    removed: list[RemovedView] = []  # of its attempts: what [retention] took away, oldest first
    # how long a worker keeps what its trainer saved to resume from, in seconds; null: as its own limits say
    keep_state_s: float | None = None


class HostVerdict(Wire):
    """The answer for one host: whether it can take the job now, and if not, why."""

    host: str
    fits: bool
    reason: str  # "ok", or the obstacle, with numbers
    wait_s: float | None = None  # seconds until the obstacle ends by itself


class ExplainReply(Wire):
    job_id: str
    name: str
    status: str
    summary: str
    hosts: list[HostVerdict]


class LogReply(Wire):
    job_id: str
    attempt: int
    first: int
    lines: list[str]
    next: int  # pass as ?after= to follow
    live: bool
    # the attempt has ended and all its output has arrived; null: ended, and its worker did not say how much
    complete: bool | None = False
    gap: str | None = None  # why lines before `first` are missing, if lines do not say it themselves
    removed: RemovedView | None = None  # why there are no lines


class CurvePoint(Wire):
    """An epoch as its trainer reported it; a figure that the trainer did not report is null."""

    attempt: int
    epoch: int
    loss: float | None
    metric: float | None
    seconds: float | None  # since that attempt's trainer began
    stage: str | None = None  # of several trainings the one that this is an epoch of, in which it has …
    stage_epoch: int | None = None  # … this number
    metric_name: str | None = None


class CurveAttempt(Wire):
    """An attempt in a job's curve, which has its epochs from ``first`` to ``last``."""

    attempt: int
    host: str
    granted_at: float
    ended_at: float | None
    end_reason: str | None
    first: int
    last: int
    epochs: int  # of its epochs in the curve, before thinning
    # it has ended and all its output has arrived; null: ended, and its worker did not say how much
    complete: bool | None


class UsageSample(Wire):
    seconds: float  # since the grant
    cpu: float | None  # cores
    memory_bytes: int | None
    gpu: float | None  # share of the time in which the GPU worked
    gpu_memory_bytes: int | None


class CurveReply(Wire):
    """``GET /v1/job/{id}/curve``: a job's attempts as one curve, in the order of epochs.

    If two attempts trained the same epochs, the points are the later attempt's.
    """

    job_id: str
    name: str
    status: str
    attempts: list[CurveAttempt]
    points: list[CurvePoint]
    epochs: int  # in the curve, before thinning
    usage_attempt: int  # of which attempt these are
    usage: list[UsageSample]
    now: float
    removed: RemovedView | None = None  # why the curve of that attempt is not here


class WorkerView(Wire):
    hostname: str
    capability: JsonObject
    declared: JsonObject | None  # the manifest's note on this host
    first_seen: float
    last_seen: float
    alive: bool  # seen within a lease
    jobs: list[str]  # names of the jobs it holds
    conflict: str | None  # a second installation with this id, when there is one
    obstacle: str | None  # e.g. its trainers' flags differ from the manifest's
    quarantine: str | None = None  # why it gets no jobs, and the remedy
    order: str | None = None  # of an operator: pause, drain, hand_back; null: none
    resting: str | None = None  # why it gets none though nothing is wrong, and what ends that
    set_aside: list[str] = []  # finished work that lies there, refused; `--deliver JOB` on that machine brings it
    unconfirmed: list[str] = []  # jobs of its finished work that came under unknown claims, and that waits for a yes
    doubt: str | None = None  # why what it measured of its own speed is not to be trusted
    unlike: str | None = None  # its program's version and commit, when they are not the receiver's


class WorkersReply(Wire):
    workers: list[WorkerView]
    now: float
    next_after: str | None = None  # leads to the next page
    build: str = ""  # the receiver's version and commit


class GoneView(Wire):
    """An item that the plan's [retention] deletes."""

    what: str  # bundle, log, curve, events or dataset
    name: str  # for people
    subject: str  # of a bundle its place in the store, of a log or curve the job's id, of a data set its id
    attempt: int  # of a log or curve, else 0
    bytes: int  # of logs and curves about
    why: str


class GcTotal(Wire):
    what: str
    count: int
    bytes: int


class GcReply(Wire):
    """``/v1/gc``: what retention would delete now (``GET``), or has deleted by this call (``POST``). ``items`` has the
    first 1,000, ``totals`` counts all."""

    totals: list[GcTotal]
    items: list[GoneView]
    keeps_all: bool  # the plan's [retention] lets nothing go
    notes: list[str] = []  # models that are kept because nothing says how good they are
    more: bool = False  # of ``POST``: repeat it, it did a part


class HealthReply(Wire):
    status: str  # "ok" or "degraded"
    version: str
    counts: dict[str, int]
    granting: bool  # false while the disk is low
    detail: str | None = None
    quarantined: dict[str, str] = {}  # host → why it gets no jobs, and the remedy
    resting: dict[str, str] = {}  # host → why it gets no jobs though nothing is wrong, and what ends that
    refused: dict[str, str] = {}  # host → the second installation with its id, and the remedy
    missing_datasets: dict[str, str] = {}  # missing data set of the plan → the jobs that wait for it
    never_asked: dict[str, str] = {}  # unknown host in the plan → its place there, and the likely host
    plan_notes: list[str] = []  # the first warnings about the plan
    look_again_s: float = LOOK_AGAIN_S  # between two heartbeats of a host
