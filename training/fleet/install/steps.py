"""The steps of an installation. Each step can describe itself, check whether it is done already, and do it.

install/linux.py and install/windows.py list the steps of an installation. Paths in a step are those on the machine
itself; a :class:`Site` may put them below another folder, for an image or a test.
"""

import hashlib
import os
import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import ClassVar, Protocol

from training.files import write_whole
from training.frozen import frozen

LAST_WORDS = 400  # characters shown of a failed command's output


class InstallError(Exception):
    """The installation cannot continue; the text is one sentence with the remedy."""


@frozen
class Ran:
    """The end of a command; ``output`` is its standard output and error together."""

    code: int
    output: str = ""

    def last_words(self) -> str:
        """Return the last non-empty line of output, at most 400 characters of it; without such a line, the exit status
        or ``no output``."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        silence = f"exit status {self.code}" if self.code else "no output"
        return lines[-1][-LAST_WORDS:] if lines else silence


class TargetMachine(Protocol):
    """The operations that steps need from the machine besides reading and writing files; tests inject their own."""

    def run(self, argv: Sequence[str], *, cwd: PurePath | None = None, user: str | None = None) -> Ran:
        """Run a command to its end, as ``user`` where possible, and return how it ended; code 127 when there is no such
        command."""
        ...

    def pause(self, seconds: float) -> None: ...

    def own(self, path: Path, user: str) -> None:
        """Make ``user`` the owner of a folder and its content. Raises OSError or LookupError."""
        ...

    def owns(self, path: Path, user: str) -> bool: ...


@frozen
class Site:
    """The place where steps act: this machine, or with ``image`` the folder of a machine's image."""

    machine: TargetMachine
    image: Path | None = None

    def at(self, path: PurePath) -> Path:
        """Return where a path of the machine is: itself, or below the folder of the image."""
        return Path(path) if self.image is None else self.image.joinpath(*path.parts[1:])


class InstallStep:
    """A step of an installation. ``is_done`` and ``do`` may raise InstallError, OSError or LookupError."""

    words: ClassVar[str] = ""  # its description for people; {0} is the step
    already: ClassVar[str] = "there"  # its state where it is done
    changes: bool = True  # false: it only looks, or repeats harmlessly

    @property
    def says(self) -> str:
        return self.words.format(self)

    @property
    def shown(self) -> str:
        """The description of the step that a dry run prints."""
        return self.says

    def is_done(self, site: Site) -> bool:  # noqa: ARG002 - most steps look
        return False

    def do(self, site: Site) -> str | None:
        """Carry out the step; return a line about the result for people, or None."""
        raise NotImplementedError


@dataclass(frozen=True)
class MakeUser(InstallStep):
    """Make a system user without login, in a group of its own and in those of ``groups`` that exist."""

    name: str
    home: PurePath
    groups: Sequence[str] = ()

    words = "make the system user {0.name}"

    def is_done(self, site: Site) -> bool:
        return site.machine.run(["getent", "passwd", self.name]).code == 0

    def do(self, site: Site) -> None:
        there = [name for name in self.groups if site.machine.run(["getent", "group", name]).code == 0]
        argv = ["useradd", "--system", "--user-group", "--no-create-home", "--home-dir", str(self.home)]
        argv += ["--shell", "/usr/sbin/nologin", *(["--groups", ",".join(there)] if there else [])]
        _must(site.machine.run([*argv, self.name]), self.says)


@dataclass(frozen=True)
class MakeFolder(InstallStep):
    path: PurePath
    mode: int = 0o755
    owner: str | None = None

    words = "make the folder {0.path}"

    def is_done(self, site: Site) -> bool:
        folder = site.at(self.path)
        if self.owner is None or site.image is not None:
            return folder.is_dir()
        return folder.is_dir() and site.machine.owns(folder, self.owner)

    def do(self, site: Site) -> None:
        folder = site.at(self.path)  # it may exist from an earlier trial by hand
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(self.mode)
        if self.owner is not None and site.image is None:
            site.machine.own(folder, self.owner)


@dataclass(frozen=True)
class NoLink(InstallStep):
    """Refuse a path that is a link or junction, because later steps would change the link's target."""

    path: PurePath

    words = "see that {0.path} leads nowhere else"
    changes = False

    def is_done(self, site: Site) -> bool:
        path = site.at(self.path)
        if not os.path.lexists(path):
            return True
        return not path.is_symlink() and getattr(path.lstat(), "st_reparse_tag", 0) == 0

    def do(self, site: Site) -> None:
        raise InstallError(
            f"{site.at(self.path)} is a link to another place; remove it (rmdir) and repeat the same line"
        )


@dataclass(frozen=True)
class WriteFile(InstallStep):
    """Write a file of the service. With ``keep`` an existing file is not changed, because the operator edits it."""

    path: PurePath
    text: str
    mode: int = 0o644
    keep: bool = False
    encoding: str = "utf-8"

    words = "write {0.path}"

    def is_done(self, site: Site) -> bool:
        path = site.at(self.path)
        if not path.is_file():
            return False
        return self.keep or path.read_bytes() == self._content()

    def do(self, site: Site) -> None:
        path = site.at(self.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")  # hidden: systemd reads its folders meanwhile
        write_whole(path, self._content(), mode=self.mode, part=part)

    def _content(self) -> bytes:
        return self.text.encode(self.encoding)


@dataclass(frozen=True)
class Command(InstallStep):
    """Run a command, then those in ``then``, as ``user`` and in the folder ``cwd`` if these are given."""

    title: str
    argv: Sequence[str]
    then: Sequence[Sequence[str]] = ()  # further commands, each after the success of the one before
    unless: Sequence[str] | None = None  # a command that succeeds when there is nothing to do
    unless_says: str = ""  # and its required output, where success alone proves little
    needs: PurePath | None = None  # the step applies only with this file
    cwd: PurePath | None = None
    user: str | None = None
    remedy: str = ""  # the remedy, appended to the error
    changes: bool = True
    summary: Callable[[str], str] | None = None  # from its output to a line of the report

    words = "{0.title}"

    @property
    def shown(self) -> str:
        return f"{self.title}: {'; '.join(map(shlex.join, (self.argv, *self.then)))}"

    def is_done(self, site: Site) -> bool:
        if self.needs is not None and not site.at(self.needs).exists():
            return True
        if self.unless is None:
            return False
        ran = site.machine.run(self.unless)
        return ran.code == 0 and self.unless_says in ran.output

    def do(self, site: Site) -> str | None:
        for argv in (self.argv, *self.then):
            ran = site.machine.run(argv, cwd=self.cwd, user=self.user)
            _must(ran, self.says, self.remedy)
        return None if self.summary is None else self.summary(ran.output)


@dataclass(frozen=True)
class FetchCertificate(InstallStep):
    """Get this host's certificate with a one-time code; ``mark`` stores the last used code's hash, so that a repeated
    installation does not use the code again."""

    argv: Sequence[str]
    code: str
    mark: PurePath
    cwd: PurePath
    user: str | None = None

    words = "join the fleet: make a key here, get its certificate with the one-time code"

    def is_done(self, site: Site) -> bool:
        mark = site.at(self.mark)
        return mark.is_file() and mark.read_text("utf-8").strip() == self._hash()

    def do(self, site: Site) -> None:
        ran = site.machine.run(self.argv, cwd=self.cwd, user=self.user)
        _must(ran, "join the fleet")
        WriteFile(self.mark, self._hash() + "\n", mode=0o600).do(site)

    def _hash(self) -> str:
        return hashlib.sha256(self.code.encode()).hexdigest()


@dataclass(frozen=True)
class StaysUp(InstallStep):
    """Check for some seconds that the started service keeps running."""

    service: str
    looks: int = 4
    user: bool = False  # it is one of the user's systemd

    words = "see that {0.service} stays up"
    changes = False

    def do(self, site: Site) -> None:
        for _ in range(self.looks):
            site.machine.pause(1.0)
            mine = ["--user"] if self.user else []
            if site.machine.run(["systemctl", *mine, "is-active", "--quiet", self.service]).code != 0:
                # Its own words: --unit would end with systemd's, which say that it failed and not why.
                own = ["journalctl", "--quiet", f"_SYSTEMD_{'USER_' if self.user else ''}UNIT={self.service}"]
                journal = [*own, "--lines", "3", "--output", "cat"]
                raise InstallError(
                    f"{self.service} does not stay up: {site.machine.run(journal).last_words()}; "
                    f"it is tried again every 15 s, `journalctl -u {self.service}` shows more"
                )


@dataclass(frozen=True)
class Remove(InstallStep):
    """Remove a file, or a folder with its content."""

    path: PurePath

    words = "remove {0.path}"
    already = "gone"

    def is_done(self, site: Site) -> bool:
        path = site.at(self.path)
        return not path.exists() and not path.is_symlink()

    def do(self, site: Site) -> None:
        path = site.at(self.path)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


@dataclass(frozen=True)
class RemoveEmpty(Remove):
    """Remove a folder that others may also use, only if it is empty."""

    words = "remove {0.path} if it is empty"

    def is_done(self, site: Site) -> bool:
        path = site.at(self.path)
        return not path.is_dir() or any(path.iterdir())


@dataclass(frozen=True)
class RemoveUser(InstallStep):
    name: str

    words = "remove the system user {0.name}"
    already = "gone"

    def is_done(self, site: Site) -> bool:
        return site.machine.run(["getent", "passwd", self.name]).code != 0

    def do(self, site: Site) -> None:
        _must(site.machine.run(["userdel", self.name]), self.says)


def perform(
    steps: Sequence[InstallStep], site: Site, tell: Callable[[str, str], None], *, dry_run: bool = False
) -> bool:
    """Do the steps that are not done, in order, and report each; return True if a step changed (in a dry run: would
    change) something.

    Raises InstallError at the first step that fails.
    """
    changed = False
    for step in steps:
        try:
            if step.is_done(site):
                tell(step.already, step.says)
            elif dry_run:
                changed = changed or step.changes
                tell("would", step.shown)
            else:
                tell("now", step.says)
                words = step.do(site)
                changed = changed or step.changes
                if words:
                    tell("found", words)
        except (OSError, LookupError) as error:
            why = getattr(error, "strerror", None) or error
            raise InstallError(f"could not {step.says}: {why}") from error
    return changed


def _must(ran: Ran, says: str, remedy: str = "") -> None:
    if ran.code != 0:
        raise InstallError(f"could not {says}: {ran.last_words()}" + (f"; {remedy}" if remedy else ""))
