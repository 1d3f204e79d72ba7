"""One thing under several names, and another thing under the same name."""

import contextlib
import logging
import os
import runpy
import signal
import socket
import sys

import pytest
from receiver_running import Wire, running

from training.fleet import receiver as receiver_package
from training.fleet.client.address import Address
from training.fleet.database.sqlite import SqliteDatabase
from training.fleet.receiver import hangups
from training.fleet.receiver.http.listening import StartError
from training.fleet.receiver.program import _open_store
from training.fleet.store.locking import lock_of, store_lock
from training.locking import LockedError, exclusive

posix = pytest.mark.skipif(os.name != "posix", reason="POSIX names")


# -- locks --------------------------------------------------------------------------------------------------------


@posix
def test_a_database_has_one_lock_whatever_links_lead_to_it(tmp_path):
    (tmp_path / "real").mkdir()
    SqliteDatabase(tmp_path / "real" / "jobs.db").close()
    (tmp_path / "folder").symlink_to(tmp_path / "real")
    (tmp_path / "other.db").symlink_to(tmp_path / "real" / "jobs.db")
    with exclusive(lock_of(tmp_path / "real" / "jobs.db")):
        for name in ("folder/jobs.db", "other.db", "real/jobs.db"):
            with pytest.raises(LockedError), exclusive(lock_of(tmp_path / name)):
                pass


@posix
def test_a_database_with_a_second_name_of_its_own_is_not_opened(tmp_path):
    SqliteDatabase(tmp_path / "jobs.db").close()
    (tmp_path / "second.db").hardlink_to(tmp_path / "jobs.db")
    for name in ("jobs.db", "second.db"):
        with pytest.raises(OSError, match="has a second name"):
            lock_of(tmp_path / name)


def test_one_receiver_a_store(tmp_path):
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        _open_store(tmp_path / "models", first)
        with pytest.raises(StartError, match=r"^the store .* is in use \("):
            _open_store(tmp_path / "models", second)
    assert store_lock(tmp_path / "models").exists()


# -- names on the wire ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lines", ["", "Host:\r\n", "Host: 127.0.0.1\r\nHost: 127.0.0.1\r\n"], ids=["no", "empty", "two"]
)
def test_a_request_names_the_receiver_once(tmp_path, lines):
    with running(tmp_path) as receiver, Wire(receiver) as wire:
        wire.send(f"GET /v1/health HTTP/1.1\r\n{lines}\r\n")
        assert wire.problem() == (400, "bad_request")


def test_thousands_of_pipelined_requests_leave_no_traceback(tmp_path, caplog):
    with running(tmp_path) as receiver, caplog.at_level(logging.WARNING):
        with Wire(receiver) as wire:
            wire.send(b"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 3000)
            with contextlib.suppress(ConnectionError, socket.timeout):
                while wire.socket.recv(1 << 20):
                    pass
        with Wire(receiver) as wire:
            assert wire.request("GET", "/v1/health").answer()[0] == 200
    assert [each for each in caplog.records if each.exc_info] == []


@pytest.mark.parametrize("url", ["http://ada:geheim@pi:8445", "https://geheim@pi", "http://a:geheim@[x"])
def test_an_address_with_a_password_is_refused_without_saying_it(url):
    with pytest.raises(ValueError, match="no user and no password") as caught:
        Address.of(url)
    assert "geheim" not in str(caught.value)


# -- a signal that comes early ----------------------------------------------------------------------------------------


class HangUpOnLoading:
    """Sends SIGHUP to this process when the receiver's program is about to be loaded, and ends it by exit code 7."""

    def find_spec(self, name, *_):
        if name == "training.fleet.receiver.program":
            os.kill(os.getpid(), signal.SIGHUP)
            raise SystemExit(len(hangups.EARLY) * 7)


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="no SIGHUP here")
@pytest.mark.parametrize("how", ["program", "module"])
def test_a_hangup_while_the_receiver_is_still_loading_is_remembered(how, monkeypatch):
    before = signal.signal(signal.SIGHUP, lambda *_: None)
    monkeypatch.setattr(hangups, "EARLY", [])
    monkeypatch.setattr(sys, "meta_path", [HangUpOnLoading(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "training.fleet.receiver.program", raising=False)
    monkeypatch.delattr(receiver_package, "program", raising=False)
    begin = {
        "program": lambda: receiver_package.main([]),
        "module": lambda: runpy.run_module("training.fleet.receiver", run_name="__main__"),
    }
    try:
        with pytest.raises(SystemExit, match="7"):
            begin[how]()
    finally:
        signal.signal(signal.SIGHUP, before)
