"""Logging in with a browser: what a cookie is, what it may do, and when it ends."""

import http.client
import re
from urllib.parse import urlencode

import pytest
from builders import a_job
from fakes import FakeClock
from hypothesis import given
from hypothesis import strategies as st
from receiver_running import TOKEN, Receiver, Wire
from tls_world import secure

from training.fleet.receiver.http.pages import way
from training.fleet.receiver.security.registry import Token
from training.fleet.receiver.security.sessions import SESSION_S, Sessions, cookie
from training.fleet.wire.identity import Role

FORM = "application/x-www-form-urlencoded"
ADA, EVE = Token(b"a" * 32, "ada", 0.0, 9e9), Token(b"e" * 32, "eve", 0.0, 9e9)


@pytest.fixture(scope="module")
def receiver(tmp_path_factory):
    with Receiver(tmp_path_factory.mktemp("login"), [a_job("one")]) as found:
        yield found


def send(receiver, path, **how):
    """Send a form as the receiver's own page does; ``body`` in the encoding of forms."""
    body = how.pop("body", "").encode()
    own = {"Origin": receiver.url, "Host": receiver.url.partition("//")[2], "Content_Type": FORM, "Accept": "text/html"}
    with Wire(receiver) as wire:
        status, headers, page = wire.request("POST", path, body, **{**own, **how}).answer()
    return status, headers, page.decode()


def look(receiver, path, **headers):
    with Wire(receiver) as wire:
        status, _, page = wire.request("GET", path, Accept="text/html", **headers).answer()
    return status, page.decode()


def logged_in(receiver, token, to="/"):
    status, headers, _ = send(receiver, "/login", body=urlencode({"token": token, "to": to}))
    assert (status, headers["location"]) == (303, to)
    return headers["set-cookie"].partition(";")[0]


# -- sessions, without HTTP -------------------------------------------------------------------------------------


def test_a_session_stands_for_its_token_until_it_is_over():
    clock = FakeClock()
    sessions = Sessions(clock)
    value = sessions.begin(ADA)
    assert sessions.token(value, [EVE, ADA]) is ADA
    assert sessions.token(value, [EVE]) is None, "a token that was revoked takes its sessions along"
    assert Sessions(clock).token(value, [ADA]) is None, "another process has another key"
    clock.advance(SESSION_S + 1)
    assert sessions.token(value, [ADA]) is None
    again = sessions.begin(ADA)
    sessions.end(again, [EVE, ADA])
    assert sessions.token(again, [ADA]) is None
    assert sessions.token(sessions.begin(ADA), [ADA]) is ADA, "the others go on"


@given(st.text())
def test_a_logout_with_what_is_no_session_is_not_remembered(text):
    sessions = Sessions(FakeClock())
    sessions.end(text, [ADA])
    sessions.end(Sessions(FakeClock()).begin(ADA), [ADA])
    assert not sessions._logged_out


@given(st.text() | st.from_regex(r"\A[0-9]{1,30}\.[0-9a-f]{16}\.[0-9a-f]{64}\Z"))
def test_no_text_is_a_session_by_chance(text):
    assert Sessions(FakeClock()).token(text, [ADA, EVE]) is None


@given(st.integers(0, 96), st.characters(codec="ascii"))
def test_a_session_with_another_character_is_none(place, character):
    sessions = Sessions(FakeClock())
    value = sessions.begin(ADA)
    other = value[:place] + character + value[place + 1 :]
    assert (sessions.token(other, [ADA]) is ADA) == (other == value)


def test_a_cookie_is_kept_from_scripts_and_other_sites():
    assert cookie("x", tls=False) == "cis490=x; Path=/; HttpOnly; SameSite=Strict"
    assert cookie("x", tls=True) == "__Host-cis490=x; Path=/; HttpOnly; SameSite=Strict; Secure"
    assert "Max-Age=0" in cookie("", tls=True)


@pytest.mark.parametrize(
    "elsewhere", ["", "jobs", "//evil.example", "https://evil.example", "/\\evil.example", "/a\r\nX: b", "/ü"]
)
def test_a_login_leads_to_pages_of_ours_alone(elsewhere):
    assert way(elsewhere) == "/"
    assert way("/jobs?status=failed") == "/jobs?status=failed"


# -- over HTTP --------------------------------------------------------------------------------------------------


def test_a_login_makes_an_operator_of_a_browser_and_a_logout_ends_that(receiver):
    assert "Log in" in look(receiver, "/")[1]
    session = logged_in(receiver, TOKEN, "/jobs?status=pending")
    page = look(receiver, "/", Cookie=session)[1]
    assert "operator · " in page
    assert "Log out" in page
    assert TOKEN not in page
    status, headers, _ = send(receiver, "/logout", Cookie=session)
    assert (status, headers["location"]) == (303, "/")
    assert "Max-Age=0" in headers["set-cookie"]
    assert "Log out" not in look(receiver, "/", Cookie=session)[1], "nor does a copy of the cookie"


def test_wrong_tokens_are_said_on_the_page_and_counted(tmp_path):
    with Receiver(tmp_path, []) as receiver:
        for _ in range(5):
            status, headers, page = send(receiver, "/login", body=urlencode({"token": "guess<b>", "to": "/jobs"}))
            assert (status, "set-cookie" in headers) == (403, False)
            assert "This is no token of the receiver" in page
            assert 'value="/jobs"' in page
            assert "guess" not in page
        status, _, page = send(receiver, "/login", body=urlencode({"token": TOKEN}))
        assert status == 429
        assert "wrong tokens or codes came from 127.0.0.1 within a minute; wait one" in page


def test_a_form_that_is_none_of_ours_begins_nothing(receiver):
    right = urlencode({"token": TOKEN})
    assert send(receiver, "/login", body=right, Origin="https://evil.example")[0] == 403
    assert send(receiver, "/login", body=right, Sec_Fetch_Site="same-site")[0] == 403
    assert send(receiver, "/login", body=right, Content_Type="text/plain")[0] == 400
    assert send(receiver, "/login", body="&".join(f"f{n}=1" for n in range(300)))[0] == 400
    assert send(receiver, "/login", body="token=%ff%fe")[0] == 400


def test_a_cookie_reads_and_sends_forms_and_calls_nothing_else(receiver):
    """Programs show a token; so no page that a browser is led to can make it call the API."""
    session = logged_in(receiver, TOKEN)
    assert look(receiver, "/v1/audit", Cookie=session)[0] == 200
    with Wire(receiver) as wire:
        wire.request("POST", "/v1/job/one/hold", Cookie=session, Origin=receiver.url, Host=receiver.url[7:])
        assert wire.problem() == (403, "operator_token")


def test_a_revoked_token_ends_its_sessions_at_once(receiver):
    session = logged_in(receiver, receiver.client().call("add_token", name="ada")["token"])
    assert "ada · " in look(receiver, "/", Cookie=session)[1]
    receiver.client().call("revoke_token", name="ada")
    assert "ada · " not in look(receiver, "/", Cookie=session)[1]
    assert look(receiver, "/v1/audit", Cookie=session)[0] == 403


def test_over_tls_a_browser_without_certificate_sees_the_login_alone(tmp_path):
    with secure(tmp_path, a_job("hidden-job")) as receiver:
        operator = receiver.showing(receiver.admitted("ada", Role.OPERATOR)[0])
        reading = operator.call("add_token", name="wall", role="reader")["token"]

        def ask(method, path, body="", **headers):
            line = http.client.HTTPSConnection("localhost", receiver.address[1], context=receiver.context(), timeout=30)
            own = {"Accept": "text/html", "Origin": receiver.url, "Content-Type": FORM}
            line.request(method, path, body, {**own, **headers})
            answer = line.getresponse()
            found = answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read().decode()
            line.close()
            return found

        status, headers, page = ask("GET", "/jobs?status=pending")
        assert (status, page, headers["location"]) == (303, "", "/login?to=%2Fjobs%3Fstatus%3Dpending")
        status, _, page = ask("GET", headers["location"])
        assert (status, 'value="/jobs?status=pending"' in page) == (200, True)
        assert receiver.hub.settings.version not in re.sub(r"<[^>]*>", "", page)
        status, headers, page = ask("GET", "/jobs", Accept="application/json")
        assert (status, headers["x-problem"], "show a certificate" in page) == (403, "no_certificate", True)
        assert ask("GET", "/jobs", **{"HX-Request": "true"})[0] == 403, "a page that asks again stays where it is"
        status, headers, _ = ask("POST", "/login", urlencode({"token": reading, "to": "/jobs"}))
        assert status == 303
        assert re.fullmatch(r"__Host-cis490=[^;]+; Path=/; HttpOnly; SameSite=Strict; Secure", headers["set-cookie"])
        session = headers["set-cookie"].partition(";")[0]
        status, _, page = ask("GET", "/jobs", Cookie=session)
        assert (status, "hidden-job" in page, "wall · " in page) == (200, True, True)
        assert ask("GET", "/jobs", Cookie=session.removeprefix("__Host-"))[0] == 303, "only the one with the prefix"
        assert ask("GET", "/v1/audit", Cookie=session)[0] == 403, "a reader's"
