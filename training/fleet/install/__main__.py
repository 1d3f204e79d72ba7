"""Install the worker (or the receiver) as a service of this machine, or remove it.

This module is the logic of scripts/install-training-worker.sh and scripts/install-training-worker-windows.ps1; a
receiver is installed with ``python -m training.fleet.install receiver``. Before an installation this program examines
the machine, and stops with all reasons at once if the machine is not ready. Then the program does one step at a time
and announces each. If the same command is repeated, steps that are found done are skipped.
"""

import argparse
import os
import platform
import secrets
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePath

from training.checkout import INSTALLED, ROOT, own_commit, shipped
from training.clock import SystemClock
from training.command_line import parser_of
from training.fleet.client.address import Address
from training.fleet.install import home
from training.fleet.install import linux as install_linux
from training.fleet.install import windows as install_windows
from training.fleet.install.checks import judge, refused
from training.fleet.install.steps import InstallError, InstallStep, Site, TargetMachine, perform
from training.fleet.install.system import LocalMachine, look, notes
from training.fleet.install.types import CheckLevel, InstallRequest, MachineFacts, MachineRole, System
from training.fleet.install.worker import undelivered
from training.printable import printable
from training.streams import complain, replace_unprintable

SIGNS = {
    CheckLevel.OK: "ok", CheckLevel.WARNING: "note", CheckLevel.REFUSED: "REFUSED",
    "there": "done", "gone": "gone", "would": "would", "now": "…", "found": "→",
}  # fmt: skip

Look = Callable[[InstallRequest, Path], MachineFacts]


def main(
    argv: Sequence[str] | None = None, *, machine: TargetMachine | None = None, look_around: Look | None = None
) -> int:
    """Install or uninstall. Exit codes: 0 done, 1 refused or failed with a sentence, 2 usage error."""
    replace_unprintable()
    args = _parser().parse_args(argv)
    site = Site(machine or LocalMachine(), args.image and args.image.absolute())
    try:
        if args.user:
            if (args.role, args.system, args.image) != (MachineRole.WORKER, System.LINUX, None):
                raise InstallError("--user installs a worker for this user on this machine (not Windows), nothing else")
            os.environ["XDG_CACHE_HOME"] = str(home.base() / ".cache")  # what the steps keep there goes with it
        if args.uninstall:
            return _uninstall(args, site)
        request = _request_of(args, site)
        look_here = look_around or partial(look, clock=SystemClock())
        facts = look_here(request, site.at(_state(request)))
        return _install(request, facts, site, dry_run=args.dry_run)
    except InstallError as error:
        complain(f"install: {printable(error)}")
        return 1
    except KeyboardInterrupt:
        complain("\ninstall: stopped; run the same line again to resume")
        return 1


def _install(request: InstallRequest, facts: MachineFacts, site: Site, *, dry_run: bool) -> int:
    print(f"Looking at this machine, for a training {request.role}")
    findings = judge(request, facts)
    for finding in findings:
        _tell(finding.level, finding.words)
    if refused(findings) and not dry_run:
        print("Nothing was changed.")
        return 1
    print("What would be done" if dry_run else "Installing")
    if request.user:
        changed = perform(home.prepare(request, systemd=facts.service_manager), site, _tell, dry_run=dry_run)
        perform(home.start(changed=changed, systemd=facts.service_manager), site, _tell, dry_run=dry_run)
    else:
        changed = perform(_preparation(request, site), site, _tell, dry_run=dry_run)
        if not request.image:
            perform(_start(request, changed=changed), site, _tell, dry_run=dry_run)
    if dry_run:
        print("Nothing was changed: this was a dry run.")
        return 1 if refused(findings) else 0
    print(_closing_words(request))
    return 0


def _uninstall(args: argparse.Namespace, site: Site) -> int:
    role, system = MachineRole(args.role), System(args.system)
    if site.image is None and not args.dry_run and not args.user:
        _must_be_administrator(system)
    if role is MachineRole.WORKER and not args.force:
        _must_have_delivered(home.base() / "state" / "saved.json" if args.user else site.at(_saved(system)))
    on_linux = system is System.LINUX
    print(f"Removing the training {role}")
    if args.user:
        steps = home.uninstall()
    else:
        steps = install_linux.uninstall(role, image=site.image) if on_linux else install_windows.uninstall()
    perform(steps, site, _tell, dry_run=args.dry_run)
    if args.dry_run:
        print("Nothing was changed: this was a dry run.")
    elif role is MachineRole.WORKER:
        left = "" if INSTALLED and args.user else " What is left is the checkout itself; delete it when you like."
        print(f"Removed.{left}")
    else:
        kept = f"{install_linux.STATE[role]} (jobs and models) and {install_linux.MANIFEST}"
        print(f"Removed. Kept, because there is no other copy: {kept}.")
    return 0


def _preparation(request: InstallRequest, site: Site) -> list[InstallStep]:
    if request.system is System.WINDOWS:
        return install_windows.prepare(request)
    unit = _read(shipped(f"etc/{install_linux.service(request.role)}"))
    example = _read(shipped("etc/training_manifest.toml.example"))
    before = _settings_before(request.role, request.system, site)
    token = before.get("token") or secrets.token_hex(32)
    return install_linux.prepare(request, unit, example=example, token=token, image=site.image)


def _start(request: InstallRequest, *, changed: bool) -> list[InstallStep]:
    if request.system is System.WINDOWS:
        return install_windows.start(changed=changed)
    return install_linux.start(request, changed=changed)


def _request_of(args: argparse.Namespace, site: Site) -> InstallRequest:
    """Return the request that the arguments make; settings without an argument keep their values from the last
    installation."""
    role, system = MachineRole(args.role), System(args.system)
    if role is MachineRole.RECEIVER and system is System.WINDOWS:
        raise InstallError(
            "a receiver is installed on Linux (a Raspberry Pi will do); on Windows start it yourself with: "
            "python -m training.fleet.receiver"
        )
    before = _settings_before(role, system, site, user=args.user)
    request = InstallRequest(
        role=role,
        system=system,
        checkout=args.checkout or ROOT,
        python=args.python or Path(os.path.abspath(sys.executable)),  # noqa: PTH100 - links are to stay
        receiver_url=args.receiver_url or before.get("receiver_url", ""),
        host_id=args.host_id or before.get("host_id") or os.environ.get("FLEET_HOST_ID") or platform.node(),
        flags=before.get("flags", "") if args.flags is None else args.flags,
        flags_are_new=args.flags is not None,
        code=args.code,
        fingerprint=args.fingerprint,
        dataset=args.dataset,
        commit=own_commit(),
        user=args.user,
        image=site.image is not None,
        dry_run=args.dry_run,
    )
    if role is not MachineRole.WORKER:
        return replace(request, receiver_url="", host_id="receiver")
    if request.receiver_url:  # a missing one is reported with the other faults
        try:
            Address.of(request.receiver_url)
        except ValueError as error:
            raise InstallError(f"{error}; paste the whole line that enroll printed") from None
    return request


def _settings_before(role: MachineRole, system: System, site: Site, *, user: bool = False) -> dict[str, str]:
    """Return receiver_url, host_id, flags and token of an earlier installation, as far as it has them; empty if none
    can be read."""
    try:
        if user:
            return home.settings()
        if system is System.WINDOWS:
            return install_windows.earlier(site.at(install_windows.SETTINGS).read_text("utf-8"))
        settings = site.at(install_linux.settings_file(role)).read_text("utf-8")
        return install_linux.earlier(role, settings)
    except (OSError, UnicodeDecodeError):
        return {}


def _state(request: InstallRequest) -> PurePath:
    if request.user:
        return home.base()
    return install_windows.BASE if request.system is System.WINDOWS else install_linux.STATE[request.role]


def _saved(system: System) -> PurePath:
    return install_windows.SAVED if system is System.WINDOWS else install_linux.SAVED


def _must_be_administrator(system: System) -> None:
    from training.fleet.install.system import is_administrator

    if not is_administrator():
        how = "with sudo" if system is System.LINUX else "in PowerShell as administrator"
        raise InstallError(f"removing a service needs an administrator; repeat the same line {how}")


def _must_have_delivered(saved: Path) -> None:
    try:
        job = undelivered(notes(saved))
    except (OSError, UnicodeDecodeError):  # it cannot be read
        return
    if job is not None:
        raise InstallError(
            f"a finished training (job {job[:12]}) has not reached the receiver yet: let the service run until it has, "
            "or repeat with --force to throw it away"
        )


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise InstallError(
            f"{path} cannot be read ({error.strerror}): clone the repository again and install from there"
        ) from error


def _closing_words(request: InstallRequest) -> str:
    if request.image:
        return "The image is ready: the service starts when it boots."
    if request.user:
        return (
            f"Done. `journalctl --user -fu {home.SERVICE}` follows it. It ends when you log out, unless you once run "
            "`loginctl enable-linger`."
            if home.unit().exists()
            else f"Done. Its log is {home.base() / 'worker.log'}. After a boot start it again: {home.base()}/loop.sh &"
        )
    if request.system is System.WINDOWS:
        return f"Done. Its log is {install_windows.LOG}; `cis490-jobs workers` shows this host within a minute."
    name = install_linux.service(request.role)
    if request.role is MachineRole.WORKER:
        return f"Done. `journalctl -fu {name}` follows it; `cis490-jobs workers` shows this host within a minute."
    return (
        f"Done. Edit {install_linux.MANIFEST}, then `systemctl reload {name}`; the operator's token is in "
        f"{install_linux.settings_file(request.role)}."
    )


def _tell(kind: str, words: str) -> None:
    print(f"  {SIGNS[kind]:8}{printable(words)}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(
        "install",
        description="Install the training worker (or receiver) as a service. The command may be repeated.",
    )
    parser.add_argument("role", nargs="?", default="worker", choices=[str(each) for each in MachineRole])
    parser.add_argument("--receiver-url", metavar="URL", help="address of the receiver (default: as installed before)")
    parser.add_argument("--host-id", metavar="NAME", help="this host (default: as before, $FLEET_HOST_ID, node name)")
    parser.add_argument("--code", help="the one-time code that `cis490-jobs enroll` printed")
    parser.add_argument("--fingerprint", help="fingerprint of the receiver's authority, as enroll printed it")
    parser.add_argument(
        "--flags", help="further flags of the service's program, in one argument: --flags='--on-silence pause'"
    )
    parser.add_argument("--dataset", metavar="NAME", help="fetch this data set now, not with the first job")
    parser.add_argument(
        "--user", action="store_true", help="for this user, without root: by the user's systemd, else by a loop"
    )
    parser.add_argument("--dry-run", action="store_true", help="show every step and do none")
    parser.add_argument("--uninstall", action="store_true", help="remove the installation")
    parser.add_argument("--force", action="store_true", help="uninstall even if finished work is undelivered")
    parser.add_argument(
        "--image", type=Path, metavar="DIR", help="install into the image of a machine in DIR; start nothing"
    )
    here = System.WINDOWS if sys.platform == "win32" else System.LINUX
    parser.add_argument("--system", choices=[str(each) for each in System], default=here, help=argparse.SUPPRESS)
    for flag in ("--checkout", "--python"):  # the image's own, when they differ from this one's
        parser.add_argument(flag, type=PurePath, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
