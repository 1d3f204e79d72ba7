"""Letting machines in: from the printed line to a worker with a certificate, and its renewal."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shlex
import ssl
import subprocess
from functools import partial
from pathlib import Path

import msgspec
import pytest
from builders import a_capability, a_job
from process_fleet import until
from systems import open_to_others
from tls_world import Signer, secure

from training.clock import SystemClock
from training.fleet import join
from training.fleet.cli import program
from training.fleet.cli.context import CannotError, CommandContext, connect, find_credentials, usual_url
from training.fleet.cli.enroll import command
from training.fleet.client.client import Answered, FleetClient, Refused
from training.fleet.client.credentials import Credentials, new_request
from training.fleet.receiver import wheel
from training.fleet.receiver.security.tls import Security
from training.fleet.service.hosts import KnownHost
from training.fleet.wire.identity import Role
from training.fleet.worker.certificate import CertificateKeeper
from training.fleet.worker.daemon import TrainerWorker
from training.fleet.worker.options import options_of, parser

SESAME = "open-sesame"


@pytest.fixture
def receiver(tmp_path):
    with secure(tmp_path / "receiver", a_job("one"), a_job("two")) as receiver:
        receiver.hub.authenticator.operator_token = SESAME  # plain letters, as an environment variable holds them
        yield receiver


@pytest.fixture(autouse=True)
def folders(tmp_path):
    (tmp_path / "receiver").mkdir(exist_ok=True)


class Person:
    """Runs ``cis490-jobs`` and the line it prints, with an operator's token."""

    def __init__(self, receiver):
        self.receiver = receiver
        self.out, self.err = io.StringIO(), io.StringIO()

    def jobs(self, *argv, token=SESAME, pem=None):
        self.out, self.err = io.StringIO(), io.StringIO()
        world = CommandContext(
            connect=lambda _url, given: self.receiver.showing(pem, given),
            out=self.out,
            err=self.err,
            environ={} if token is None else {"CIS490_OPERATOR_TOKEN": token},
        )
        return program.main([*argv], context=world)

    def line(self, *argv):
        """The printed line, split as a shell does; without the program."""
        assert self.jobs("enroll", *argv, "--url", self.receiver.url) == 0
        lines = self.out.getvalue().splitlines()
        assert len(lines) == 1
        words = shlex.split(lines[0])
        return words[next(i for i, word in enumerate(words) if word.startswith("--")) :]

    def code(self, name="pi"):
        """A fresh one-time code."""
        return self.flags(name)["--code"]

    def flags(self, *argv):
        return dict(zip(*[iter(self.line(*argv))] * 2, strict=True))


@pytest.fixture
def person(receiver):
    return Person(receiver)


def refusal(call):
    """The type of the problem with which a call is refused."""
    with pytest.raises(Answered) as refused:
        call()
    return refused.value.problem_type


def said(capsys):
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return captured.out + captured.err


def test_from_the_printed_line_to_a_claim(receiver, person, tmp_path, capsys):
    line = person.line("pi")
    folder = tmp_path / "pi"
    assert join.main([*line, "--tls-dir", str(folder)]) == 0
    assert "has joined" in said(capsys)
    assert not open_to_others(folder / "client.pem")
    credentials = Credentials(folder)
    known = credentials.identity()
    assert (known.role, known.name, known.receiver_url) == (Role.HOST, "pi", receiver.url)
    client = FleetClient(receiver.url, "pi", tls=credentials.context(), tries=1)
    assert client.claim(a_capability()) is not None
    client.close()

    assert join.main([*line, "--tls-dir", str(folder)]) == 0  # running it twice is harmless
    assert "nothing was changed" in said(capsys)
    assert join.main([*line, "--tls-dir", str(tmp_path / "thief")]) == 1
    assert "used already" in said(capsys)


@pytest.mark.thorough
@pytest.mark.skipif(os.name != "posix", reason="lines for a shell of POSIX")
def test_the_line_without_git_brings_a_worker_and_its_removal_leaves_nothing(receiver, person, tmp_path, monkeypatch):
    home, here, bin_ = tmp_path / "ho me", tmp_path / "here", tmp_path / "bin"
    for folder in (home / "own", here, bin_):
        folder.mkdir(parents=True)
    (bin_ / "systemctl").write_text("#!/bin/sh\nexit 1\n")  # of no use here
    (bin_ / "systemctl").chmod(0o755)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("RUSTUP_HOME", str(tmp_path / "rustup"))  # pip may ask Rust for its version
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
    for each in ("PYTHONPATH", "XDG_CACHE_HOME"):
        monkeypatch.delenv(each, raising=False)
    before = {path: path.is_file() and path.read_bytes() for path in home.rglob("*")}
    assert person.jobs("--json", "enroll", "pi", "--url", receiver.url) == 0
    invited = json.loads(person.out.getvalue())
    line = next(iter(invited["without_git"].values()))
    assert "\n" not in line

    def run(line, code=0):
        done = subprocess.run(line, shell=True, cwd=here, capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    said = run(line.replace(invited["wheel_sha256"], "0" * 64), 1)
    assert "not the wheel that enroll named" in said
    assert not [*here.iterdir()]
    make, install, flags = line.partition(" -m training.fleet.install worker")
    run(f"export PIP_NO_DEPS=1 PIP_NO_INDEX=1; {make}")  # the packages are those of this environment
    assert not [*here.iterdir()]
    venv = home / ".local" / "share" / "cis490" / ".venv"
    (packages,) = venv.glob("lib/*/site-packages")
    (packages / "packages.pth").write_text(str(Path(msgspec.__file__).parents[1]))
    python = shlex.quote(str(venv / "bin" / "python"))
    same = "from training.fleet.receiver.wheel import own_wheel; print(own_wheel().sha256)"
    assert run(f"{python} -c '{same}'").strip() == invited["wheel_sha256"]

    said = run(f"{python}{install}{flags}")
    assert "a loop, as your systemd does not run here" in said
    operator = receiver.showing(None, SESAME)
    until(lambda: operator.workers()["workers"], "the worker asks")
    assert "done    start the loop" in run(f"{python}{install} --user")  # with the earlier settings
    run(f"{python}{install} --user --uninstall")
    assert {path: path.is_file() and path.read_bytes() for path in home.rglob("*")} == before


def test_the_answer_to_a_join_may_be_lost(receiver, person):
    _, request = new_request("pi")
    body = {"name": "pi", "code": person.code(), "csr": request}
    first, second = (receiver.showing(None).call("join", **body) for _ in range(2))
    assert first["ca"] == second["ca"]
    other = body | {"csr": new_request("pi")[1]}
    assert refusal(lambda: receiver.showing(None).call("join", **other)) == "join_refused"


def test_who_joins_anew_replaces_who_had_the_name_and_a_renewal_does_not(receiver, person):
    def joined():
        key, request = new_request("pi")
        body = {"name": "pi", "code": person.code(), "csr": request}
        answers = [receiver.showing(None).call("join", **body) for _ in range(2)]
        pems = [key + answer["certificate"].encode() for answer in answers]
        receiver.showing(pems[0]).call("renew", csr=new_request("pi")[1])
        for pem in pems:  # an answer may be lost, so each of them is good
            receiver.showing(pem).claim(a_capability())
        return pems[0]

    other, _ = receiver.admitted("desktop")
    first = joined()
    assert person.jobs("enroll", "pi") == 0  # a code alone puts nobody out
    receiver.showing(first).claim(a_capability())
    second = joined()
    assert refusal(lambda: receiver.showing(first).claim(a_capability())) == "certificate_revoked"
    receiver.showing(second).claim(a_capability())
    receiver.showing(other, name="desktop").claim(a_capability())
    valid = [each for each in receiver.hub.authenticator.registry.certificates() if not each.revoked_at]
    assert [each.name for each in valid] == ["desktop", "pi", "pi", "pi"]


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"--fingerprint": "sha256:" + "0" * 64}, 1, "no code was sent"),
        ({"--code": "guess"}, 1, "wrong"),
        ({"--host-id": "desktop"}, 1, "not for desktop"),
        ({"--host-id": "../etc"}, 2, "cannot be a name"),
        ({"--fingerprint": "sha256:12"}, 2, "not a fingerprint"),
        ({"--receiver-url": "https://pi.lan:84450"}, 2, "is not a receiver's address"),
        ({"--receiver-url": "https://[pi.lan]:1"}, 2, "is not a receiver's address"),
        ({"--receiver-url": "http://localhost:1"}, 2, "not an https address"),
        ({"--receiver-url": "https://localhost:1"}, 75, "cannot reach"),
    ],
)
def test_a_line_that_was_changed_joins_nobody(person, tmp_path, capsys, change, code, words, monkeypatch):
    quick = lambda url, tls: FleetClient(url, tls=tls, tries=1, timeout_s=10.0)  # noqa: E731
    monkeypatch.setattr(join, "join", lambda wish, clock: JOIN(wish, clock, quick))
    given = person.flags("pi") | change
    argv = [word for pair in given.items() for word in pair]
    assert join.main([*argv, "--tls-dir", str(tmp_path / "pi")]) == code
    assert words in said(capsys)
    assert not (tmp_path / "pi" / "client.pem").exists()


JOIN = join.join


def authority_pem(*, padded):
    """Of some authority. A reader of base64 may stop where it is padded, and overlook what follows."""
    from cryptography.hazmat.primitives.serialization import Encoding

    while True:
        pem = Signer.new().certificate.public_bytes(Encoding.PEM).decode()
        if ("=" in pem) is padded:
            return pem


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("shown", ["another", "meant another", "another meant", "meant meant", ""])
def test_no_code_travels_before_the_fingerprint_is_proven(receiver, tmp_path, shown, padded):
    """Somebody in between shows an authority of their own, also beside the right one: they hear one question."""
    asked = []
    known = {"meant": authority_pem(padded=padded), "another": authority_pem(padded=True)}

    class Impostor:
        def call(self, name, /, **given):
            asked.append(f"{name} {given}" if given else name)
            return {} if given else {"ca": "".join(known[each] for each in shown.split())}

        def close(self): ...

    meant = hashlib.sha256(ssl.PEM_cert_to_DER_cert(known["meant"])).hexdigest()
    wish = join.CertificateRequest(receiver.url, Role.HOST, "pi", "secret", meant, tmp_path / "pi")
    with pytest.raises(join.JoinError):
        join.join(wish, receiver.clock, lambda _url, _tls: Impostor())
    assert asked == ["authority"]
    assert not (tmp_path / "pi").exists()


def test_a_code_cannot_be_guessed_quickly(receiver):
    _, request = new_request("pi")
    body = {"name": "pi", "code": "guess", "csr": request}
    slugs = [refusal(lambda: receiver.showing(None).call("join", **body)) for _ in range(6)]
    assert slugs == ["join_refused"] * 5 + ["too_many_failures"]


@pytest.mark.parametrize("csr", ["", "garbage", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n"])
def test_a_request_that_is_none_uses_no_code(receiver, person, csr):
    body = {"name": "pi", "code": person.code(), "csr": csr}
    assert refusal(lambda: receiver.showing(None).call("join", **body)) == "bad_request"
    receiver.showing(None).call("join", **(body | {"csr": new_request("pi")[1]}))


def test_what_the_request_says_of_itself_is_not_taken(receiver, person):
    key, request = new_request("root")
    answer = receiver.showing(None).call("join", name="pi", code=person.code(), csr=request)
    client = receiver.showing(key + answer["certificate"].encode(), name="root")
    assert refusal(lambda: client.claim(a_capability())) == "host_mismatch"


def test_the_receiver_of_the_first_steps_is_found_in_its_own_folder(tmp_path, monkeypatch):
    """As README has it: ``--db var/jobs.db --tls``, then ``enroll`` in the same folder."""
    monkeypatch.chdir(tmp_path)
    environ = {"HOME": str(tmp_path / "home")}
    assert find_credentials(environ) is None
    Security(tmp_path / "var" / "tls", ["localhost"], SystemClock())
    assert usual_url(environ) == "https://127.0.0.1:8445"
    assert find_credentials(environ).folder == Path("var/tls")
    if os.name == "posix":
        monkeypatch.setattr(os, "geteuid", lambda: (tmp_path / "var" / "tls").stat().st_uid + 1)
        assert find_credentials(environ) is None, "somebody else's folder vouches for nothing"


def test_an_operators_laptop(person, tmp_path, capsys):
    line = person.line("--operator", "ada")
    assert "--operator" in line
    folder = tmp_path / "ada"
    assert join.main([*line, "--tls-dir", str(folder)]) == 0
    pem = (folder / "client.pem").read_bytes()
    assert person.jobs("cancel", "one", token=None, pem=pem) == 0
    assert person.jobs("certificates", "--json", token=None, pem=pem) == 0
    (row,) = json.loads(person.out.getvalue())["certificates"]
    assert (row["role"], row["name"], row["revoked_at"]) == ("operator", "ada", None)
    environ = {"CIS490_TLS_DIR": str(folder)}
    assert usual_url(environ) == person.receiver.url
    assert find_credentials(environ) is not None
    assert person.jobs("revoke", "--operator", "ada") == 0
    assert person.jobs("cancel", "two", token=None, pem=pem) == 1
    assert "was revoked" in person.err.getvalue()


def test_a_laptops_certificate_is_renewed_when_it_is_used(person, tmp_path, monkeypatch):
    folder = tmp_path / "ada"
    assert join.main([*person.line("--operator", "ada"), "--tls-dir", str(folder)]) == 0
    before = (folder / "client.pem").read_bytes()
    monkeypatch.setenv("CIS490_TLS_DIR", str(folder))
    aged(Credentials(folder), 0.7)
    client = connect(person.receiver.url, None)
    assert client.cancel("one").status == "cancelled"
    client.close()
    assert (folder / "client.pem").read_bytes() != before


def test_a_reader_joins_looks_and_changes_nothing(person, tmp_path):
    line = person.line("--reader", "prometheus")
    assert join.main([*line, "--tls-dir", str(tmp_path / "reader")]) == 0
    pem = (tmp_path / "reader" / "client.pem").read_bytes()
    assert person.jobs("list", token=None, pem=pem) == 0
    assert person.jobs("cancel", "one", token=None, pem=pem) == 1
    assert person.jobs("enroll", "--reader", "--operator", "ada") == 2
    assert person.jobs("tokens", "add", "grafana", "--reader") == 0
    assert person.jobs("cancel", "one", token=person.out.getvalue().split()[-1]) == 1


ANSWER = {"url": "https://r:1", "name": "pc", "code": "c0de" * 10, "fingerprint": "sha256:" + "5f" * 32, "role": "host"}


def test_lines_for_the_other_shells():
    line = command(ANSWER, windows=True)
    assert line.endswith(f"-HostId 'pc' -Code '{'c0de' * 10}' -Fingerprint '{ANSWER['fingerprint']}'")
    assert shlex.split(command(ANSWER, windows=False))[-3] == "c0de" * 10
    assert command(ANSWER, windows=False).startswith("sudo scripts/install-training-worker.sh ")
    laptop = command(ANSWER | {"role": "operator"}, windows=True)
    assert laptop.startswith(r".venv\Scripts\python -m training.fleet.join --operator ")


@pytest.mark.parametrize(
    "odd",
    [
        # PowerShell takes each of these for the quote that ends a text.
        *({"name": f"pc{quote}; calc; {quote}"} for quote in "'\u2018\u2019\u201a\u201b"),
        {"code": "c0de" * 5 + "\u2019; calc; \u2019"},
        {"code": 7},
        {"fingerprint": "sha256:" + "5f" * 31 + "\u2019;"},
        {"url": "https://r:1/$(calc)"},
        {"url": "https://r:1/\u2019; calc; \u2019"},
        {"url": None},
    ],
    ids=ascii,
)
@pytest.mark.parametrize("windows", [True, False])
def test_no_line_is_made_of_an_answer_that_is_not_plain(odd, windows):
    with pytest.raises(CannotError, match="do not paste") as refused:
        command(ANSWER | odd, windows=windows)
    assert refused.value.code == 1
    assert str(refused.value).isascii()
    assert f"odd {next(iter(odd))}" in str(refused.value)


def test_no_line_is_printed_that_would_not_join(person):
    assert person.jobs("enroll", "pi", "--url", "http://pi.lan:8445") == 2
    assert person.out.getvalue() == ""
    assert "begins with https://" in person.err.getvalue()
    assert person.jobs("enroll", "pi", "--url", "https://pi.lan\u2019; calc") == 2
    assert person.out.getvalue() == ""


def test_who_has_not_joined_is_told_how(person, tmp_path, monkeypatch):
    monkeypatch.setenv("CIS490_TLS_DIR", str(tmp_path / "nothing"))
    world = CommandContext(out=io.StringIO(), err=(err := io.StringIO()), environ={})
    assert program.main(["status", "--receiver-url", person.receiver.url], context=world) == 75
    assert "has not joined" in err.getvalue()
    assert f"`cis490-jobs enroll --receiver-url {person.receiver.url}` there" in err.getvalue()


def test_tokens_come_and_go(person):
    assert person.jobs("tokens", "add", "ada", "--days", "1") == 0
    token = person.out.getvalue().strip()
    operator = person.receiver.showing(None, token)
    assert operator.cancel("one").status == "cancelled"
    assert person.jobs("tokens", "list") == 0
    assert "ada" in person.out.getvalue()
    assert token not in person.out.getvalue()
    assert person.jobs("tokens", "revoke", "ada") == 0
    with pytest.raises(Refused):
        operator.requeue("one")
    assert person.jobs("tokens", "revoke", "ada") == 1
    assert "no valid token" in person.err.getvalue()


def test_wrong_tokens_are_counted_and_then_not_looked_at(receiver):
    slugs = [refusal(partial(receiver.showing(None, guess).cancel, "one")) for guess in [*"abcde", SESAME]]
    assert slugs == ["operator_token"] * 5 + ["too_many_failures"]
    receiver.clock.advance(61)
    assert receiver.showing(None, SESAME).cancel("one").status == "cancelled"


def test_a_right_token_that_nobody_can_guess_is_not_shut_out_by_wrong_ones(receiver):
    token = receiver.showing(None, SESAME).call("add_token", name="ada")["token"]
    wrong = f"{token[:-1]}{'a' if token[-1] == 'b' else 'b'}"
    slugs = [refusal(lambda: receiver.showing(None, wrong).cancel("one")) for _ in range(6)]
    assert slugs == ["operator_token"] * 5 + ["too_many_failures"]
    assert receiver.showing(None, token).cancel("one").status == "cancelled"


def test_an_invitation_says_that_a_known_name_differs_by_case_only(receiver):
    operator = receiver.showing(None, SESAME)
    receiver.service.host_registry.put(KnownHost("Desk", {}, 1.0, 1.0))
    note = operator.call("invite", name="desk")["note"]
    assert note.startswith("host Desk is known, and desk differs from it by case only")
    for name in ("Desk", "pi"):
        assert "differs" not in (operator.call("invite", name=name)["note"] or "")
    assert "differs" not in (operator.call("invite", name="desk", role="operator")["note"] or "")


def test_a_receiver_without_tls_has_nothing_to_join(tmp_path):
    from receiver_running import running

    with running(tmp_path) as receiver:
        assert refusal(lambda: receiver.client().call("invite", name="pi")) == "no_authority"
        assert refusal(lambda: receiver.client().call("authority")) == "no_authority"


# -- the worker -------------------------------------------------------------------------------------------------


@pytest.fixture
def member(receiver, person, tmp_path):
    folder = tmp_path / "pi"
    assert join.main([*person.line("pi"), "--tls-dir", str(folder)]) == 0
    return Credentials(folder)


@pytest.fixture
def events():
    return []


@pytest.fixture
def keeper(receiver, member, events):
    kept = CertificateKeeper(
        member,
        receiver.url,
        receiver.clock,
        on_renewed=lambda: events.append("renewed"),
        on_revoked=lambda _: events.append("revoked"),
    )
    yield kept
    kept.close()


def aged(member, share):
    """Make the certificate look as if this share of its life were over."""
    path = member.folder / "identity.json"
    known = json.loads(path.read_text())
    path.write_text(json.dumps(known | {"received_at": known["received_at"] - known["valid_s"] * share}))


def test_renewed_at_two_thirds_of_its_life(receiver, member, keeper, events):
    pem = (member.folder / "client.pem").read_bytes()
    for share, told in ((0.66, []), (0.01, ["renewed"]), (0.0, ["renewed"])):
        aged(member, share)
        assert keeper.look()
        assert events == told
    assert (member.folder / "client.pem").read_bytes() != pem
    assert len(receiver.hub.authenticator.registry.certificates()) == 2


def test_a_worker_that_was_put_out_is_told(receiver, keeper, events):
    assert keeper.look()
    receiver.showing(None, SESAME).call("revoke", name="pi")
    keeper._transport.wait_for_hangup(20)  # the receiver cut the quiet connection
    assert not keeper.look()
    assert events == ["revoked"]


def options(receiver, member, *more):
    argv = ["--receiver-url", receiver.url, "--host-id", "pi", "--tls-dir", str(member.folder)]
    argv += ["--state-dir", str(member.folder / "state"), *more]
    return options_of(parser().parse_args(argv))


def test_a_worker_stops_when_it_is_revoked(receiver, member):
    """Its loop ends by itself, without a heartbeat being due."""
    import threading

    receiver.queue.cancel(receiver.plan[0]["job_id"])
    receiver.queue.cancel(receiver.plan[1]["job_id"])
    daemon = TrainerWorker(options(receiver, member), capability=lambda: a_capability())
    codes = []
    thread = threading.Thread(target=lambda: codes.append(daemon.run()))
    thread.start()
    assert receiver.room.waiting.acquire(timeout=20)
    receiver.showing(None, SESAME).call("revoke", name="pi")
    thread.join(20)
    assert not thread.is_alive()
    assert codes[0] in (0, 2)
    # What was on its way when it ended must be over, so that nothing is left open behind the test.
    for each in [each for each in threading.enumerate() if each.name == "call"]:
        each.join(20)
    daemon._standing._thread.join(20)
    daemon._reconnect()
    daemon._standing.close()


@pytest.mark.parametrize(
    ("more", "words"), [(["--host-id", "desktop"], "is pi's"), (["--tls-dir", "nowhere"], "holds no certificate")]
)
def test_a_worker_without_its_certificate_says_so(receiver, member, more, words):
    with pytest.raises(ValueError, match=words):
        options(receiver, member, *more)


def test_damaged_certificates_are_one_sentence(receiver, member, capsys):
    from training.fleet.worker import daemon

    (member.folder / "client.pem").write_bytes(b"garbage")
    argv = ["--receiver-url", receiver.url, "--host-id", "pi", "--tls-dir", str(member.folder)]
    assert daemon.main([*argv, "--state-dir", str(member.folder / "state")]) == 2
    assert "enroll this machine again" in said(capsys)


def test_a_build_in_the_clone_changes_no_wheel(tmp_path, monkeypatch):
    left = tmp_path / "cis490_training_fleet.egg-info"
    left.mkdir()
    (left / "PKG-INFO").write_text("Name: cis490-training-fleet\nVersion: 9\n")
    monkeypatch.syspath_prepend(tmp_path)
    made = wheel.own_wheel.__wrapped__()
    assert (made.name, made.sha256) == (wheel.own_wheel().name, wheel.own_wheel().sha256)
    assert "-9-" not in made.name


def test_a_wheel_of_changed_sources_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(wheel, "ROOT", tmp_path)
    assert wheel._note() == "git cannot say whether the receiver's clone, and so the wheel, has uncommitted changes"
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    (tmp_path / "README.md").write_text("not in the wheel")
    assert wheel._note() is None
    (tmp_path / "constraints.txt").write_text("torch==1")
    assert wheel._note() == "the wheel has uncommitted changes of the receiver's clone, in 1 file"
