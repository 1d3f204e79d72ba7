"""Output of trainers reaches the receiver, each line once: on the worker's disk, at the receiver, between processes
that are killed. Nothing that was finished is lost while the receiver is away."""

from __future__ import annotations

import json
import logging
import os
from contextlib import closing
from pathlib import Path

import pytest
from builders import SHOWN, a_failure
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs
from process_fleet import PATIENCE_S, until
from service_running import POLICY, refused, with_two_jobs
from test_fleet_end_to_end import Fleet
from wire_builders import a_grant

from training.fleet.client.client import FleetClient
from training.fleet.client.transport import Response
from training.fleet.process.ended import Ended
from training.fleet.queue.attempts import GAP
from training.fleet.queue.logs import Piece, beyond
from training.fleet.receiver.http.problems import decoded, reply
from training.fleet.wire.attempts import FailRequest, HeartbeatRequest, LogLines, OutputRequest
from training.fleet.wire.constants import JSON_BODY_MAX, LOG_LINE_CHARS_MAX, LOG_LINES_MAX, ProblemType
from training.fleet.wire.progress import parse_progress
from training.fleet.worker.outbox import (
    ATTEMPTS_KEPT,
    CORRUPT_KEPT,
    FILE_BYTES,
    FILE_LINES,
    MESSAGE_BYTES_MAX,
    Outbox,
    dropped,
    fitting,
)
from training.fleet.worker.requests import with_lines
from training.fleet.worker.state import events as t
from training.fleet.worker.state.events import Backlog
from training.fleet.worker.state.exit_code import judge
from training.fleet.worker.tail import READ_BYTES, OutputTail

JOB = a_grant(job_id="ab" * 32, claim_id="c1", name="gbt", attempt=2)


def every_line(outbox, claim_id, first=0):
    """Return what would be sent, message by message: number → line."""
    found = {}
    while True:
        first, lines = outbox.read(claim_id, first)
        if not lines:
            return found
        assert len(lines) <= LOG_LINES_MAX
        found |= dict(enumerate(lines, first))
        first += len(lines)


def numbered(*lines):
    return dict(enumerate(lines))


class Printer:
    """A trainer's file and the looks at it, as the worker takes them."""

    def __init__(self, folder, owner=JOB):
        self.folder = folder
        self.owner = owner
        self.source = folder / f"{owner.claim_id}.log"
        self.source.touch()
        self.outbox = Outbox(folder / "outbox")
        self.total = 0

    def say(self, *lines, look=True):
        with self.source.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
        if look:
            self.outbox.append(self.owner, self.source, lines, self.source.stat().st_size)

    def restarted(self):
        """The worker was killed; the next one reads its disk."""
        self.outbox = Outbox(self.folder / "outbox")
        self.backlog = self.outbox.recover()
        return self.outbox


@pytest.fixture
def printer(tmp_path):
    return Printer(tmp_path)


def test_lines_keep_their_order_and_numbers_over_restarts(printer):
    printer.say("a", "b")
    printer.say("c")
    assert every_line(printer.outbox, "c1") == numbered("a", "b", "c")
    assert every_line(printer.outbox, "c1", first=2) == {2: "c"}
    assert printer.outbox.read("c1", 3) == (3, ())
    printer.restarted()
    assert printer.backlog == [Backlog(JOB, 3)]
    printer.say("d")
    assert every_line(printer.outbox, "c1") == numbered("a", "b", "c", "d")
    assert printer.outbox.last("c1", 2) == ("c", "d")


def test_what_was_printed_after_the_last_look_is_found(printer):
    printer.say("a")
    printer.say("b", "é", look=False)
    with printer.source.open("a") as file:
        file.write("no end")
    printer.restarted()
    assert every_line(printer.outbox, "c1") == numbered("a", "b", "é", "no end")
    printer.restarted()
    assert every_line(printer.outbox, "c1") == numbered("a", "b", "é", "no end"), "and only once"


def test_attempt_of_which_no_line_was_put_down_is_found_by_its_file(printer):
    printer.say("a", "b", look=False)
    assert printer.restarted().adopt(JOB, printer.source).total == 2
    assert every_line(printer.outbox, "c1") == numbered("a", "b")


def test_write_that_was_cut_anywhere_loses_and_doubles_nothing(printer):
    printer.say("a", "b")
    printer.say("c", 'd "é"')
    (path,) = printer.outbox.folder.glob("*.jsonl")
    whole = path.read_bytes()
    for length in range(whole.index(b"\n") + 1, len(whole)):
        path.write_bytes(whole[:length])
        printer.restarted()
        assert every_line(printer.outbox, "c1") == numbered("a", "b", "c", 'd "é"')


def test_damage_is_set_aside_with_a_line_and_work_goes_on(printer, caplog):
    printer.say("a")
    printer.say("b")
    printer.say("c")
    (path,) = printer.outbox.folder.glob("*.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1] + b"\0" * len(lines[2]) + b"\n" + lines[3])
    with caplog.at_level(logging.WARNING):
        printer.restarted()
    assert "is damaged" in caplog.text
    assert path.with_suffix(".corrupt").exists()
    assert every_line(printer.outbox, "c1") == numbered("a", "b", "c"), "the trainer's file has it"
    path.write_bytes(b"{}\n")
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        printer.restarted()
    assert "is damaged and was renamed" in caplog.text
    assert printer.backlog == []
    assert not list(printer.outbox.folder.glob("*.jsonl")), "it is not read a second time"


@given(st.binary(max_size=300), st.integers(0, 400))
@example(b"\\ud800", 161)  # half a character in the name of the trainer's file …
@example(b"\\u0000", 161)  # … and what no name has
@settings(max_examples=60)
def test_no_content_of_a_file_is_a_crash(tmp_path_factory, junk, at):
    printer = Printer(tmp_path_factory.mktemp("outbox"))
    printer.say("a", "b")
    (path,) = printer.outbox.folder.glob("*.jsonl")
    whole = path.read_bytes()
    path.write_bytes(whole[:at] + junk + whole[at + len(junk) :])
    printer.restarted()
    every_line(printer.outbox, "c1")
    printer.say("c")
    assert printer.restarted().last("c1", 1) in {("c",), ()}


@pytest.mark.parametrize("total", [None, 3])
def test_a_report_without_lines_still_tells_how_many_there_were(total):
    message = HeartbeatRequest(log=LogLines(first=3, total=total))
    filled = with_lines(t.SendHeartbeat(call=1, assignment=JOB, message=message), lambda _claim, first: (first, ()))
    assert filled.message.log == (None if total is None else message.log)


def test_damaged_files_do_not_pile_up(printer):
    printer.outbox.folder.mkdir()
    for number in range(CORRUPT_KEPT + 5):
        (printer.outbox.folder / f"x{number}.000000000.jsonl").write_bytes(b"junk")
    printer.restarted()
    assert len(list(printer.outbox.folder.iterdir())) == CORRUPT_KEPT


def test_disk_stays_bounded_and_beginning_and_end_stay(printer, monkeypatch):
    monkeypatch.setattr("training.fleet.worker.outbox.FILE_LINES", 100)
    monkeypatch.setattr("training.fleet.worker.outbox.LOG_BYTES_MAX", 10_000)
    most = 3_000
    for first in range(0, most, 50):
        printer.say(*(f"line {number}" for number in range(first, first + 50)))
        assert sum(path.stat().st_size for path in printer.outbox.folder.iterdir()) <= 12_500
    kept = every_line(printer.outbox, "c1")
    assert kept == {number: f"line {number}" for number in kept}
    assert [*range(300)] == sorted(kept)[:300]
    assert [*range(most - 200, most)] == sorted(kept)[-200:]
    printer.restarted()
    assert every_line(printer.outbox, "c1") == kept
    kept = {number: line for number, line in kept.items() if number >= 7}
    assert every_line(printer.outbox, "c1", first=7) == kept
    printer.outbox.forget("c1")
    assert not list(printer.outbox.folder.iterdir())


@pytest.mark.parametrize("begun", [True, False])
def test_disk_that_takes_nothing_costs_no_line(printer, begun):
    if begun:
        printer.say("a")
    folder = printer.outbox.folder
    aside = folder.with_name("aside")
    if begun:
        folder.rename(aside)
    folder.touch()  # nothing can be written into that
    printer.say("b")
    printer.say("c")
    assert printer.outbox.read("c1", int(begun)) == (int(begun), ("b", "c")), "from memory"
    folder.unlink()
    if begun:
        aside.rename(folder)
    printer.say("d")
    expected = [*(["a"] if begun else []), "b", "c", "d"]
    assert every_line(printer.outbox, "c1") == numbered(*expected)
    printer.restarted()
    assert every_line(printer.outbox, "c1") == numbered(*expected)


def test_a_file_that_could_not_be_begun_is_gone(printer, monkeypatch):
    def full(path, data):
        path.touch()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        printer.say("a")
    assert not list(printer.outbox.folder.iterdir())
    printer.say("b")
    assert every_line(printer.outbox, "c1") == numbered("a", "b")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no limit on the size of files")
def test_what_a_full_disk_took_in_part_is_cut_off_before_more_follows(printer):
    """The system takes what fits and refuses the rest; what was taken must not stand between two records."""
    import resource

    printer.say("a")
    (path,) = printer.outbox.folder.glob("*.jsonl")
    size = path.stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5, before[1]))
        printer.say("b")
        assert path.stat().st_size == size
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert every_line(printer.outbox, "c1") == numbered("a", "b"), "in memory"
    assert printer.outbox.read("c1", 1) == (1, ("b",))
    printer.say("c")
    assert every_line(printer.outbox, "c1") == numbered("a", "b", "c")
    printer.restarted()
    assert every_line(printer.outbox, "c1") == numbered("a", "b", "c")


def test_files_are_of_one_size_and_begin_anew_when_they_are_full(printer):
    lines = [str(number) for number in range(FILE_LINES + 1)]
    printer.say(*lines[:FILE_LINES])
    printer.restarted()
    printer.say(lines[-1])
    assert len(list(printer.outbox.folder.iterdir())) == 2
    assert every_line(printer.outbox, "c1") == numbered(*lines)


def test_what_was_printed_unseen_is_put_down_in_pieces(printer):
    """A day's output in one record would be one file that nothing bounds."""
    lines = [f"{number:06d}" + "x" * 484 for number in range(4000)]
    printer.say("0", look=True)
    printer.say(*lines, look=False)
    printer.restarted()
    assert len(every_line(printer.outbox, "c1")) == 4001
    sizes = [path.stat().st_size for path in printer.outbox.folder.iterdir()]
    assert max(sizes) < FILE_BYTES + 2 * READ_BYTES


@given(st.lists(st.integers(1, 9), max_size=30), st.integers(40, 90))
def test_what_is_dropped_is_what_a_receiver_would_drop(sizes, most):
    places = dropped(sizes, most)
    files = [Piece("j", 1, n, 1, size, 1, "d", None, None) for n, size in enumerate(sizes)]
    assert [piece.first for piece in beyond(files, most)] == list(places)


def test_output_of_old_attempts_goes_when_there_is_too_much(printer, monkeypatch):
    printer.say("x" * 400)
    other = Printer(printer.folder, structs.replace(JOB, claim_id="c2"))
    other.outbox = printer.outbox
    other.say("y" * 400)
    monkeypatch.setattr("training.fleet.worker.outbox.BYTES_KEPT", 1500)
    assert [each.assignment.claim_id for each in Outbox(printer.outbox.folder).recover()] == ["c2"]


@pytest.mark.parametrize("record", ['[9, ["b", 1]]', '[9, [1, "b"]]', '["x", ["b"]]', "[9]", "9"])
def test_a_record_that_is_none_ends_what_is_sound(printer, record):
    printer.say("a")
    (path,) = printer.outbox.folder.iterdir()
    path.write_bytes(path.read_bytes() + record.encode() + b"\n")
    printer.restarted()
    assert every_line(printer.outbox, "c1") == numbered("a")


def test_file_that_somebody_removed_takes_only_its_own_lines_along(printer):
    printer.say("a")
    for path in printer.outbox.folder.iterdir():
        path.unlink()
    printer.say("b")
    assert every_line(printer.outbox, "c1") == {1: "b"}
    printer.restarted()
    assert every_line(printer.outbox, "c1") == {1: "b"}


def test_attempts_are_apart_and_the_oldest_go_first(tmp_path):
    one = Printer(tmp_path)
    for number in range(ATTEMPTS_KEPT + 3):
        one.owner = a_grant(job_id="j", claim_id=f"c{number}", name="x")
        one.source = tmp_path / f"c{number}.log"
        one.say(f"line of {number}")
        if number == 20:
            one.restarted()
    outbox = one.restarted()
    assert [backlog.assignment.claim_id for backlog in one.backlog] == [
        f"c{number}" for number in range(3, ATTEMPTS_KEPT + 3)
    ]
    assert every_line(outbox, "c9") == numbered("line of 9")
    outbox.forget("c9")
    outbox.forget("never heard of")
    assert every_line(outbox, "c9") == {}
    assert every_line(outbox, "c10") == numbered("line of 10")


@pytest.fixture
def receiver():
    with closing(with_two_jobs()) as made:
        yield made


# ── at the receiver ─────────────────────────────────────────────────────────────────────────


def stored(receiver):
    chunks = receiver.queue.db.all("log", job_id="id-one", attempt=1, after=0, most=100)
    return [line for chunk in chunks for line in chunk["text"].split("\n")]


def bring(receiver, claim_id, first, *lines):
    log = LogLines(first=first, lines=list(lines)) if lines else None
    request = OutputRequest(host_id="pi", claim_id=claim_id, log=log)
    return receiver.service.output("id-one", request).log_next


@pytest.fixture
def claim_id(receiver):
    return receiver.granted()


@pytest.mark.parametrize("how", ["live", "lost", "failed", "completed", "cancelled", "regranted"])
def test_output_is_taken_whatever_became_of_the_attempt(receiver, claim_id, how):
    match how:
        case "lost" | "regranted":
            receiver.watch(2 * POLICY.stale_after_s)
            if how == "regranted":
                receiver.granted("other")
        case "failed":
            receiver.fail(claim_id)
        case "completed":
            receiver.deliver(claim_id)
        case "cancelled":
            receiver.service.cancel("one")
    before = receiver.queue.get("id-one")
    assert bring(receiver, claim_id, 0) == 0, "a question"
    assert bring(receiver, claim_id, 0, "a", "b") == 2
    assert bring(receiver, claim_id, 1, "b", "c") == 3, "once more, and one that is new"
    assert stored(receiver) == ["a", "b", "c"]
    assert receiver.queue.get("id-one") == before, "it moves nothing and renews no lease"


def test_output_is_taken_from_its_own_host_alone(receiver, claim_id):
    for job_id, host, claim in (
        ("id-one", "other", claim_id),
        ("id-two", "pi", claim_id),
        ("id-one", "pi", "invented"),
    ):
        request = OutputRequest(host_id=host, claim_id=claim, log=LogLines(lines=["x"]))
        refused(ProblemType.LEASE_SUPERSEDED, receiver.service.output, job_id, request)
    assert stored(receiver) == []


def test_lines_that_are_missing_are_said_to_be(receiver, claim_id):
    assert bring(receiver, claim_id, 0, "a") == 1
    assert bring(receiver, claim_id, 121, "b") == 122
    assert stored(receiver) == ["a", GAP.format(120), "b"]
    assert bring(receiver, claim_id, 50, "late") == 122, "said is said"
    assert bring(receiver, claim_id, 122, "c") == 123
    assert stored(receiver)[-2:] == ["b", "c"]


def test_report_that_comes_again_keeps_what_it_takes_along(receiver, claim_id):
    log = LogLines(lines=["last words"])
    receiver.fail(claim_id)
    progress = {"event": "epoch", "epoch": 9}
    again = a_failure(claim_id, log=log, seq=7, progress=progress)
    receiver.service.fail("id-one", again)
    receiver.service.fail("id-one", again)
    assert stored(receiver) == ["last words"]
    assert receiver.queue.attempts.of_job("id-one")[0].progress == progress
    receiver.service.fail("id-one", a_failure(claim_id, seq=6, progress={"event": "epoch", "epoch": 8}))
    assert receiver.queue.attempts.of_job("id-one")[0].progress == progress


class Wire:
    """A wire on which the real client's requests are read as the receiver reads them, and given to the service."""

    def __init__(self, receiver):
        self.receiver = receiver

    def request(self, method, path, headers, body, *_):
        assert len(body) <= JSON_BODY_MAX
        verb = path.rpartition("/")[2]
        kind, call = {
            "heartbeat": (HeartbeatRequest, self.receiver.service.heartbeat),
            "fail": (FailRequest, self.receiver.service.fail),
        }[verb]
        return Response(200, SHOWN, bytes(reply(call("id-one", decoded(body, kind))).body))


# st.text() leaves halves of characters out.
WORDS = st.text(st.characters(exclude_categories=()), max_size=40)
PROGRESS = st.dictionaries(WORDS, st.none() | st.booleans() | st.integers() | st.floats() | WORDS)
PRINTED = st.lists(
    st.binary(max_size=60)
    | WORDS.map(lambda text: text.encode("utf-8", "surrogatepass"))
    | st.builds(
        lambda event, more: json.dumps({"event": event, **more}).encode(),
        st.sampled_from(["epoch", "error"]),
        PROGRESS | WORDS.map(lambda text: {"message": text}),
    ),
    max_size=12,
)


@given(PRINTED, st.sampled_from([1, 65, 70, 137]))
@example([b'{"event": "epoch", "note": "\\ud800"}', b'{"event": "error", "message": "\\udfff\\u0000"}'], 70)
def test_whatever_a_trainer_prints_the_receiver_takes_and_keeps(tmp_path_factory, printed, code):
    path = tmp_path_factory.mktemp("printed") / "trainer.log"
    path.write_bytes(b"\n".join(printed))
    found = OutputTail(path).poll(final=True)
    said = [fields for line in found if (fields := parse_progress(line))]
    lines = fitting(tuple(line[:LOG_LINE_CHARS_MAX] for line in found))
    complaints = [str(each.get("message")) for each in said if each["event"] == "error"]
    failure = judge(Ended(code=code), lines, complaints[-1] if complaints else None)
    receiver = with_two_jobs()
    claim_id = receiver.granted()
    client = FleetClient("http://receiver:1", "pi", transport=Wire(receiver), tries=1)
    progress = said[-1] if said else None
    beat = client.heartbeat("id-one", seq=1, claim_id=claim_id, progress=progress, lines=lines)
    assert beat.log_next == len(lines)
    telemetry = {"seq": 2, "progress": progress, "log": LogLines(lines=list(lines))}
    client.fail("id-one", error=failure.error, exit_code=code, claim_id=claim_id, **telemetry)
    (attempt,) = receiver.queue.attempts.of_job("id-one")
    assert attempt.error == failure.error.encode("utf-8", "replace").decode()
    assert stored(receiver) == list(lines)
    assert (attempt.progress is None) == (progress is None)
    receiver.queue.close()


# ── real processes: the receiver away at the worst moments, the worker killed meanwhile ─────

EARLY = [f"line {number}" for number in range(300)]
LATE = [f"line {number}" for number in range(300, 550)]


@pytest.fixture
def fleet(tmp_path):
    one = Fleet(tmp_path)
    yield one
    one.close()


def away_while_the_worker_dies(fleet, behaviour, crash_at):
    """The worker is killed at ``crash_at``, the receiver too; the worker comes again first, in vain."""
    fleet.plan(job=behaviour)
    fleet.start_receiver()
    assert fleet.start_worker(crash_at=crash_at).wait(PATIENCE_S) == -9, fleet.log("host")
    fleet.receiver.kill()
    fleet.receiver.wait()
    fleet.start_worker()
    until(lambda: "cannot reach the receiver" in fleet.log("host"))
    fleet.start_receiver()


def output(fleet, attempt):
    """All that the receiver has of an attempt."""
    lines = []
    while True:
        page = fleet.client.log("job", attempt=attempt, after=len(lines))
        assert page["first"] == len(lines)
        if not page["lines"]:
            return lines
        lines += page["lines"]


@pytest.mark.half
@pytest.mark.skipif(os.name != "posix", reason="kills POSIX processes")
@pytest.mark.parametrize(
    "crash_at",
    [
        "worker.trainer_ended",
        "worker.pack.begin",
        "client.body",
        "worker.before.SendComplete",
        "worker.after.SendComplete",
    ],
)
def test_finished_training_and_every_line_of_it_arrive(fleet, crash_at):
    (fleet.folder / "go").touch()
    away_while_the_worker_dies(fleet, "talks", crash_at)
    until(lambda: fleet.status("job") == "completed")
    until(lambda: output(fleet, 1) == EARLY + LATE)
    job = fleet.job("job")
    assert (job["job"]["attempt"], job["job"]["trainer_failures"]) == (1, 0)
    assert job["job"]["host_losses"] == 0
    until(lambda: not list(fleet.folder.glob("artifacts/.worker/host/outbox/*")))


@pytest.mark.skipif(os.name != "posix", reason="kills POSIX processes")
def test_failure_and_every_line_of_it_arrive(fleet):
    (fleet.folder / "go").touch()
    away_while_the_worker_dies(fleet, "talks-and-fails", "worker.before.SendFail")
    until(lambda: fleet.job("job")["attempts"][0]["end_reason"])
    first = fleet.job("job")["attempts"][0]
    assert first["end_reason"] == "trainer_failed"
    assert "ValueError: the labels are all of one class" in first["error"]
    until(lambda: len(output(fleet, 1)) > len(EARLY + LATE))
    lines = output(fleet, 1)
    assert lines[:550] == EARLY + LATE
    assert lines[-1] == "ValueError: the labels are all of one class"


@pytest.mark.skipif(os.name != "posix", reason="kills POSIX processes")
@pytest.mark.parametrize("crash_at", ["worker.printed", "worker.after.SendClaim"])
def test_training_that_dies_with_its_worker_costs_time_alone(fleet, crash_at):
    away_while_the_worker_dies(fleet, "talks", crash_at)
    (fleet.folder / "go").touch()
    until(lambda: fleet.status("job") == "completed")
    job = fleet.job("job")
    assert job["job"]["trainer_failures"] == 0
    last = job["job"]["attempt"]
    until(lambda: output(fleet, last) == EARLY + LATE)
    for attempt in range(1, last):  # all that those trainers had the time for
        logs = fleet.folder.glob(f"artifacts/**/attempt-{attempt}-*.log")
        printed = [line for log in logs for line in log.read_text().splitlines()]
        assert printed == EARLY[: len(printed)]
        until(lambda: output(fleet, attempt) == printed)  # noqa: B023 - called at once


@given(st.lists(st.integers(0, LOG_LINE_CHARS_MAX), min_size=150, max_size=210))
def test_a_message_holds_as_many_lines_as_fit(lengths):
    lines = tuple("x" * length for length in lengths)
    sizes = [len(json.dumps(line)) + len(", ") for line in lines]
    most = max(n for n in range(len(sizes) + 1) if sum(sizes[:n]) <= MESSAGE_BYTES_MAX)
    assert fitting(lines) == lines[: min(most, LOG_LINES_MAX)]


def test_a_message_may_be_full_to_the_last_byte():
    lines = ("x" * 396,) * 200  # with its quotes, a comma and a blank 400 bytes each, of which 100 fit
    assert len(fitting(lines)) == MESSAGE_BYTES_MAX // 400 == 100
