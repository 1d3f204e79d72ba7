"""What an installation on Windows consists of: folders, settings, a Scheduled Task. Pure: makes plans only.

The task runs as LOCAL SERVICE, which may do little, at the start of the machine. Task Scheduler does not restart what
ended with an error code, so a second trigger starts the task every five minutes, and does nothing while it runs.
"""

from __future__ import annotations

import json
from pathlib import PureWindowsPath
from xml.sax.saxutils import escape

from training.fleet.install.steps import Command, MakeFolder, Remove, Step, WriteFile
from training.fleet.install.types import Wish
from training.fleet.install.worker import fetching, joining, trying

BASE = PureWindowsPath("C:/ProgramData/cis490")
SETTINGS = BASE / "worker.json"
TASK_FILE = BASE / "task.xml"
JOINED = BASE / "joined"
TLS = BASE / "state" / "tls"  # where the worker looks for it
LOG = BASE / "logs" / "worker.log"
SAVED = BASE / "state" / "saved.json"
TASK = "cis490-trainer-worker"
LOCAL_SERVICE = "S-1-5-19"
_FULL, _MODIFY = "(OI)(CI)F", "(OI)(CI)M"
# SYSTEM and administrators may do all, the service may write, nobody else may read: a key lies here.
_RIGHTS = (f"*S-1-5-18:{_FULL}", f"*S-1-5-32-544:{_FULL}", f"*{LOCAL_SERVICE}:{_MODIFY}")

_TASK = """\
<?xml version="1.0" encoding="UTF-16"?>
<Task version="1.3" xmlns="http://schemas.microsoft.com/windows/2004/02/mit/task">
  <RegistrationInfo>
    <Description>CIS490 training worker: trains on this machine what the receiver gives it ({commit})</Description>
  </RegistrationInfo>
  <Triggers>
    <BootTrigger>
      <Enabled>true</Enabled>
    </BootTrigger>
    <TimeTrigger>
      <Enabled>true</Enabled>
      <StartBoundary>2000-01-01T00:00:00</StartBoundary>
      <Repetition>
        <Interval>PT5M</Interval>
      </Repetition>
    </TimeTrigger>
  </Triggers>
  <Principals>
    <Principal id="Author">
      <UserId>{user}</UserId>
      <RunLevel>LeastPrivilege</RunLevel>
    </Principal>
  </Principals>
  <Settings>
    <MultipleInstancesPolicy>IgnoreNew</MultipleInstancesPolicy>
    <DisallowStartIfOnBatteries>false</DisallowStartIfOnBatteries>
    <StopIfGoingOnBatteries>false</StopIfGoingOnBatteries>
    <AllowHardTerminate>true</AllowHardTerminate>
    <StartWhenAvailable>true</StartWhenAvailable>
    <RunOnlyIfNetworkAvailable>false</RunOnlyIfNetworkAvailable>
    <Enabled>true</Enabled>
    <RunOnlyIfIdle>false</RunOnlyIfIdle>
    <WakeToRun>false</WakeToRun>
    <ExecutionTimeLimit>PT0S</ExecutionTimeLimit>
    <Priority>7</Priority>
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


def prepare(wish: Wish) -> list[Step]:
    """All but starting it."""
    rights = [part for right in _RIGHTS for part in ("/grant:r", right)]
    settings = {
        "receiver_url": wish.receiver_url,
        "host_id": wish.host_id,
        "flags": wish.flags,
        "base": str(BASE),
        "log": str(LOG),
    }
    steps: list[Step] = [MakeFolder(BASE)]
    if not wish.image:
        steps.append(
            Command(
                f"let only administrators and the service into {BASE}",
                ["icacls", str(BASE), "/inheritance:r", *rights],
                changes=False,
            )
        )
        steps += joining(wish, TLS, JOINED, None)
        steps.append(trying(wish, None))
        steps += fetching(wish, TLS, None)
    steps.append(WriteFile(SETTINGS, json.dumps(settings, indent=2) + "\n"))
    steps.append(WriteFile(TASK_FILE, task_xml(wish), encoding="utf-16"))
    return steps


def start(*, changed: bool) -> list[Step]:
    """Register the task and start it. One that runs what it should is left alone."""
    there = ["schtasks", "/Query", "/TN", TASK]
    register = ["schtasks", "/Create", "/TN", TASK, "/XML", str(TASK_FILE), "/F"]
    steps: list[Step] = []
    if changed:
        steps.append(_end())
    steps.append(Command(f"register the task {TASK}", register, unless=None if changed else there))
    steps.append(  # a task that runs ignores this
        Command(f"start the task {TASK}", ["schtasks", "/Run", "/TN", TASK], changes=changed)
    )
    return steps


def uninstall() -> list[Step]:
    """The way back; it leaves nothing."""
    delete = ["schtasks", "/Delete", "/TN", TASK, "/F"]
    return [
        _end(),
        Command(f"remove the task {TASK}", delete, unless=_no_task()),
        Remove(BASE),
    ]


def earlier(text: str) -> dict[str, str]:
    """receiver_url, host_id and flags as a settings file of ours says them; empty when it cannot be read."""
    try:
        said = json.loads(text)
        return {name: str(said[name]) for name in ("receiver_url", "host_id", "flags")}
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}


def task_xml(wish: Wish) -> str:
    """The Scheduled Task, as Task Scheduler imports it."""
    return _TASK.format(
        commit=escape(f"commit {wish.commit or 'unknown'}"),
        user=LOCAL_SERVICE,
        python=escape(str(wish.python)),
        settings=escape(str(SETTINGS)),
        checkout=escape(str(wish.checkout)),
    )


def _end() -> Step:
    return Command(
        f"stop the task {TASK}", ["schtasks", "/End", "/TN", TASK], unless=_no_task(), changes=False
    )


def _no_task() -> list[str]:
    """A command that succeeds when there is no such task."""
    return ["cmd", "/c", f"schtasks /Query /TN {TASK} >nul 2>&1 && exit 1 || exit 0"]
