"""Notifications in the receiver, from a failed job to a command that runs, and the endpoints about channels."""

import asyncio
import io
import json
import sys
import threading
from queue import SimpleQueue
from unittest.mock import Mock

import pytest
from builders import a_failure, a_worker_claim
from receiver_running import running

from training.fleet.cli import program
from training.fleet.cli.context import CommandContext
from training.fleet.client.client import Refused
from training.fleet.manifest.channels import ChannelKind, NotifyChannel, Secret
from training.fleet.receiver.http.notify import Notifier
from training.fleet.service.hosts import Plan
from training.fleet.service.notify.secret import SendError


def run(receiver, *words):
    """Run ``cis490-jobs`` with an operator's token against this receiver; returns its exit code and what it printed."""
    out = io.StringIO()
    context = CommandContext(connect=lambda *_: receiver.client(token=TOKEN), environ={}, out=out, err=out)
    return program.main(list(words), context=context), out.getvalue()


def to_file(file):
    code = f"import sys; open({str(file)!r}, 'a').write(sys.stdin.read())"
    return NotifyChannel(name="own", kind=ChannelKind.COMMAND, command=(sys.executable, "-c", code))


TOKEN = "sesame"  # one that a variable may hold
NOWHERE = NotifyChannel(name="broken", kind=ChannelKind.COMMAND, command=("/no/such",))


@pytest.fixture
def receiver(tmp_path):
    with running(tmp_path, "gbt", operator_token=TOKEN) as found:
        channels = (to_file(tmp_path / "told"), NOWHERE)
        found.writer.submit(lambda: found.service.reload(found.plan, Plan(channels=channels))).result()
        found.client(token=TOKEN).health()  # it runs
        yield found


def ticked(receiver, notifier):
    """One look for news, to the end of what it sends."""

    async def tick():
        await notifier.tick()
        await notifier.settled()

    on_loop(receiver, tick())


def on_loop(receiver, work):
    asyncio.run_coroutine_threadsafe(work, receiver.server._loop).result(30)


def fail_for_good(receiver):
    def fail():
        granted = receiver.service.claim(a_worker_claim("pi"))
        receiver.service.fail(granted.job_id, a_failure(granted.claim_id, error="no data", exit_code=65))

    receiver.writer.submit(fail).result()


def test_a_failed_job_reaches_a_command_and_a_broken_channel_says_so(receiver, tmp_path):
    notifier = Notifier(receiver.hub)
    ticked(receiver, notifier)
    assert not (tmp_path / "told").exists()
    fail_for_good(receiver)
    ticked(receiver, notifier)
    (told,) = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
    assert [each["kind"] for each in told["notices"]] == ["failure", "plan_done"]
    assert "job gbt failed on pi" in told["text"]
    own, broken = receiver.client(token=TOKEN).notify()["channels"]
    assert (own["waiting"], own["error"]) == (0, None)
    assert (broken["waiting"], broken["tries"], broken["sent_at"]) == (2, 1, None)
    code, shown = run(receiver, "notify")
    assert code == 0
    assert "`/no/such` cannot be started" in " ".join(shown.split())


def test_a_channel_whose_secret_cannot_be_read_is_not_called_ready(receiver, tmp_path):
    secret = tmp_path / "topic"
    dumb = NotifyChannel(name="phone", kind=ChannelKind.NTFY, url=Secret(file=str(secret)))
    receiver.writer.submit(lambda: receiver.service.reload(receiver.plan, Plan(channels=(dumb,)))).result()
    _, shown = run(receiver, "notify")
    assert "cannot be read" in " ".join(shown.split())
    assert "ready" not in shown
    secret.write_text("http://127.0.0.1:9/topic\n")
    assert "ready" in run(receiver, "notify")[1]


@pytest.mark.parametrize(
    ("error", "kept"),
    [(ZeroDivisionError, "a bug in the receiver"), (SendError("the other side answered 500"), "side answered 500")],
)
def test_an_error_in_a_channel_takes_nothing_with_it_and_is_kept(receiver, error, kept):
    fail_for_good(receiver)
    ticked(receiver, Notifier(receiver.hub, Mock(side_effect=error)))
    assert all(kept in each["error"] for each in receiver.client(token=TOKEN).notify()["channels"])


def test_a_test_message_says_for_each_channel_if_it_arrived(receiver, tmp_path):
    code, shown = run(receiver, "notify", "test", "own")
    assert (code, shown.strip()) == (0, "own: the test message arrived")
    assert json.loads((tmp_path / "told").read_text())["key"].startswith("cis490-test-")
    code, shown = run(receiver, "notify", "test", "--json")
    assert code == 1
    assert [(each["channel"], each["error"] is None) for each in json.loads(shown)["results"]] == [
        ("own", True), ("broken", False)]  # fmt: skip
    with pytest.raises(Refused, match=r"has no channel x; its .* are: own, broken"):
        receiver.client(token=TOKEN).notify_test(channel="x")
    with pytest.raises(Refused, match="token"):
        receiver.client(token=None).notify()


def test_a_message_that_arrived_before_a_stop_is_repeated_with_its_key(receiver):
    """The receiver ends between sending and noting: the next one sends the same again."""
    keys = SimpleQueue()
    stopped = threading.Event()

    def told(channel, message):
        if channel.name == "own":
            keys.put(message.key)
            stopped.wait()

    fail_for_good(receiver)
    first = Notifier(receiver.hub, told)
    on_loop(receiver, first.tick())
    before = keys.get(timeout=30)

    async def stop():
        first.close()
        await first.settled()

    on_loop(receiver, stop())
    stopped.set()
    ticked(receiver, Notifier(receiver.hub, told))
    assert keys.get(timeout=30) == before
