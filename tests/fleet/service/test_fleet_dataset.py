"""Data sets on their way from a folder to the receiver and on to workers, whole, and no byte more often than needed."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import random
from pathlib import Path

import pytest
from conformance.memory_fs import MemoryFs, PowerCut
from hypothesis import given
from hypothesis import strategies as st
from receiver_running import Wire, running
from recovery_builders import state_in
from systems import make_link

from training.clock import SystemClock
from training.fleet.cli.context import CommandContext
from training.fleet.cli.program import main
from training.fleet.client import push as client_push
from training.fleet.client.client import ClientError, FleetClient, Refused, Unavailable
from training.fleet.client.push import FolderError, push, read_folder
from training.fleet.client.transport import HttpTransport, TransportError
from training.fleet.recovery.backup import Backup, Restore
from training.fleet.service.hosts import Plan
from training.fleet.store.datasets import DatasetStore
from training.fleet.store.errors import StoreError
from training.fleet.wire.chunking import FINE
from training.fleet.wire.dataset_listing import (
    CHUNK_BYTES,
    FILES_MAX,
    BadListing,
    Catalogue,
    File,
    Listing,
    UnknownDataset,
    batch,
    batched,
    check_paths,
    cut,
    pack,
    parse,
)

PIECE = FINE.most  # of bytes without a mark
QUIET = lambda done, whole: None  # noqa: E731 - a progress that nobody watches


def a_folder(root, **files):
    """A data set's folder; ``__`` in a name stands for a slash, ``_d_`` for a dot."""
    for name, content in files.items():
        path = root / name.replace("__", "/").replace("_d_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def block(letter, count=1):
    """Bytes that differ from piece to piece, and have no mark: their pieces are as large as can be."""
    return random.Random(letter).randbytes(int(PIECE * count)).replace(b"\xa5", b".")


def lengths_of(listing):
    """The pieces with their lengths, in the order of first places."""
    return {place.sha256: place.length for place in listing.distinct()}


@pytest.fixture
def folder(tmp_path):
    return a_folder(
        tmp_path / "processed",
        summary_d_parquet=block("a") + block("b") + block("c", 0.5),
        tensors__t_d_npy=block("d", 1.25),
        empty_d_json=b"",
        _d_cache__left_out=b"not part of it",
    )


@pytest.fixture
def receiver(tmp_path):
    with running(a_folder(tmp_path / "receiver", note=b"")) as receiver:
        yield receiver


# -- listings ---------------------------------------------------------------------------------------------------


ZERO = "0" * 64 + "000005"  # a piece of five bytes


def a_listing(*, old=False, **changes):
    entry = {"path": "a.npy", "pieces": ["0" * 64] if old else ZERO, "size": 5} | changes
    whole = {"files": [entry]} | ({"format": 1, "piece_bytes": CHUNK_BYTES} if old else {"format": 2})
    return json.dumps(whole, sort_keys=True, separators=(",", ":")).encode()


def test_a_listing_says_what_a_folder_holds(folder):
    listing = read_folder(folder, QUIET)
    assert [file.path for file in listing.files] == ["empty.json", "summary.parquet", "tensors/t.npy"]
    assert listing.size == PIECE * 3.75
    assert len(lengths_of(listing)) == 5
    assert parse(listing.document) == listing
    assert read_folder(folder, QUIET).dataset_id == listing.dataset_id


def test_equal_files_are_equal_data_sets_and_a_changed_one_is_another(tmp_path):
    one = read_folder(a_folder(tmp_path / "one", b=b"2", a=b"1"), QUIET)
    assert one.dataset_id == read_folder(a_folder(tmp_path / "two", a=b"1", b=b"2"), QUIET).dataset_id
    assert one.dataset_id != read_folder(a_folder(tmp_path / "six", a=b"1", b=b"3"), QUIET).dataset_id


HOSTILE = [
    "../x", "a/../b", "/etc/passwd", "C:/x", "C:x", "a\\b", "\\\\host\\x", "a//b", "./a", "a/", "", ".", "..",
    ".hidden", "a/.ssh/x", "con", "a/NUL.txt", "com1.npy", "a.", "a ", " a", "a\x00b", "a\nb", "ä", "a:b", "a*",
    "~", "$HOME", "-rf", "x" * 101, "/".join("abcdefghij"), "/".join(["x" * 60] * 5),
]  # fmt: skip


@pytest.mark.parametrize("path", HOSTILE)
def test_hostile_paths_are_refused(path):
    with pytest.raises(BadListing):
        parse(a_listing(path=path))


@pytest.mark.parametrize(
    "paths", [("a", "a"), ("A", "a"), ("a", "a/b"), ("a/b", "a"), ("A/x", "a/y"), ("x/B/c", "x/b")]
)
def test_paths_that_would_meet_are_refused(paths):
    with pytest.raises(BadListing, match="would be one file"):
        check_paths(paths)


@pytest.mark.parametrize(
    "document",
    [
        b"", b"{", b"[]", b"null", b"[" * 100_000, b"\xff\xfe", b'{"files":[],"format":2}',
        b'{"files":[],"format":1,"piece_bytes":1048576}',
        a_listing(size=-1), a_listing(size=True), a_listing(size=5.0), a_listing(size=2**63), a_listing(size=6),
        a_listing(size=0), a_listing(pieces=ZERO[1:]), a_listing(pieces=ZERO.replace("5", "F")),
        a_listing(pieces=[ZERO]), a_listing(pieces=None), a_listing(pieces="zz" * 35), a_listing(pieces=ZERO + " "),
        a_listing(pieces="0" * 70, size=0), a_listing(pieces="0" * 64 + "100001", size=CHUNK_BYTES + 1),
        a_listing(link="/etc/passwd"), a_listing(path=None), a_listing(path=["a"]),
        a_listing() + b" ", a_listing().replace(b'"format":2', b'"format":3'),
        a_listing().replace(b'"format":2', b'"format":true'), a_listing().replace(b'"size":5', b'"size":5,"size":5'),
        a_listing().replace(b'"size":5', b'"size":' + b"9" * 5000),
        a_listing().replace(b'"format":2', b'"format":2,"piece_bytes":1048576'),
        a_listing(old=True, size=CHUNK_BYTES + 1), a_listing(old=True, size=0), a_listing(old=True, pieces="0" * 64),
        *(a_listing(old=True, pieces=[odd]) for odd in ("0" * 63, "F" * 64, None)),
        a_listing(old=True).replace(b"1048576", b"1"), a_listing(old=True).replace(b'"format":1', b'"format":2'),
    ],
)  # fmt: skip
def test_what_is_no_listing_is_refused(document):
    with pytest.raises(BadListing):
        parse(document)


def test_a_listing_of_too_many_files_is_refused(monkeypatch):
    few = tuple(File(f"f{n:05}", 0, b"") for n in range(FILES_MAX + 1))
    with pytest.raises(BadListing, match="10,000 files"):
        parse(Listing(few).document)
    with pytest.raises(BadListing, match="10,000 files"):
        parse(Listing(few).document.replace(b'"path":', b'"path" :'))
    assert parse(Listing(few[1:]).document) == Listing(few[1:])
    # A million as Python's objects take half a GiB: they are counted before.
    monkeypatch.setattr("msgspec.json.decode", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(BadListing, match=r"not 1,000,000$"):
        parse(b'{"files":[%b],"format":2}' % (b'{"path":"f","pieces":"","size":0},' * 1_000_000)[:-1])


def test_one_piece_has_one_length():
    files = (pack("a", [(bytes(32), 5)]), pack("b", [(bytes(32), 6)]))
    with pytest.raises(BadListing, match="two lengths"):
        parse(Listing(files).document)


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_no_document_is_a_traceback(document):
    with pytest.raises(BadListing):
        parse(document)


@given(st.lists(st.lists(st.integers(0, 30), max_size=6), min_size=1, max_size=4))
def test_a_listing_knows_its_pieces_by_place_and_by_name(drawn):
    """Pieces of few kinds, so that many are repeated, are found as a plain look through all finds them."""
    files = [
        pack(f"f{n}", [(hashlib.sha256(bytes([k])).digest(), k + 1) for k in some]) for n, some in enumerate(drawn)
    ]
    listing = parse(Listing(tuple(files)).document)
    places, end = list(listing.places()), {file.path: 0 for file in files}
    for place in places:
        assert place.offset == end[place.path]
        end[place.path] += place.length
    assert end == {file.path: file.size for file in files}
    first = {place.sha256: place for place in reversed(places)}
    assert list(listing.distinct()) == [place for place in places if first[place.sha256] == place]
    assert listing.distinct_count == len(first)
    for k in range(31):
        sha256 = hashlib.sha256(bytes([k])).hexdigest()
        there = first.get(sha256)
        assert listing.place_of(sha256) == there
        assert listing.length_of(sha256) == (None if there is None else there.length)
    assert listing.length_of("no digest") is None


def test_a_name_an_id_and_a_prefix_mean_a_data_set():
    one, two, six = "a" * 64, "a" * 63 + "b", "6" * 64
    known = Catalogue(frozenset({one, two, six}), {"processed": one, "666666": two})
    assert known.resolve(one) == known.resolve("processed") == one
    assert known.resolve("666666") == two, "a name goes before a prefix"
    assert known.resolve("66666666") == six
    for nothing in ("aaaaaaaa", "66666", "other", "", "b" * 64):
        with pytest.raises(UnknownDataset):
            known.resolve(nothing)


# -- folders ----------------------------------------------------------------------------------------------------


def test_a_folder_with_a_link_is_refused(folder):
    make_link(folder / "passwd", Path("/etc/passwd"))
    with pytest.raises(FolderError, match="is a link"):
        read_folder(folder, QUIET)


@pytest.mark.parametrize("name", ["a b", "con.npy", "ä.npy"])
def test_a_folder_that_no_other_system_could_hold_is_refused(folder, name):
    with contextlib.suppress(OSError):  # this may be the system that cannot hold it
        (folder / name).write_bytes(b"x")
    if not (folder / name).exists():
        pytest.skip("no such file can be made here")
    with pytest.raises(FolderError):
        read_folder(folder, QUIET)


def test_what_is_no_folder_is_refused(tmp_path):
    for path in (tmp_path / "nothing", a_folder(tmp_path / "x", f=b"").joinpath("f")):
        with pytest.raises(FolderError, match="not a folder"):
            read_folder(path, QUIET)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FolderError, match="no file"):
        read_folder(tmp_path / "empty", QUIET)


# -- pushing ----------------------------------------------------------------------------------------------------


def pushed(client, folder, name="processed"):
    """The data set's id, and the bytes of pieces that travelled."""
    view, sent = push(client.datasets, folder, read_folder(folder, QUIET), name, QUIET)
    return str(view["dataset_id"]), sent


def test_a_second_push_sends_nothing_and_a_change_sends_its_pieces(receiver, folder):
    client = receiver.client()
    first, sent = pushed(client, folder)
    assert sent == PIECE * 3.75
    assert pushed(client, folder) == (first, 0)
    changed = bytearray((folder / "summary.parquet").read_bytes())
    changed[PIECE + 7] ^= 1
    (folder / "summary.parquet").write_bytes(changed)
    second, sent = pushed(client, folder)
    assert second != first
    assert sent == PIECE, "the piece that changed"
    rows = client.datasets.datasets()["datasets"]
    assert {row["dataset_id"]: row["names"] for row in rows} == {first: [], second: ["processed"]}
    assert rows[0]["size"] == PIECE * 3.75
    assert [entry["act"] for entry in client.call("audit")["entries"]] == ["dataset_push"] * 3


class Cut:
    """A network that fails the n-th request of a push, before or after it had its effect."""

    def __init__(self, url, at, *, after=False):
        self._inner, self._left, self._after = HttpTransport(url), at, after
        self.sent = []

    def request(self, method, path, *rest):
        self._left -= 1
        if self._left == 0 and not self._after:
            raise TransportError("cut")
        answer = self._inner.request(method, path, *rest)
        self.sent.append(f"{method} {path}")
        if self._left == 0:
            raise TransportError("cut")
        return answer

    def close(self):
        self._inner.close()


@pytest.mark.half
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(1, 9))
def test_a_push_that_was_cut_goes_on(receiver, folder, at, after, monkeypatch):
    monkeypatch.setattr(client_push, "PUSH_TRIES", 1)
    monkeypatch.setattr(client_push, "together", lambda pieces, _: ([each] for each in pieces))
    token = receiver.hub.settings.operator_token
    listing = read_folder(folder, QUIET)
    broken = Cut(receiver.url, at, after=after)
    client = FleetClient(receiver.url, operator_token=token, transport=broken, tries=1)
    with pytest.raises(ClientError):
        push(client.datasets, folder, listing, "processed", QUIET)
    there = len([path for path in broken.sent if "/piece/" in path])
    again = Cut(receiver.url, 0)
    client = FleetClient(receiver.url, operator_token=token, transport=again, tries=1)
    push(client.datasets, folder, listing, "processed", QUIET)
    assert len([path for path in again.sent if "/piece/" in path]) == 5 - there
    broken.close()
    again.close()


def test_many_small_files_travel_together(receiver, tmp_path):
    many = {f"small{n:03}": b"x" * n for n in range(1, 601)}
    folder, token = a_folder(tmp_path / "many", **many), receiver.hub.settings.operator_token
    listing, wire = read_folder(folder, QUIET), Cut(receiver.url, 0)
    client = FleetClient(receiver.url, operator_token=token, transport=wire, tries=1)
    _, sent = push(client.datasets, folder, listing, "many", QUIET)
    assert sent == sum(map(len, many.values()))
    assert [path.rpartition("/")[2] for path in wire.sent] == [
        listing.dataset_id, "pieces", "pieces", "pieces", listing.dataset_id, "publish",
    ]  # fmt: skip
    for sha256 in lengths_of(listing):
        assert len(client.datasets.piece(listing.dataset_id, sha256)) == lengths_of(listing)[sha256]
    wire.close()


@pytest.mark.parametrize("wrong", ["another", "short", "cut", "too many", "no piece of it"])
def test_of_pieces_that_come_together_all_are_taken_or_none(receiver, tmp_path, wrong):
    folder = a_folder(tmp_path / "many", a=b"aaaa", b=b"bb", c=b"c")
    calls, listing = receiver.client().datasets, read_folder(folder, QUIET)
    calls.announce(listing)
    good = [(hashlib.sha256(each).hexdigest(), each) for each in (b"aaaa", b"bb", b"c")]
    body = {
        "another": batch([*good[:2], (good[2][0], b"d")]),
        "short": batch([*good[:2], (good[2][0], b"")]),
        "cut": batch(good)[:-1],
        "too many": batch(good * 86),
        "no piece of it": batch([*good, (hashlib.sha256(b"d").hexdigest(), b"d")]),
    }[wrong]
    with pytest.raises(Refused):
        calls._put(f"/v1/dataset/{listing.dataset_id}/pieces", body, 1, answers=False)
    assert set(calls.announce(listing)["missing"]) == {sha256 for sha256, _ in good}
    calls.bring(listing.dataset_id, good)
    assert calls.announce(listing)["missing"] == []


@given(st.lists(st.binary(max_size=300), max_size=8))
def test_pieces_come_out_of_a_body_as_they_went_in(contents):
    pieces = [(hashlib.sha256(each).hexdigest(), each) for each in contents]
    assert batched(batch(pieces)) == pieces


@given(st.binary(max_size=200))
def test_no_body_of_pieces_is_a_traceback(body):
    with contextlib.suppress(BadListing):
        assert batch(batched(body)) == body


def test_limits_are_told_before_a_byte_is_read(tmp_path, monkeypatch):
    def reads(*_):
        raise AssertionError("a file was read")

    monkeypatch.setattr(client_push, "_read_all", reads)
    large = a_folder(tmp_path / "large", file=b"")
    os.truncate(large / "file", 300 * 1024**3)
    with pytest.raises(FolderError, match="at most 256 GiB, not 300"):
        read_folder(large, QUIET)
    many = tmp_path / "many"
    many.mkdir()
    for n in range(FILES_MAX + 1):
        (many / f"f{n}").touch()
    with pytest.raises(FolderError, match="more than 10,000 files"):
        read_folder(many, QUIET)


def test_a_folder_that_cannot_be_read_is_named(folder, monkeypatch):
    entries = Path.iterdir

    def refuses(path):
        if path.name == "tensors":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return entries(path)

    monkeypatch.setattr(Path, "iterdir", refuses)
    with pytest.raises(FolderError, match=r"tensors cannot be read \(Permission denied\): make it readable"):
        read_folder(folder, QUIET)


def test_a_piece_with_a_flipped_bit_is_refused(receiver, folder):
    calls, listing = receiver.client().datasets, read_folder(folder, QUIET)
    calls.announce(listing)
    sha256 = next(iter(lengths_of(listing)))
    for wrong in (b"short", block("z")):
        with pytest.raises(Refused) as refused:
            calls.bring(listing.dataset_id, [(sha256, wrong)])
        assert refused.value.problem_type == "wrong_digest"
    with pytest.raises(Refused) as refused:
        calls.bring(listing.dataset_id, [("0" * 64, b"not part of it")])
    assert refused.value.problem_type == "unknown_dataset"
    with pytest.raises(Refused) as refused:
        calls.publish(listing.dataset_id, "processed")
    assert refused.value.problem_type == "incomplete_dataset"
    assert calls.datasets()["datasets"] == []


def test_a_file_that_changes_while_it_is_pushed_is_told(receiver, folder):
    listing = read_folder(folder, QUIET)
    (folder / "tensors/t.npy").write_bytes(block("e", 1.25))
    with pytest.raises(FolderError, match="changed while it was pushed"):
        push(receiver.client().datasets, folder, listing, None, QUIET)


def test_a_file_that_shrinks_while_it_is_read_or_when_all_is_sent_is_told(receiver, folder):
    calls, path = receiver.client().datasets, folder / "tensors/t.npy"
    with pytest.raises(FolderError, match="changed while it was read"):
        read_folder(folder, lambda *_: os.truncate(path, 1))
    listing = read_folder(folder, QUIET)
    with pytest.raises(FolderError, match="changed while it was pushed"):
        push(calls, folder, listing, None, lambda sent, whole: sent < whole or os.truncate(path, 0))
    assert calls.datasets()["datasets"] == []


def test_pieces_that_rot_on_the_receiver_are_refused_and_mended_by_a_push(receiver, folder):
    client = receiver.client()
    dataset_id, _ = pushed(client, folder)
    sha256 = next(iter(lengths_of(read_folder(folder, QUIET))))
    path = receiver.folder / "datasets" / "pieces" / sha256[:2] / sha256
    rotten = bytearray(path.read_bytes())
    rotten[5] ^= 4
    path.write_bytes(rotten)
    with pytest.raises(Refused) as refused:
        client.datasets.piece(dataset_id, sha256)
    assert refused.value.problem_type == "incomplete_dataset"
    assert pushed(client, folder) == (dataset_id, PIECE)
    assert hashlib.sha256(client.datasets.piece(dataset_id, sha256)).hexdigest() == sha256


def test_a_full_disk_takes_no_data_set(receiver, folder):
    receiver.disk.free = 256 * 1024**2 + 2 * PIECE
    with pytest.raises(Unavailable) as refused:
        receiver.client().datasets.announce(read_folder(folder, QUIET))
    assert (refused.value.status, refused.value.problem_type) == (507, "disk_full")
    receiver.disk.free = 10**12
    assert pushed(receiver.client(), folder)[1] == PIECE * 3.75


def test_bodies_have_a_limit(receiver):
    token = {"X_Operator_Token": receiver.hub.settings.operator_token}
    with Wire(receiver) as wire:
        body = b"x" * (CHUNK_BYTES + 1)
        wire.request("PUT", f"/v1/dataset/{'0' * 64}/piece/{'0' * 64}", body, **token)
        assert wire.problem() == (413, "too_large")


def planned(receiver, plan):
    """As a reload does."""
    receiver.writer.submit(lambda: receiver.service.reload(receiver.plan, plan)).result()


# -- who may what -----------------------------------------------------------------------------------------------


def test_only_operators_push(receiver, folder):
    dataset_id, _ = pushed(receiver.client(), folder)
    calls, listing = receiver.client(token=None).datasets, read_folder(folder, QUIET)
    for call in (
        lambda: calls.announce(listing),
        lambda: calls.bring(dataset_id, [(next(iter(lengths_of(listing))), b"")]),
        lambda: calls.publish(dataset_id, "mine"),
        lambda: calls.remove(dataset_id),
    ):
        with pytest.raises(Refused) as refused:
            call()
        assert refused.value.problem_type == "operator_token"


def test_odd_ids_are_refused_and_reach_no_file(receiver):
    calls = receiver.client().datasets
    for odd in ("0" * 64, "..", "%2e%2e%2fjobs.db", "A" * 64, "x"):
        with pytest.raises(Refused) as refused:
            calls.listing(odd)
        assert refused.value.problem_type in ("unknown_dataset", "bad_request", "not_found")


def test_a_data_set_that_the_plan_names_is_not_removed(receiver, folder):
    client = receiver.client()
    dataset_id, _ = pushed(client, folder)
    a_folder(folder, empty_d_json=b"not any more")
    other, _ = pushed(client, folder)
    planned(receiver, Plan(datasets={dataset_id: frozenset()}))
    with pytest.raises(Refused) as refused:
        client.datasets.remove(dataset_id)
    assert refused.value.problem_type == "wrong_state"
    newest = client.datasets.datasets()["datasets"]
    (name,) = next(each["names"] for each in newest if each["dataset_id"] == other)
    planned(receiver, Plan(datasets={dataset_id: frozenset()}, dataset_names={name: dataset_id}))
    with pytest.raises(Refused, match=f"name the data set {name}; change the plan"):
        client.datasets.remove(other)
    planned(receiver, Plan(datasets={dataset_id: frozenset()}))
    assert client.datasets.remove(other)["freed"] == len(b"not any more")
    assert [row["dataset_id"] for row in client.datasets.datasets()["datasets"]] == [dataset_id]
    planned(receiver, Plan())
    assert client.datasets.remove(dataset_id)["freed"] == PIECE * 3.75
    assert list((receiver.folder / "datasets" / "pieces").rglob("*" * 1 + "?" * 63)) == []


def test_the_sweep_takes_what_nobody_lists(receiver, folder):
    calls, dataset_store = receiver.client().datasets, receiver.hub.datasets
    dataset_id, _ = pushed(receiver.client(), folder)
    a_folder(folder, more=block("m"))
    draft = read_folder(folder, QUIET)
    calls.announce(draft)
    calls.bring(draft.dataset_id, [(draft.files[1].pieces[0], block("m"))])
    assert dataset_store.sweep(0.0) == 0, "a push that is under way is left alone"
    assert dataset_store.sweep(1e12) == 2, "the draft, and the piece that it alone lists"
    dataset_store.publish(dataset_id, "still-whole", 0.0)


# -- a disk that fails, and power that goes ---------------------------------------------------------------------

SMALL = {"a": b"first", "b/c": b"second", "d": b"third", "e": b"first"}
LISTING = Listing(tuple(cut(path, [content]) for path, content in SMALL.items()))
CONTENT = {cut("x", [content]).pieces[0]: content for content in SMALL.values()}
ROOT = Path("/datasets")


def push_to(dataset_store, acknowledged):
    """A whole push, noting what the receiver would have acknowledged."""
    missing = dataset_store.begin(LISTING.dataset_id, LISTING.document).missing
    for group in (missing[:1], missing[1:]):  # one alone, the others in one request
        if group:
            dataset_store.put(LISTING.dataset_id, [(sha256, CONTENT[sha256]) for sha256 in group])
            acknowledged.update(group)
    dataset_store.publish(LISTING.dataset_id, "small", 7.0)
    acknowledged.add("published")


def test_the_size_of_a_data_set_is_known_while_it_is_here():
    dataset_store = DatasetStore(ROOT, MemoryFs())
    assert dataset_store.size_of(LISTING.dataset_id) is None
    assert dataset_store.size_of("../odd") is None
    push_to(dataset_store, set())
    assert dataset_store.size_of(LISTING.dataset_id) == LISTING.size


def check_whole(fs):
    dataset_store = DatasetStore(ROOT, fs)
    dataset_store.sweep(1e12)
    (shelved,) = dataset_store.sets()
    assert (shelved.names, shelved.about.pushed_at) == (("small",), 7.0)
    assert dataset_store.listing(LISTING.dataset_id) == LISTING.document
    for sha256, content in CONTENT.items():
        assert dataset_store.piece(LISTING.dataset_id, sha256) == content
    assert dataset_store.sweep(1e12) == 0, "nothing that came back, or was put aside, is left"


def operations():
    fs = MemoryFs()
    push_to(DatasetStore(ROOT, fs), set())
    return fs.operations


@pytest.mark.parametrize("seed", range(3))
def test_what_was_acknowledged_survives_a_power_cut_anywhere(seed):
    for n in range(1, operations() + 1):
        fs, acknowledged = MemoryFs(), set[str]()
        fs.fail_at, fs.failure = n, PowerCut()
        with pytest.raises(PowerCut):
            push_to(DatasetStore(ROOT, fs), acknowledged)
        fs = fs.after_power_cut(random.Random(seed * 1000 + n))
        dataset_store = DatasetStore(ROOT, fs)
        if "published" in acknowledged:
            check_whole(fs)
        assert dataset_store.catalogue().names.keys() <= {"small"}
        missing = set(dataset_store.begin(LISTING.dataset_id, LISTING.document).missing)
        assert not missing & acknowledged, "what was acknowledged does not travel again"
        push_to(dataset_store, set())
        check_whole(fs)


@pytest.mark.parametrize("first", [PowerCut(), OSError(errno.EIO, "I/O")], ids=["killed", "failed"])
def test_what_a_killed_receiver_left_undone_is_done_before_it_is_acknowledged(first):
    """The process ends, or the disk fails once; it goes on with the same disk; then the power goes."""
    chance = random.Random(22)
    for n in range(1, operations() + 1):
        for m in range(2, 40, 7):
            fs, acknowledged = MemoryFs(), set[str]()
            fs.fail_at, fs.failure = n, first
            with contextlib.suppress(PowerCut, StoreError):
                push_to(DatasetStore(ROOT, fs), set())
            fs.fail_at, fs.failure = m, PowerCut()
            with contextlib.suppress(PowerCut):
                push_to(DatasetStore(ROOT, fs), acknowledged)
            fs = fs.after_power_cut(chance)
            if "published" in acknowledged:
                check_whole(fs)
            push_to(DatasetStore(ROOT, fs), set())
            check_whole(fs)


@pytest.mark.parametrize("for_ever", [False, True], ids=["once", "for ever"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_disk_that_fails_anywhere_loses_nothing(error, for_ever):
    for n in range(1, operations() + 1):
        fs = MemoryFs()
        fs.fail_at, fs.for_ever, fs.failure = n, for_ever, OSError(error, os.strerror(error))
        with pytest.raises(StoreError):
            push_to(DatasetStore(ROOT, fs), set())
        fs.heal()
        push_to(DatasetStore(ROOT, fs), set())
        check_whole(fs)


# -- the commands -----------------------------------------------------------------------------------------------


def run(receiver, *argv):
    out, err = io.StringIO(), io.StringIO()
    world = CommandContext(
        connect=lambda url, token: receiver.client(token=token),
        out=out,
        err=err,
        environ={"CIS490_OPERATOR_TOKEN": "plain"},
    )
    return main(["--receiver-url", receiver.url, *argv], context=world), out.getvalue(), err.getvalue()


def test_the_commands_push_list_and_remove(tmp_path, folder):
    with running(a_folder(tmp_path / "receiver", note=b""), operator_token="plain") as receiver:
        code, out, _ = run(receiver, "dataset", "push", str(folder))
        assert (code, "960.0 KiB in 3 files" in out, "960.0 KiB of them sent" in out) == (0, True, True), out
        assert "0 B of them sent" in run(receiver, "dataset", "push", str(folder))[1]
        assert "processed" in run(receiver, "dataset", "list")[1]
        found = json.loads(run(receiver, "dataset", "list", "--json")[1])["datasets"]
        assert found[0]["names"] == ["processed"]
        first = found[0]["dataset_id"]
        a_folder(folder, empty_d_json=b"not any more")
        out = run(receiver, "dataset", "push", str(folder))[1]
        assert f"processed was {first[:12]}, which stays under its id" in out
        assert "reload" not in out, "the plan names no data set"
        run(receiver, "dataset", "push", str(folder), "--name", "again")
        code, out, _ = run(receiver, "dataset", "remove", "again")
        assert (code, "is also called processed" in out) == (0, True), out
        second = json.loads(run(receiver, "dataset", "list", "--json")[1])["datasets"][0]
        assert second["names"] == ["processed"], "the data stay under the other name"
        calls = receiver.client("desk", "plain").datasets
        with pytest.raises(Refused, match="is the only name"):
            calls.unname(second["dataset_id"], "processed")
        with pytest.raises(Refused, match="is not called"):
            calls.unname(first, "processed")
        run(receiver, "dataset", "push", str(folder), "--name", "again")
        second = json.loads(run(receiver, "dataset", "list", "--json")[1])["datasets"][0]
        out = run(receiver, "dataset", "remove", second["dataset_id"])[1]
        assert f"again, processed ({second['dataset_id'][:12]}) is gone" in out
        code, _, err = run(receiver, "dataset", "push", str(folder), "--name", "No Name")
        assert (code, "cannot name a data set" in err) == (2, True)
        code, _, err = run(receiver, "dataset", "push", str(tmp_path / "nowhere"), "--name", "x")
        assert (code, "is not a folder" in err) == (1, True)
        code, _, err = run(receiver, "dataset", "push", "")
        assert (code, "name the folder" in err) == (2, True), "not the folder one is in"
        code, _, err = run(receiver, "dataset", "remove", "nobody")
        assert (code, "there is no data set" in err) == (1, True)
        assert "is gone" in run(receiver, "dataset", "remove", found[0]["dataset_id"][:8])[1]
        assert "none; `cis490-jobs dataset push" in run(receiver, "dataset", "list")[1]


# -- backups ----------------------------------------------------------------------------------------------------


def test_a_backup_holds_the_data_sets_and_a_restore_brings_them_back(receiver, folder, tmp_path):
    dataset_id, _ = pushed(receiver.client(), folder)
    backup = Backup(tmp_path / "backup")
    made = [backup.make(state_in(receiver.folder), SystemClock()) for _ in range(2)]
    listing = len(DatasetStore(receiver.folder / "datasets").listing(dataset_id))
    assert [each.dataset_bytes for each in made] == [PIECE * 3.75 + listing, 0]
    there = state_in(tmp_path / "new")
    assert Restore(backup.folder, there, SystemClock()).run().dataset_bytes == PIECE * 3.75
    new = DatasetStore(there.datasets)
    (shelved,) = new.sets()
    assert (shelved.dataset_id, shelved.names) == (dataset_id, ("processed",))
    for sha256, length in lengths_of(read_folder(folder, QUIET)).items():
        assert len(new.piece(dataset_id, sha256)) == length


def test_a_rotten_piece_does_not_reach_a_backup(receiver, folder, tmp_path):
    pushed(receiver.client(), folder)
    sha256 = next(iter(lengths_of(read_folder(folder, QUIET))))
    path = receiver.folder / "datasets" / "pieces" / sha256[:2] / sha256
    path.write_bytes(b"rot" + path.read_bytes()[3:])
    made = Backup(tmp_path / "backup").make(state_in(receiver.folder), SystemClock())
    assert made.contents.datasets == []
    assert "was damaged" in made.contents.lost[0]
