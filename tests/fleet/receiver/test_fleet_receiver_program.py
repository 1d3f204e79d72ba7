"""The receiver as a program: what it refuses to start with, and how it starts, reloads and stops."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from builders import a_capability
from places import CHILDREN

from training.clock import SystemClock
from training.fleet.client.answers import ClientError
from training.fleet.client.client import FleetClient, Grant, Refused
from training.fleet.client.credentials import Credentials
from training.fleet.database.sqlite import SqliteDatabase
from training.fleet.database.writer import id_of
from training.fleet.receiver.program import main
from training.fleet.receiver.security.tls import Security
from training.fleet.store.artifacts import ArtifactStore

JOB = '[[jobs]]\nname = "{0}"\nmodel = "gbt"\nmode = "oracle"\nseed = {1}\n'
HEAD = 'schema_version = 1\nname = "plan"\n'


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(HEAD + JOB.format("one", 1))
    return path


def arguments(plan, *more):
    folder = plan.parent
    given = ["--port", "0", "--manifest", str(plan), "--db", str(folder / "jobs.db")]
    return [*given, "--models-dir", str(folder / "models"), *more]


def refused(capsys, argv):
    """Exit code, and the one sentence on standard error."""
    code = main(argv)
    text = capsys.readouterr().err
    said = [line for line in text.splitlines() if line.startswith("cis490-trainer-receiver: ")]
    assert len(said) == 1
    assert "Traceback" not in text
    return code, said[0]


def test_commands_that_a_refusal_suggests_act_on_this_receivers_state(plan, capsys):
    (plan.parent / "jobs.db").write_bytes(b"no database" * 100)
    _, sentence = refused(capsys, arguments(plan))
    where = f"--db {plan.parent / 'jobs.db'} --models-dir {plan.parent / 'models'}"
    assert f"`cis490-jobs restore FOLDER --force {where}`" in sentence
    assert f"`cis490-jobs rebuild --force {where} --manifest {plan}`" in sentence


@pytest.mark.parametrize("host", ["0.0.0.0", "10.100.0.1", "::", "192.168.1.5"])
def test_it_listens_on_loopback_only(plan, host, capsys):
    code, sentence = refused(capsys, arguments(plan, "--host", host))
    assert code == 2
    assert "without TLS" in sentence
    assert "--host 127.0.0.1" in sentence
    assert not (plan.parent / "jobs.db").exists()


@pytest.mark.parametrize("flags", [["--tls"], []], ids=["--tls", "because there are certificates"])
def test_beyond_loopback_it_speaks_tls_and_knows_its_clients(plan, flags):
    folder = plan.parent / "tls"
    if not flags:
        Security(folder, ["localhost"], SystemClock())
    with started(plan, "--host", "0.0.0.0", *flags) as (_, url):
        url = url.replace("0.0.0.0", "localhost")
        assert url.startswith("https://")
        client = FleetClient(url, "pi", tls=Credentials(folder).context(), tries=1)
        with pytest.raises(Refused) as caught:
            client.claim(a_capability())
        assert caught.value.problem_type == "no_certificate"
        client.close()
    assert (folder / "ca.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["10.100.0.1", "[fd00::1]"])
def test_behind_a_proxy_an_address_is_no_name(plan, name, capsys):
    behind = ("--proxy-socket", str(plan.parent / "s"), "--public-name", name)
    code, sentence = refused(capsys, arguments(plan, *behind))
    assert code == 2
    assert "give the machine a name" in sentence
    assert not (plan.parent / "jobs.db").exists()


def test_certificates_that_cannot_be_used(plan, capsys):
    (plan.parent / "tls").mkdir()
    (plan.parent / "tls" / "ca.pem").write_text("garbage")
    for more in ([], ["--tls"], ["--host", "0.0.0.0"]):
        code, sentence = refused(capsys, arguments(plan, *more))
        assert code == 2
        assert "ca.pem" in sentence


def test_a_host_that_is_none(plan, capsys):
    assert refused(capsys, arguments(plan, "--host", "pi.local"))[0] == 2


def test_a_port_in_use(plan, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, sentence = refused(capsys, arguments(plan, "--port", str(port)))
    assert code == 1
    assert f"port {port}" in sentence
    assert "is a receiver running already? choose another one with --port" in sentence


@pytest.mark.parametrize("host", ["nonsense.invalid", "192.0.2.7"])
def test_an_address_of_another_machine(plan, host, capsys):
    code, sentence = refused(capsys, arguments(plan, "--tls", "--host", host))
    assert code == 1
    assert f"cannot listen on {host}" in sentence
    assert "--host takes an address of this machine" in sentence


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_a_port_that_is_none(plan, port, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments(plan, "--port", port))
    assert ended.value.code == 2
    assert "--port" in capsys.readouterr().err


def test_a_manifest_that_is_missing_or_wrong(plan, capsys):
    code, sentence = refused(capsys, arguments(plan.with_name("none.toml")))
    assert code == 2
    assert "none.toml" in sentence
    plan.write_text(HEAD + JOB.format("one", '"many"') + "hyper.epoch = 3\n")
    assert main(arguments(plan)) == 2
    text = capsys.readouterr().err
    assert "seed" in text  # both mistakes, not only the first
    assert "epoch" in text


@pytest.mark.parametrize("flag", ["--db", "--models-dir"])
def test_a_place_that_cannot_be_used(plan, flag, capsys):
    code, sentence = refused(capsys, arguments(plan, flag, str(plan / "below" / "a" / "file")))
    assert code == 1
    assert flag in sentence


def test_a_file_that_is_no_database(plan, capsys):
    plan.with_name("jobs.db").write_text("this is not a database, it is a poem\n" * 100)
    code, sentence = refused(capsys, arguments(plan))
    assert code == 1
    assert "jobs.db" in sentence


@contextmanager
def started(plan, *more, token="sesame", **variables):
    """The program in a process of its own, and its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "training.fleet.receiver", *arguments(plan, *more)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "CIS490_OPERATOR_TOKEN": token, **variables},
    )
    try:
        assert process.stderr is not None
        yield process, wait_for_line(process, r"listening on (\S+)")
    finally:
        process.kill()
        process.communicate()


def wait_for_line(process, pattern):
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line)
        if match := re.search(pattern, line):
            return match[1]
    raise AssertionError("".join(seen))


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGHUP and no SIGTERM")
def test_start_reload_stop(plan):
    """As images start it that leave assert statements out."""
    with started(plan, PYTHONOPTIMIZE="1") as (process, url):
        client = FleetClient(url, "pi", operator_token="sesame", tries=1)
        assert client.health()["status"] == "ok"
        grant = client.claim(a_capability())

        plan.write_text(HEAD + JOB.format("one", 1) + JOB.format("two", 2))
        process.send_signal(signal.SIGHUP)
        assert wait_for_line(process, r"manifest .*: (1 new)") == "1 new"
        assert client.heartbeat(grant.job_id).action == "continue"  # jobs in flight go on

        plan.write_text("jobs = 7")
        with pytest.raises(Refused) as caught:
            client.reload()
        assert caught.value.problem_type == "bad_manifest"
        assert all(mistake["message"] for mistake in caught.value.extra["mistakes"])
        process.send_signal(signal.SIGHUP)
        wait_for_line(process, r"(reload: the manifest was not taken)")
        assert client.health()["counts"]["pending"] == 1

        assert client.claim(a_capability()) is not None
        answers = []
        waiting = threading.Thread(
            target=lambda: answers.append(FleetClient(url, "desktop", tries=1).ask(a_capability(), wait_s=30))
        )
        waiting.start()
        while not any(w["hostname"] == "desktop" for w in client.workers()["workers"]):
            pass
        process.send_signal(signal.SIGTERM)
        waiting.join(20)
        assert not isinstance(answers[0], Grant)
        client.close()
        assert process.wait(20) == 0


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGHUP and no SIGTERM")
def test_it_answers_and_stops_while_a_trainer_is_asked_in_vain(plan):
    child, asked = CHILDREN / "describes.py", plan.parent / "asked"
    describe = json.dumps(["python", str(child), str(asked)])
    with started(plan) as (process, url):
        plan.write_text(f'{HEAD}[trainers.own]\ncommand = ["true"]\ndescribe = {describe}\n' + JOB.format("one", 1))
        client = FleetClient(url, "pi", operator_token="sesame", tries=1)
        assert client.health()["status"] == "ok"
        for _ in range(8):  # more than there are threads for files
            process.send_signal(signal.SIGHUP)
        while not asked.exists():
            assert process.poll() is None
        reloads = [threading.Thread(target=outcome_of_a_reload, args=(url,), daemon=True) for _ in range(8)]
        for each in reloads:
            each.start()
        grant = client.claim(a_capability())
        bundle = plan.parent / "bundle"
        bundle.write_bytes(b"x" * 100)
        client.complete(grant.job_id, artifact_id=client.upload_artifact(grant.job_id, bundle))
        assert client.job("one")["job"]["status"] == "completed"
        client.close()
        pid = int(asked.read_text())
        assert Path(f"/proc/{pid}").exists() or sys.platform != "linux", "it is asked still"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, "each question would last a minute"
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGHUP and no SIGTERM")
def test_no_hangup_ends_it_before_it_has_ended(plan):
    with started(plan) as (process, url), closing(FleetClient(url, "pi", tries=1)) as client:
        assert client.health()["granting"]
        process.send_signal(signal.SIGTERM)
        while process.poll() is None:
            process.send_signal(signal.SIGHUP)
        assert process.wait() == 0


@pytest.mark.skipif(os.name == "nt", reason="Windows keeps an open file where it is")
@pytest.mark.parametrize("how", ["removed", "replaced", "overwritten"])
def test_a_receiver_whose_database_is_taken_away_grants_nothing_and_ends(plan, how):
    db, other = plan.with_name("jobs.db"), plan.with_name("other.db")
    SqliteDatabase(other).close()
    with started(plan) as (process, url):
        client = FleetClient(url, "pi", tries=1)
        assert client.health()["granting"]
        if how == "overwritten":
            shutil.copyfile(other, db)
        elif how == "replaced":
            other.replace(db)
        else:
            db.unlink()
        with pytest.raises(ClientError):
            client.claim(a_capability())
        client.close()
        assert f"{db} while it was in use" in wait_for_line(process, r"(.* while it was in use, .*)")
        assert process.wait(30) == 1


def outcome_of_a_reload(url):
    client = FleetClient(url, "desk", operator_token="sesame", tries=1)
    with contextlib.suppress(ClientError):
        client.reload()
    client.close()


def test_two_receivers_share_neither_database_nor_store(plan, capsys):
    own_db, own_store = (("--db", str(plan.parent / "b.db")), ("--models-dir", str(plan.parent / "b")))
    with started(plan):
        for given, shared in (((), "store"), (own_db, "store"), (own_store, "database")):
            code, said = refused(capsys, arguments(plan, *given))
            assert code == 1
            assert f": the {shared} " in said
            assert " is in use (" in said


def test_a_copy_of_a_database_that_was_replaced_is_not_passed_over(plan, capsys):
    (plan.parent / "jobs.db.kept").write_text("all that was written")
    code, said = refused(capsys, arguments(plan))
    assert code == 1
    assert "jobs.db.kept has all work until" in said
    assert not (plan.parent / "jobs.db").exists()


@pytest.mark.parametrize("store_holds", ["a mark", "models"])
def test_a_receiver_that_is_refused_a_store_leaves_no_database(plan, capsys, store_holds):
    store = ArtifactStore(plan.parent / "models")
    if store_holds == "a mark":
        store.mark("f" * 32)
    else:
        (store.root / "gbt_oracle" / ("a" * 64)).mkdir(parents=True)
        (store.root / "gbt_oracle" / ("a" * 64) / "bundle.tar.zst").touch()
    wrong = plan.parent / "wrong" / "jobs.db"
    code, said = refused(capsys, arguments(plan, "--db", str(wrong)))
    assert code == 1
    assert str(wrong) in said
    assert not wrong.parent.exists()


@pytest.mark.skipif(os.name != "posix", reason="makes a pipe")
@pytest.mark.parametrize("make", ["mkfifo", "mkdir"])
def test_a_receiver_whose_database_is_no_file_says_that(plan, capsys, make):
    getattr(os, make)(plan.with_name("jobs.db"))
    ArtifactStore(plan.parent / "models").mark("f" * 32)
    code, said = refused(capsys, arguments(plan))
    assert code == 1
    assert f"cannot use the database {plan.with_name('jobs.db')}: it is no plain file; choose another place" in said


def test_a_database_of_another_fleet_is_refused_as_it_is(plan, capsys):
    db = plan.with_name("jobs.db")
    with closing(SqliteDatabase(db)) as database:
        theirs = f"the database {id_of(database)[:12]}"
    ArtifactStore(plan.parent / "models").mark("f" * 32)
    before = db.read_bytes()
    code, said = refused(capsys, arguments(plan))
    assert code == 1
    assert f"belongs to the database ffffffffffff…, and this is {theirs}" in said
    assert db.read_bytes() == before
    assert [each.name for each in sorted(plan.parent.glob("jobs.db*"))] == ["jobs.db"]


def test_what_was_acknowledged_survives_kill_9_and_the_index_is_mended(plan, tmp_path):
    bundle = tmp_path / "b.tar.zst"
    bundle.write_bytes(b"model" * 1000)
    with started(plan) as (process, url):
        client = FleetClient(url, "pi", tries=1)
        grant = client.claim(a_capability())
        artifact = client.upload_artifact(grant.job_id, bundle)
        client.complete(grant.job_id, artifact_id=artifact)
        client.close()
        process.kill()
    index = tmp_path / "models" / "index.jsonl"
    index.write_text('{"artifact_id": "torn')
    assert (tmp_path / "jobs.db.plan").exists(), "which spares the next start a long plan"
    with started(plan) as (process, url):
        client = FleetClient(url, "pi", tries=1)
        assert client.job("one")["job"]["status"] == "completed"
        assert client.get_model("one", tmp_path / "got").artifact_id == artifact
        client.close()
    (line,) = index.read_text().splitlines()
    assert json.loads(line)["artifact_id"] == artifact


def test_the_database_of_a_newer_program_is_refused(plan, capsys):
    database = SqliteDatabase(plan.with_name("jobs.db"))
    database.connection.execute("PRAGMA user_version = 999")
    database.close()
    assert "999" in refused(capsys, arguments(plan))[1]
