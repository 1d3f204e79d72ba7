"""Send a message over a channel: webhook, ntfy, e-mail, command. No wait for the other side is longer than
``TIMEOUT_S``. A failure raises :class:`SendError` with one sentence, which never holds a secret. The text of a
SendError repeats no words of a server to which a secret was sent, because the server may repeat the secret."""

import contextlib
import html
import json
import os
import smtplib
import ssl
import subprocess
import sys
import tempfile
import urllib.parse
from collections.abc import Mapping
from email.message import EmailMessage
from typing import Any

from training.fleet.manifest.channels import ChannelKind, NoticeKind, NotifyChannel, Secret, Security
from training.fleet.service.notify.rules import Message
from training.fleet.service.notify.secret import SendError, read_secret
from training.printable import one_line
from training.web import PostError, post

if sys.platform == "win32":
    from training.fleet.process import windows as system
else:
    from training.fleet.process import posix as system

TIMEOUT_S = 20.0
ERROR_BYTES_MAX = 4096
_URGENT = {NoticeKind.FAILURE, NoticeKind.QUARANTINE, NoticeKind.DISK, NoticeKind.INCIDENT}


def send(channel: NotifyChannel, message: Message) -> None:
    """Send ``message`` over ``channel``. Raises SendError."""
    _WAYS[channel.kind](channel, message)


# -- over HTTP --------------------------------------------------------------------------------------------------


def _webhook(channel: NotifyChannel, message: Message) -> None:
    """Post the message; chats show its ``text``, in which no words of a job or host may become markup."""
    assert channel.url is not None
    body = {**message.to_dict(), "text": _plain(message.text)}
    _post(channel.url, _address(channel.url), body, {"Idempotency-Key": message.key})


def _plain(text: str) -> str:
    """Return a text that Slack and Mattermost show as it is: without mentions, and without links under other words."""
    return html.escape(text, quote=False).replace("@", "@\u200b").replace("](", "]\u200b(")


def _ntfy(channel: NotifyChannel, message: Message) -> None:
    """Publish the message as JSON to the topic's server, so that titles may hold any character
    (docs.ntfy.sh/publish)."""
    assert channel.url is not None
    address = _address(channel.url)
    server, _, topic = address.rstrip("/").rpartition("/")
    if not topic or server.endswith(":/"):
        raise SendError(f"{channel.url} must hold a topic's address, as https://ntfy.sh/my-topic")
    urgent = any(notice.kind in _URGENT for notice in message.notices)
    body = {"topic": topic, "title": message.title, "message": message.text, "priority": 4 if urgent else 3}
    token = {} if channel.token is None else {"Authorization": f"Bearer {read_secret(channel.token)}"}
    _post(channel.url, server, body, {"Idempotency-Key": message.key, **token})


def _address(secret: Secret) -> str:
    address = read_secret(secret)
    with contextlib.suppress(ValueError):  # of brackets or a port that are none
        parts = urllib.parse.urlsplit(address)
        if parts.scheme in ("http", "https") and parts.hostname and address.isascii() and parts.port != 0:
            return address
    raise SendError(f"{secret} must hold an address that begins with https:// or http://")


def _post(place: Secret, address: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> None:
    """Post JSON to an address that was read from ``place``."""
    try:
        post(address, body, {"User-Agent": "cis490-receiver", **headers}, TIMEOUT_S)
    except PostError as error:
        raise SendError(f"the other side {error}; to see its words, try the address in {place} by hand") from None


# -- by mail ----------------------------------------------------------------------------------------------------


def _email(channel: NotifyChannel, message: Message) -> None:
    letter = EmailMessage()
    letter["From"], letter["To"] = channel.sender, ", ".join(channel.to)
    letter["Subject"] = one_line(message.title, 150)
    letter["Message-ID"] = f"<{message.key}@{channel.sender.rpartition('@')[2]}>"
    letter["Auto-Submitted"] = "auto-generated"
    letter.set_content(message.text + "\n")
    password = None if channel.password is None else read_secret(channel.password)
    try:
        with _connected(channel) as server:
            if channel.security is Security.STARTTLS:
                server.starttls(context=ssl.create_default_context())
            if password is not None:
                server.login(channel.user, password)
            refused = server.send_message(letter)
    except smtplib.SMTPAuthenticationError:
        raise SendError(f"{channel.host} does not take this user and password") from None
    except (smtplib.SMTPException, OSError, ValueError) as error:
        raise SendError(f"{channel.host} did not take the mail: {_said(error, shown=password is not None)}") from None
    if refused:
        raise SendError(f"{channel.host} refused {', '.join(map(one_line, refused))}; the others have the mail")


def _said(error: Exception, *, shown: bool) -> str:
    """Return a failure's words; of a server that was ``shown`` the password, only the kind and the number of the
    refusal."""
    code, said, words = getattr(error, "smtp_code", ""), getattr(error, "smtp_error", None), one_line(error, 150)
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        code, said = next(iter(error.recipients.values()))
    if said is not None:
        text = said.decode(errors="replace") if isinstance(said, bytes) else said
        words = f"it answered {code}, {one_line(text, 120)}"
    if shown and isinstance(error, (smtplib.SMTPException, ValueError)):
        return f"{f'{type(error).__name__} {code}'.strip()}; its words may hold the password and are not shown"
    return words


def _connected(channel: NotifyChannel) -> smtplib.SMTP:
    if channel.security is Security.TLS:
        context = ssl.create_default_context()
        return smtplib.SMTP_SSL(channel.host, channel.port, timeout=TIMEOUT_S, context=context)
    return smtplib.SMTP(channel.host, channel.port, timeout=TIMEOUT_S)


# -- by a command -----------------------------------------------------------------------------------------------


def _command(channel: NotifyChannel, message: Message) -> None:
    """Run the command with the message as JSON on standard input; exit code 0 means that the message was delivered.

    The receiver's own variables (``CIS490_*``) are not passed on, because one is the operator's token.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CIS490_")}
    argv = list(channel.command)
    if argv[0] in ("python", "python3"):  # as in a trainer's command: this environment's
        argv[0] = sys.executable
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as errors:
        given.write(json.dumps(message.to_dict()).encode() + b"\n")
        given.seek(0)
        try:
            process = subprocess.Popen(
                argv, stdin=given, stdout=subprocess.DEVNULL, stderr=errors, env=environment, **system.popen_options()
            )
        except (OSError, ValueError) as error:
            raise SendError(f"`{channel.command[0]}` cannot be started: {one_line(error, 150)}") from None
        try:
            code = process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            system.kill_group(process.pid)
            process.kill()
            process.wait()
            raise SendError(f"`{channel.command[0]}` did not end within {TIMEOUT_S:.0f} s") from None
        if code:
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - ERROR_BYTES_MAX))
            lines = errors.read().decode(errors="replace").strip().splitlines() or ["no reason given"]
            raise SendError(f"`{channel.command[0]}` ended with exit code {code}: {one_line(lines[-1], 150)}")


_WAYS = {
    ChannelKind.WEBHOOK: _webhook,
    ChannelKind.NTFY: _ntfy,
    ChannelKind.EMAIL: _email,
    ChannelKind.COMMAND: _command,
}
