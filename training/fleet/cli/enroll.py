"""``cis490-jobs enroll``, ``revoke``, ``certificates`` and ``tokens``: issue, list and revoke certificates and
tokens."""

import re
import shlex
from typing import Annotated

import typer

from training.fleet.cli.context import CannotError, CommandContext
from training.fleet.cli.registration import as_command, group
from training.fleet.cli.render import Lines, table
from training.fleet.wire import words
from training.fleet.wire.constants import HOST_ID_PATTERN, PLAIN_URL_PATTERN, USAGE
from training.fleet.wire.identity import FINGERPRINT_PREFIX, Role, parse_fingerprint
from training.printable import one_line, printable
from training.strict_json import Json, JsonObject


def _name(text: str) -> str:
    if not re.fullmatch(HOST_ID_PATTERN, text):
        raise typer.BadParameter(
            f"{text!r} is no name: 1 to 64 letters, digits, dots, dashes and underscores, a letter or digit first"
        )
    return text


Name = Annotated[
    str, typer.Argument(metavar="NAME", callback=_name, help="Name of the host, operator, reader or watched host.")
]
Operator = Annotated[bool, typer.Option("--operator", help="A person's laptop, not a host.")]
Reader = Annotated[bool, typer.Option("--reader", help="A program or person that only looks, such as Prometheus.")]
Watcher = Annotated[bool, typer.Option("--watcher", help="A watched host, which only reports incidents and changes.")]

INSTALL = "sudo scripts/install-training-worker.sh"
INSTALL_WINDOWS = "powershell -ExecutionPolicy Bypass -File scripts\\install-training-worker-windows.ps1"

# It fetches a file from anywhere, and keeps it only if it has the given SHA-256. Nothing in it is special to a shell
# between double quotes.
FETCH = (
    "import hashlib,ssl,sys,urllib.request as r; u,n,s=sys.argv[1:]; "
    "b=r.urlopen(u,context=ssl._create_unverified_context()).read(); "
    "hashlib.sha256(b).hexdigest()==s or sys.exit('not the wheel that enroll named'); open(n,'wb').write(b)"
)
FRESH = "training.fleet.install.fresh"
WHEEL_PATTERN = r"^cis490_training_fleet-[0-9a-z.]+-py3-none-any\.whl$"
CODE_PATTERN = r"^[0-9a-f]{16,128}$"

TOKENS = group("tokens", "Operators' and readers' tokens: make, list and revoke them.")


def _role(operator: bool, reader: bool, watcher: bool) -> Role:
    given = {Role.OPERATOR: operator, Role.READER: reader, Role.WATCHER: watcher}
    roles = [role for role, is_given in given.items() if is_given]
    if len(roles) > 1:
        raise CannotError(f"--{roles[0]} and --{roles[1]} exclude each other: a certificate has one role", USAGE)
    return roles[0] if roles else Role.HOST


@as_command()
def enroll(
    context: CommandContext,
    name: Name,
    operator: Operator = False,
    reader: Reader = False,
    watcher: Watcher = False,
    windows: Annotated[bool, typer.Option("--windows", help="Print the line for PowerShell.")] = False,
    url: Annotated[str | None, typer.Option("--url", help="The receiver's URL for the new machine.")] = None,
) -> None:
    """Enroll a host, an operator, a reader or a watched host: print one line to paste on its machine. The line works
    once."""
    role = _role(operator, reader, watcher)
    if url is not None and not (url.startswith("https://") and _is_plain(url, PLAIN_URL_PATTERN)):
        raise CannotError(
            f"{url!r} is no receiver's address: one begins with https://, then letters, digits and .:/_-[]", USAGE
        )
    answer = context.client().call("invite", name=name, role=role)
    answer["url"] = url or answer["url"]
    line = one_line(command(answer, windows=windows), 2000)
    without_git = {} if windows or not answer["wheel"] else lines_without_git(answer)
    if answer["note"]:
        context.complain(answer["note"])
    if context.as_json:
        context.show({**answer, "command": line, "without_git": without_git}, line)
    else:
        print(line, file=context.out)  # never folded: it is to be copied
        minutes = round(answer["expires_in_s"] / 60)
        where = "on the new machine, in the project's folder"
        context.complain(f"paste the line {where}; it is good once, for {minutes} minutes")
        for kind, each in without_git.items():
            print(f"\n{kind}:\n{each}", file=context.err)


def command(answer: Json, *, windows: bool) -> str:
    """Return the line to paste on the new machine. Raises CannotError if a part from the receiver does not have its
    usual form.

    The parts are quoted as well, but shells quote differently, and a user may paste this line as root.
    """
    given = _plain(answer)
    flags = ["--receiver-url", "--host-id", "--code", "--fingerprint"]
    program = INSTALL
    if answer["role"] in (Role.OPERATOR, Role.READER, Role.WATCHER):
        python = r".venv\Scripts\python" if windows else ".venv/bin/python"
        program = f"{python} -m training.fleet.join --{answer['role']}"
    elif windows:
        program, flags = INSTALL_WINDOWS, ["-ReceiverUrl", "-HostId", "-Code", "-Fingerprint"]
    quote = _powershell if windows else shlex.quote
    return " ".join([program, *(f"{flag} {quote(str(value))}" for flag, value in zip(flags, given, strict=True))])


def lines_without_git(answer: Json) -> dict[str, str]:
    """Return lines for a machine without a clone, by what they do. Each fetches the receiver's wheel, and stops unless
    the wheel has the SHA-256 that came with the invitation. Raises CannotError as :func:`command` does."""
    url, host, code, fingerprint = _plain(answer)
    name, digest = answer["wheel"], answer["wheel_sha256"]
    if not (_is_plain(name, WHEEL_PATTERN) and _is_plain(digest, "^[0-9a-f]{64}$")):
        raise CannotError("the receiver's answer has an odd wheel, so no line was made of it: see who answers there")
    given = f"--receiver-url {url} --host-id {host} --code {code} --fingerprint {fingerprint}"
    fetch = f'python3 -c "{FETCH}" {url}/v1/wheel {name} {digest} && PYTHONPATH={name} python3 -m {FRESH}'
    role = Role(answer["role"])
    extras = {Role.HOST: "worker,trainer", Role.WATCHER: "watch"}.get(role, "worker")
    join = f"training.fleet.join{'' if role is Role.HOST else f' --{role}'}"
    folder = f"{fetch} .venv {extras}\n.venv/bin/python -m {join} {given}"
    kind = "or, without git, in a plain folder"
    if role is not Role.HOST:
        return {kind: folder}
    folder += f"\n.venv/bin/cis490 worker --receiver-url {url} --host-id {host}"
    service = f"{fetch} ~/.local/share/cis490/.venv {extras} -m training.fleet.install worker --user {given}"
    return {"or, without git and root, as a service of the user": service, kind: folder}


def _plain(answer: Json) -> list[str]:
    """Return URL, name, code and fingerprint of an invitation. Raises CannotError if any of them does not have its
    usual form, as with a character special to a shell."""
    patterns = {"url": PLAIN_URL_PATTERN, "name": HOST_ID_PATTERN, "code": CODE_PATTERN}
    odd = [name for name, pattern in patterns.items() if not _is_plain(answer[name], pattern)]
    try:
        fingerprint = f"{FINGERPRINT_PREFIX}{parse_fingerprint(str(answer['fingerprint']))}"
    except ValueError:
        odd.append("fingerprint")
    if odd:
        raise CannotError(
            f"the receiver's answer has an odd {odd[0]}, {str(answer[odd[0]])[:80]!a}, so no line was made "
            "of it: do not paste anything, and see who answers there"
        )
    return [*(answer[name] for name in patterns), fingerprint]


def _is_plain(value: object, pattern: str) -> bool:
    return isinstance(value, str) and re.fullmatch(pattern, value) is not None


def _powershell(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@as_command()
def revoke(
    context: CommandContext, name: Name, operator: Operator = False, reader: Reader = False, watcher: Watcher = False
) -> None:
    """Revoke a host, operator, reader or watched host: its certificates and codes become void, and other hosts get its
    jobs."""
    role = _role(operator, reader, watcher)
    answer = context.client().call("revoke", name=name, role=role)
    line = (
        f"{printable(answer['name'])} is out; certificates revoked: {answer['certificates']}, "
        f"jobs given to others: {answer['jobs']}"
    )
    context.show(answer, line)


@as_command()
def certificates(context: CommandContext) -> None:
    """List certificates: owners, expiry dates, and revocations."""
    answer = context.client().call("certificates")
    rows = answer["certificates"]
    context.show(answer, lambda _: _table(rows, answer["now"], "role", "fingerprint"))


@as_command("add", group=TOKENS)
def add_token(
    context: CommandContext,
    name: Name,
    days: Annotated[float, typer.Option(help="Days until the token expires.", min=0.01, max=366)] = 90.0,
    reader: Reader = False,
) -> None:
    """Make a token and print it; it is not shown again."""
    body = {"name": name, "days": days, "role": Role.READER if reader else Role.OPERATOR}
    answer = context.client().call("add_token", **body)
    context.show(answer, printable(answer["token"]))
    if not context.as_json:
        context.complain(f"it is good until {words.moment(answer['expires_at'])} and is not shown again")


@as_command("list", group=TOKENS)
def list_tokens(context: CommandContext) -> None:
    """List the tokens' names and expiry dates, never their secrets."""
    answer = context.client().call("tokens")
    context.show(answer, lambda _: _table(answer["tokens"], answer["now"], "role"))


@as_command("revoke", group=TOKENS)
def revoke_token(
    context: CommandContext,
    name: Name,
    every: Annotated[bool, typer.Option("--all", help="All tokens of this name, not only the oldest.")] = False,
) -> None:
    """Revoke the oldest valid token of a name, or all of them."""
    answer = context.client().call("revoke_token", name=name, every=every)
    line = f"{answer['revoked']} tokens of {printable(answer['name'])} are void"
    context.show(answer, line)


def _table(rows: list[JsonObject], now: float, *more: str) -> Lines | str:
    if not rows:
        return "none"
    shown = []
    for row in rows:
        state = "valid"
        if row["revoked_at"] is not None:
            state = f"revoked {words.moment(row['revoked_at'])}"
        elif now >= row["expires_at"]:
            state = "expired"
        kept = (printable(row[each])[:16] for each in more)
        shown.append((row["name"], *kept, words.moment(row["expires_at"]), state))
    return table("name", *more, "until", "state", rows=shown)
