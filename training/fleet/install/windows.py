r"""The steps of an installation on Windows: make folders, settings and a Scheduled Task. Pure: this module only lists
the steps.

The task runs as LOCAL SERVICE, which has few rights, at the start of the machine. Task Scheduler does not restart a
program that ended with an error code, so a second trigger starts the task every five minutes. While the task runs, the
trigger has no effect.

Other users must not be able to change programs that run as administrator: in C:\ and C:\ProgramData every user may make
files, and what a folder inherits there lets every user change the checkout. The installer therefore sets the rights
first, and writes secrets and programs afterwards.
"""

import json
import re
from pathlib import PurePath, PureWindowsPath
from xml.sax.saxutils import escape

from training import strict_json
from training.fleet.install.steps import Command, InstallStep, MakeFolder, NoLink, Remove, WriteFile
from training.fleet.install.types import InstallRequest
from training.fleet.install.worker import first_steps

BASE = PureWindowsPath("C:/ProgramData/cis490")
SETTINGS = BASE / "worker.json"
TASK_FILE = BASE / "task.xml"
JOINED = BASE / "joined"
TLS = BASE / "state" / "tls"  # where the worker looks for it
DATASETS = BASE / "state" / "datasets"
LOG = BASE / "logs" / "worker.log"
SAVED = BASE / "state" / "saved.json"
TASK = "cis490-trainer-worker"
_SETTINGS = ("receiver_url", "host_id", "flags")  # that the operator chooses
SERVICES_OWN = tuple(BASE / name for name in ("state", "artifacts", "reports", "logs"))
SYSTEM, ADMINISTRATORS, USERS, LOCAL_SERVICE = ("S-1-5-18", "S-1-5-32-544", "S-1-5-32-545", "S-1-5-19")
_ABBREVIATED = {SYSTEM: "SY", ADMINISTRATORS: "BA", USERS: "BU", LOCAL_SERVICE: "LS"}  # in SDDL
_FULL, _MODIFY, _READ = "F", "M", "RX"
_MASK = {_FULL: "FA", _READ: "0x1200a9"}
# Rights. A key lies in BASE, so no other user reads it; the checkout is no secret.
CLOSED = {SYSTEM: _FULL, ADMINISTRATORS: _FULL, LOCAL_SERVICE: _READ}
READABLE = {**CLOSED, USERS: _READ}
_QUOTES = re.compile("(['\u2018-\u201b])")  # PowerShell takes any of them for the end of a text

# What is not said is as Task Scheduler has it: enabled, with few rights, and whether the machine is idle or not.
_TASK = """\
<?xml version="1.0" encoding="UTF-16"?>
<Task version="1.3" xmlns="http://schemas.microsoft.com/windows/2004/02/mit/task">
  <RegistrationInfo>
    <Description>CIS490 training worker: trains on this machine what the receiver gives it ({commit})</Description>
  </RegistrationInfo>
  <Triggers>
    <BootTrigger />
    <TimeTrigger>
      <StartBoundary>2000-01-01T00:00:00</StartBoundary>
      <Repetition>
        <Interval>PT5M</Interval>
      </Repetition>
    </TimeTrigger>
  </Triggers>
  <Principals>
    <Principal id="Author">
      <UserId>{user}</UserId>
    </Principal>
  </Principals>
  <Settings>
    <MultipleInstancesPolicy>IgnoreNew</MultipleInstancesPolicy>
    <DisallowStartIfOnBatteries>false</DisallowStartIfOnBatteries>
    <StopIfGoingOnBatteries>false</StopIfGoingOnBatteries>
    <StartWhenAvailable>true</StartWhenAvailable>
    <ExecutionTimeLimit>PT0S</ExecutionTimeLimit>
    <RestartOnFailure>
      <Interval>PT1M</Interval>
      <Count>255</Count>
    </RestartOnFailure>
  </Settings>
  <Actions Context="Author">
    <Exec>
      <Command>{python}</Command>
      <Arguments>-m training.fleet.install.windows_task --settings "{settings}"</Arguments>
      <WorkingDirectory>{checkout}</WorkingDirectory>
    </Exec>
  </Actions>
</Task>
"""


def prepare(request: InstallRequest) -> list[InstallStep]:
    """Return the steps before the task is registered and started."""
    settings = {each: getattr(request, each) for each in _SETTINGS} | {"base": str(BASE), "log": str(LOG)}
    steps: list[InstallStep] = []
    if request.image:
        steps.append(MakeFolder(BASE))
    else:
        steps += closing(request.checkout, READABLE)
        steps += [MakeFolder(BASE), *closing(BASE, CLOSED)]
        for folder in SERVICES_OWN:
            steps += [MakeFolder(folder), NoLink(folder), _letting_write(folder)]
        # Made here, because Python 3.12.4 and later deny all other users a folder made with mode 0o700.
        steps += [MakeFolder(TLS), NoLink(TLS), NoLink(DATASETS)]
        steps += first_steps(request, TLS, JOINED, None)
    steps.append(WriteFile(SETTINGS, json.dumps(settings, indent=2) + "\n"))
    steps.append(WriteFile(TASK_FILE, task_xml(request), encoding="utf-16"))
    return steps


def closing(folder: PurePath, rights: dict[str, str]) -> list[InstallStep]:
    """Return the steps that give a folder and its content to the administrators, with no other rights than ``rights``.

    Another user may have made the folder before, with rights of their own: an owner can always add rights, and
    ``/grant:r`` keeps what others were given, so the owner and all entries are replaced first. A closed folder is not
    changed again, because between ``/reset`` and ``/inheritance:r`` its parent's rights would apply.
    """
    icacls, everything = ["icacls", str(folder)], ["/T", "/L", "/Q"]  # /L: no link is followed
    granted = [part for sid, right in rights.items() for part in ("/grant:r", f"*{sid}:(OI)(CI){right}")]
    readers = "everybody else may only read" if USERS in rights else "the service may only read"
    return [
        NoLink(folder),
        Command(
            f"give {folder} and all in it to the administrators; {readers}",
            [*icacls, "/setowner", f"*{ADMINISTRATORS}", *everything],
            then=[[*icacls, "/reset", *everything], [*icacls, "/inheritance:r", *granted, "/L", "/Q"]],
            unless=is_closed(folder, rights),
            unless_says="closed",
            changes=False,
            remedy=f"if another user made {folder} or a part of it, remove it and start again",
        ),
    ]


def is_closed(folder: PurePath, rights: dict[str, str]) -> list[str]:
    """Return a command that prints "closed" if administrators own the folder and it has exactly these rights.

    The command asks .NET, because the output of icacls is in the machine's language and does not name the owner.
    """
    entries = "|".join(rf"\(A;OICI;{_MASK[right]};;;{_ABBREVIATED[sid]}\)" for sid, right in rights.items())
    pattern = rf"^O:BAD:P(AI)?({entries}){{{len(rights)}}}$"
    path = _QUOTES.sub(r"\1\1", str(folder))
    asking = f"[IO.Directory]::GetAccessControl('{path}').GetSecurityDescriptorSddlForm('Owner,Access')"
    script = f"if ({asking} -cmatch '{pattern}') {{ 'closed' }}"
    return ["powershell", "-NoProfile", "-NonInteractive", "-Command", script]


def _letting_write(folder: PurePath) -> InstallStep:
    return Command(
        f"let the service write in {folder}",
        ["icacls", str(folder), "/grant:r", f"*{LOCAL_SERVICE}:(OI)(CI){_MODIFY}", "/L", "/Q"],
        changes=False,
    )


def start(*, changed: bool) -> list[InstallStep]:
    """Return the steps that register the task, unless it is registered and nothing has ``changed``, and start it. With
    ``changed`` a running task is stopped first."""
    there = None if changed else ["schtasks", "/Query", "/TN", TASK]
    argv = ["schtasks", "/Create", "/TN", TASK, "/XML", str(TASK_FILE), "/F"]
    register = Command(f"register the task {TASK}", argv, unless=there)
    # A task that runs ignores this.
    run = Command(f"start the task {TASK}", ["schtasks", "/Run", "/TN", TASK], changes=changed)
    return [*([_end()] if changed else []), register, run]


def uninstall() -> list[InstallStep]:
    """Return the steps that uninstall: stop and remove the task, and remove all of the worker's files but the
    checkout."""
    delete = ["schtasks", "/Delete", "/TN", TASK, "/F"]
    return [_end(), Command(f"remove the task {TASK}", delete, unless=_no_task()), Remove(BASE)]


def earlier(text: str) -> dict[str, str]:
    """Return receiver_url, host_id and flags from the text of our settings file; empty if it is malformed."""
    try:
        said = strict_json.loads(text)
        return {name: str(said[name]) for name in _SETTINGS}
    except (ValueError, KeyError, TypeError):
        return {}


def task_xml(request: InstallRequest) -> str:
    """Return the XML of the Scheduled Task, as Task Scheduler imports it."""
    return _TASK.format(
        commit=escape(f"commit {request.commit or 'unknown'}"),
        user=LOCAL_SERVICE,
        python=escape(str(request.python)),
        settings=escape(str(SETTINGS)),
        checkout=escape(str(request.checkout)),
    )


def _end() -> InstallStep:
    return Command(f"stop the task {TASK}", ["schtasks", "/End", "/TN", TASK], unless=_no_task(), changes=False)


def _no_task() -> list[str]:
    """Return a command that succeeds if there is no such task."""
    return ["cmd", "/c", f"schtasks /Query /TN {TASK} >nul 2>&1 && exit 1 || exit 0"]
