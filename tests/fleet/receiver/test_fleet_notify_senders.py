"""Carrying a message over each kind of channel, against servers that really listen and commands that really run."""

import base64
import html
import json
import socketserver
import sys
from contextlib import contextmanager
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from small_servers import serving

from training.fleet.manifest.channels import ChannelKind, NoticeKind, NotifyChannel, Secret, Security
from training.fleet.receiver.notify import senders
from training.fleet.receiver.notify.senders import send
from training.fleet.service.notify.rules import Notice, message
from training.fleet.service.notify.secret import SendError, read_secret

NOTICE = Notice(7, 1.0, NoticeKind.FAILURE, "gbt – ä", "job gbt – ä failed: no data", event=41, job_id="ab" * 32)
MESSAGE = message([NOTICE], "d" * 32)


class Hook(BaseHTTPRequestHandler):
    """Answers as its server says, and keeps what came."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.got.append((self.path, dict(self.headers), body))
        self.send_response(self.server.status)
        self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.end_headers()
        self.wfile.write(f"Cannot POST {self.path} {body} {self.headers}".encode())  # as Express does

    def log_message(self, *_):
        return


@contextmanager
def hooked(status=200):
    server = HTTPServer(("127.0.0.1", 0), Hook)
    server.got, server.status = [], status
    with serving(server) as port:
        yield port, server.got


def written(tmp_path, text, name="secret"):
    (tmp_path / name).write_text(text, encoding="utf-8")
    return Secret(str(tmp_path / name))


def test_a_webhook_gets_the_message_as_json_with_its_key_and_no_markup_for_chats(tmp_path):
    hostile = "<!channel> [sign in](https://e) @here <https://e|fleet> & more"
    told = message([NOTICE._replace(sentence=hostile)], "d" * 32)
    with hooked(204) as (port, got):
        url = written(tmp_path, f"http://127.0.0.1:{port}/hook/s3cret\n")
        send(NotifyChannel(name="ops", kind=ChannelKind.WEBHOOK, url=url), told)
    ((path, headers, body),) = got
    assert path == "/hook/s3cret"
    assert body == {**told.to_dict(), "text": body["text"]}, "for programs, as it is"
    assert not any(markup in body["text"] for markup in ("<", ">", "](", "@here", "& "))
    assert html.unescape(body["text"]).replace("\u200b", "") == hostile
    assert headers["Idempotency-Key"] == "cis490-dddddddddddd-event-41"


def test_ntfy_gets_title_text_and_priority_in_any_alphabet(tmp_path):
    with hooked() as (port, got):
        url = written(tmp_path, f"http://127.0.0.1:{port}/my-topic")
        channel = NotifyChannel(name="p", kind=ChannelKind.NTFY, url=url, token=written(tmp_path, "tk_1", "token"))
        send(channel, MESSAGE)
    ((path, headers, body),) = got
    assert path == "/"
    title = "CIS490: failed job: gbt – ä"
    assert body == {"topic": "my-topic", "title": title, "message": NOTICE.sentence, "priority": 4}
    assert headers["Authorization"] == "Bearer tk_1"


@pytest.mark.parametrize("kind", [ChannelKind.WEBHOOK, ChannelKind.NTFY])
@pytest.mark.parametrize(
    ("status", "words"), [(404, "404 (Not Found)"), (500, "answered 500"), (302, "302"), (799, "")]
)
def test_a_refusal_is_said_without_the_address_and_no_redirect_is_followed(tmp_path, status, words, kind):
    """Its server repeats the address, the topic and the token."""
    with hooked(status) as (port, got):
        url, token = written(tmp_path, f"http://127.0.0.1:{port}/s3cret"), written(tmp_path, "tk_s3cret", "token")
        with pytest.raises(SendError) as caught:
            send(NotifyChannel(name="ops", kind=kind, url=url, token=token), MESSAGE)
    assert words in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert len(got) == 1


@pytest.mark.parametrize("address", ["http://127.0.0.1:1/s3cret", "ftp://x/s3cret", "s3cret", "http://[s3cret",
                                     "http://127.0.0.1:s3cret/"])  # fmt: skip
@pytest.mark.parametrize("kind", [ChannelKind.WEBHOOK, ChannelKind.NTFY])
def test_an_address_that_leads_nowhere_is_one_sentence_without_it(tmp_path, address, kind):
    with pytest.raises(SendError) as caught:
        send(NotifyChannel(name="ops", kind=kind, url=written(tmp_path, address)), MESSAGE)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(("text", "words"), [("", "one line"), ("a\nb", "one line"), ("x" * 5000, "4096")])
def test_a_secrets_file_holds_one_line(tmp_path, text, words):
    with pytest.raises(SendError, match=words):
        read_secret(written(tmp_path, text))


def test_a_secret_that_is_not_there_is_named_by_its_place(tmp_path):
    with pytest.raises(SendError, match=r"the file .*none cannot be read \(No such file or directory\)"):
        read_secret(Secret(str(tmp_path / "none")))
    with pytest.raises(SendError, match=r"the variable \$HOOK is not set"):
        read_secret(Secret(env="HOOK"), {})
    assert read_secret(Secret(env="HOOK"), {"HOOK": " x \n"}) == "x"


# -- mail -------------------------------------------------------------------------------------------------------


class Mail(socketserver.StreamRequestHandler):
    """As much of SMTP as one mail needs; refuses whoever its server refuses."""

    def handle(self):
        say = lambda line: self.wfile.write(f"{line}\r\n".encode())  # noqa: E731
        say("220 here")
        shown = ""
        while line := self.rfile.readline().decode().strip():
            verb = line.upper()
            if verb.startswith("EHLO"):
                say("250-here\r\n250 AUTH PLAIN")
            elif verb.startswith("AUTH"):
                shown = base64.b64decode(line.split()[2]).decode()
                say(f"{self.server.login} {shown!r}")
            elif verb.startswith("RCPT"):
                say(f"550 no such box, {shown!r}" if self.server.refuse in line else "250 fine")
            elif verb == "DATA":
                say("354 go on")
                self.server.got.append(message_from_bytes(b"".join(iter(self.rfile.readline, b".\r\n"))))
                say("250 taken")
            elif verb == "QUIT":
                say("221 bye")
                return
            else:
                say("250 fine")


@contextmanager
def mailing(refuse="nobody", login=235, **how):
    """A mail server, and the channel that leads there."""
    server = socketserver.TCPServer(("127.0.0.1", 0), Mail)
    server.got, server.refuse, server.login = [], refuse, login
    with serving(server) as port:
        yield NotifyChannel(
            name="mail", kind=ChannelKind.EMAIL, host="127.0.0.1", port=port, security=Security.NONE,
            sender="fleet@example.org", to=("ada@example.org", "bob@example.org"), **how,
        ), server  # fmt: skip


@pytest.mark.parametrize(
    ("refuse", "words"), [("nobody", None), ("bob", "refused bob@example.org"), ("@", "it answered 550, no such box")]
)
def test_a_mail_has_its_key_and_says_who_was_refused(refuse, words):
    with mailing(refuse) as (channel, server):
        if words is None:
            send(channel, MESSAGE)
        else:
            with pytest.raises(SendError, match=words):
                send(channel, MESSAGE)
    if refuse == "@":
        return
    (letter,) = server.got
    assert letter["Message-ID"] == "<cis490-dddddddddddd-event-41@example.org>"
    assert letter["To"] == "ada@example.org, bob@example.org"
    assert letter.get_payload(decode=True).decode().strip() == NOTICE.sentence


@pytest.mark.parametrize(
    ("login", "password", "words"),
    [
        (235, "s3cret", "SMTPRecipientsRefused 550"),
        (535, "s3cret", "does not take this user and password"),
        (235, "é", "UnicodeEncodeError;"),
    ],
)
def test_a_mail_server_that_repeats_the_password_is_not_quoted(tmp_path, login, password, words):
    with (
        mailing("@", login, user="ada", password=written(tmp_path, password)) as (channel, _),
        pytest.raises(SendError, match=words) as caught,
    ):
        send(channel, MESSAGE)
    assert password not in str(caught.value)
    assert "xe9" not in str(caught.value)


def test_a_mail_server_that_is_not_there_is_one_sentence():
    channel = NotifyChannel(name="mail", kind=ChannelKind.EMAIL, host="127.0.0.1", port=1, sender="a@b", to=("c@d",))
    with pytest.raises(SendError, match=r"127\.0\.0\.1 did not take the mail: .*refused"):
        send(channel, MESSAGE)


# -- a command --------------------------------------------------------------------------------------------------


def commanded(code):
    return NotifyChannel(name="own", kind=ChannelKind.COMMAND, command=(sys.executable, "-c", code))


def test_a_command_gets_the_message_on_standard_input_and_no_variable_of_ours(tmp_path, monkeypatch):
    monkeypatch.setenv("CIS490_OPERATOR_TOKEN", "sesame")
    code = (
        f"import sys, os; open({str(tmp_path / 'got')!r}, 'w').write(sys.stdin.read() + '\\n' + ' '.join(os.environ))"
    )
    send(commanded(code), MESSAGE)
    body, _, names = (tmp_path / "got").read_text().partition("\n")
    assert json.loads(body) == MESSAGE.to_dict()
    assert "PATH" in names.split()
    assert "CIS490" not in names


def test_a_command_that_fails_or_hangs_did_not_carry_it(monkeypatch):
    with pytest.raises(SendError, match="ended with exit code 3: out of paper"):
        send(commanded("import sys; print('a' * 100000 + '\\nout of paper', file=sys.stderr); sys.exit(3)"), MESSAGE)
    with pytest.raises(SendError, match="cannot be started"):
        send(NotifyChannel(name="own", kind=ChannelKind.COMMAND, command=("/no/such",)), MESSAGE)
    monkeypatch.setattr(senders, "TIMEOUT_S", 0.2)
    with pytest.raises(SendError, match="did not end within"):
        send(commanded("import threading; threading.Event().wait()"), MESSAGE)
