"""Report the results of this host's watch to the receiver: ``python -m training.fleet.client.watching``, a document on
stdin.

A watch runs this command for each report, because it has no code of the fleet. The document is the one that the watch's
fleet hook gets: an incident ``raised`` or ``over``, a change, or ``watching``. After a report, the command renews the
certificate if due. Exit codes: 0 reported, 1 refused, 2 wrong usage or no certificate, 65 a document that the receiver
will never take, 75 receiver not reached or not ready. With ``--check``, 0 means that flags and certificate are good. An
error is one sentence on standard error.
"""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from training import strict_json
from training.clock import Clock, SystemClock
from training.command_line import parser_of
from training.fleet.client.address import Address
from training.fleet.client.client import ClientError, FleetClient, Refused, Unavailable, Unreachable
from training.fleet.client.credentials import Credentials, CredentialsError, renew_if_due, watcher_folder
from training.fleet.wire.constants import DONE, HOST_ID_PATTERN, REFUSED, UNREACHABLE, USAGE, ProblemType
from training.fleet.wire.identity import Role, enrolling
from training.printable import one_line
from training.streams import complain, replace_unprintable
from training.strict_json import Json, JsonObject

PROGRAM = "training.fleet.client.watching"
BAD_DOCUMENT = 65
DOCUMENT_BYTES_MAX = 64 * 1024
TIMEOUT_S, ANSWER_S = 10.0, 20.0
NEVER = (ProblemType.BAD_REQUEST, ProblemType.TOO_LARGE)
EVENTS = ("watching", "raised", "over", "changed", "confirmed", "referenced")
_OF_WATCH = ("model", "checkpoint", "every_s")
_NAMED = {"since": "began_at", "told_at": "raised_at"}  # members of a change's document as the receiver names them

Connect = Callable[[str, str, Credentials | None], FleetClient]


def connect(url: str, host: str, credentials: Credentials | None) -> FleetClient:
    tls = None if credentials is None else credentials.context()
    return FleetClient(url, host_id=host, tls=tls, tries=1, timeout_s=TIMEOUT_S, answer_s=ANSWER_S)


def request_of(document: Json) -> JsonObject:
    """Convert a hook's document to a ``WatchRequest`` without the host. Raises ValueError if the document is not about
    a watch."""
    event = document.get("event")
    if event not in EVENTS:
        raise ValueError("the document says nothing of a watch: its event is none of those that a watch reports")
    told = {name: document[name] for name in _OF_WATCH if name in document}
    if event == "watching":
        return told
    known = {name: value for name, value in document.items() if name not in (*_OF_WATCH, "host") and value is not None}
    rest = {_NAMED.get(name, name): value for name, value in known.items()}
    return told | {"incident": rest}


def credentials_of(url: str, host: str, folder: Path) -> Credentials | None:
    """Return the credentials of ``host``, a watched or a training host; None for a plain http address of this machine.
    Raises CredentialsError, and ValueError if ``url`` is no receiver's address."""
    if not Address.of(url).secure:
        if not Address.of(url).private:
            raise CredentialsError(f"{url} is neither https nor this machine: use the receiver's https address")
        return None
    credentials = Credentials(folder)
    known = credentials.identity()
    if known is None:
        raise CredentialsError(
            f"{folder} holds no certificate for {url}; {enrolling(Role.WATCHER, host)} on the receiver prints the line "
            "that gets one"
        )
    if known.role not in (Role.WATCHER, Role.HOST) or known.name != host:
        raise CredentialsError(
            f"the certificate in {folder} is {known.role} {known.name}'s; watch with --host {known.name} if "
            f"that is this host, or get another: {enrolling(Role.WATCHER, host)} on the receiver prints the line"
        )
    return credentials


def tell(client: FleetClient, credentials: Credentials | None, document: Json, clock: Clock) -> None:
    """Send a hook's document to the receiver as a report, then renew the certificate if due. A failed renewal is
    ignored: the next report tries again."""
    client.watch(request_of(document))
    if credentials is not None:
        with suppress(ClientError, CredentialsError, OSError):
            renew_if_due(credentials, client, clock.now())


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(
        PROGRAM,
        description="Report the results of this host's watch to the receiver.",
    )
    parser.add_argument("--receiver-url", required=True, metavar="URL", help="address of the receiver")
    parser.add_argument("--host-id", required=True, metavar="NAME", help="name of this host")
    parser.add_argument(
        "--tls-dir", type=Path, metavar="DIR", help="folder of the certificate; default: where joining stores it"
    )
    parser.add_argument("--check", action="store_true", help="only check flags and certificate; nothing is sent")
    return parser


def main(argv: Sequence[str] | None = None, *, connect: Connect = connect, stdin: IO[bytes] | None = None) -> int:
    replace_unprintable()
    args = _parser().parse_args(argv)
    try:
        if not re.fullmatch(HOST_ID_PATTERN, args.host_id):
            raise ValueError(
                f"{args.host_id!r} cannot be a host's name: 1 to 64 letters, digits and ._-, a letter or digit first"
            )
        credentials = credentials_of(args.receiver_url, args.host_id, args.tls_dir or watcher_folder(args.host_id))
        client = connect(args.receiver_url, args.host_id, credentials)
    except (ValueError, CredentialsError) as error:
        return _say(error, USAGE)
    if args.check:
        return DONE
    try:
        document = strict_json.loads((stdin or sys.stdin.buffer).read(DOCUMENT_BYTES_MAX))
        if not isinstance(document, dict):
            raise ValueError("the document is no JSON object")
        tell(client, credentials, document, SystemClock())
    except ValueError as error:
        return _say(error, BAD_DOCUMENT)
    except (Unreachable, Unavailable) as error:
        return _say(error, UNREACHABLE)
    except Refused as error:
        return _say(error, BAD_DOCUMENT if error.problem_type in NEVER else REFUSED)
    except ClientError as error:
        return _say(error, REFUSED)
    finally:
        client.close()
    return DONE


def _say(error: object, code: int) -> int:
    complain(one_line(error, 1000))
    return code


if __name__ == "__main__":
    sys.exit(main())
