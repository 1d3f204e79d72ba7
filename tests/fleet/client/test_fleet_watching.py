"""Telling the receiver of a watched host: with its own certificate alone, and tried again unless that is in vain."""

import io
import json
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from training.fleet.client import watching
from training.fleet.client.client import Refused
from training.fleet.client.credentials import CredentialsError
from training.fleet.wire.constants import DONE, REFUSED, ProblemType
from training.fleet.wire.identity import Role

URL = "https://receiver:8444"


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("name", ["office", "attic"])
def test_only_a_certificate_of_this_host_tells_of_it(tmp_path, role, name):
    known = {"role": role.value, "name": name, "receiver_url": URL, "received_at": 0.0, "valid_s": 1.0}
    (tmp_path / "identity.json").write_text(json.dumps(known))
    if role in (Role.WATCHER, Role.HOST) and name == "office":
        assert watching.credentials_of(URL, "office", tmp_path) is not None
    else:
        with pytest.raises(CredentialsError, match=f"is {role} {name}'s; watch with --host {name}"):
            watching.credentials_of(URL, "office", tmp_path)


@pytest.mark.parametrize("problem", list(ProblemType))
def test_what_may_be_taken_later_is_not_given_up(problem, capsys):
    client = SimpleNamespace(watch=Mock(side_effect=Refused(problem.status, problem, "no", {})), close=lambda: None)
    argv = ["--receiver-url", "http://127.0.0.1:1", "--host-id", "office"]
    code = watching.main(argv, connect=lambda *_: client, stdin=io.BytesIO(b'{"event": "watching"}'))
    never = problem in (ProblemType.BAD_REQUEST, ProblemType.TOO_LARGE)
    assert code == (watching.BAD_DOCUMENT if never else REFUSED)
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("event", ["changed", "confirmed", "referenced"])
def test_a_change_is_reported_in_the_receivers_words(event):
    told = []
    client = SimpleNamespace(watch=told.append, close=lambda: None)
    document = {"event": event, "host": "office", "model": "gbt", "checkpoint": "ab", "id": "cd", "since": 1.0}
    argv, stdin = (
        ["--receiver-url", "http://127.0.0.1:1", "--host-id", "office"],
        io.BytesIO(json.dumps(document).encode()),
    )
    assert watching.main(argv, connect=lambda *_: client, stdin=stdin) == DONE
    assert told == [{"model": "gbt", "checkpoint": "ab", "incident": {"event": event, "id": "cd", "began_at": 1.0}}]
