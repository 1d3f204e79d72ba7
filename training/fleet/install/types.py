"""Data types of an installation: the request, the facts about the machine, and the results of checks."""

from enum import StrEnum
from pathlib import PurePath

from training.frozen import frozen, frozen_kw


class MachineRole(StrEnum):
    WORKER = "worker"
    RECEIVER = "receiver"


class System(StrEnum):
    LINUX = "linux"
    WINDOWS = "windows"


@frozen_kw
class InstallRequest:
    """The user's request for an installation. ``checkout`` and ``python`` are absolute paths of the machine itself."""

    role: MachineRole
    system: System
    checkout: PurePath
    python: PurePath  # the virtual environment's interpreter, links not followed
    receiver_url: str = ""
    host_id: str = ""
    flags: str = ""  # further flags of the program, as the operator wrote them
    flags_are_new: bool = False  # given now, not taken over from the last installation
    code: str | None = None  # one-time code of `cis490-jobs enroll`
    fingerprint: str | None = None  # of the receiver's authority, from the same line
    dataset: str | None = None  # to be fetched at once, so that the first job need not wait
    commit: str | None = None
    user: bool = False  # for this user, below the home folder, without root
    image: bool = False  # a folder is filled; nothing is started and no user is made
    dry_run: bool = False

    @property
    def joins(self) -> bool:
        return self.code is not None


@frozen_kw
class ReceiverSeen:
    """The receiver's answer to the installer, or in ``trouble`` the reason why there is none.

    ``now`` is the receiver's clock in epoch seconds, ``here`` this machine's clock at the same moment.
    """

    trouble: str | None = None
    now: float | None = None
    here: float = 0.0


@frozen_kw
class MachineFacts:
    """The facts about the machine that checks need."""

    python: tuple[int, int]
    interpreter: PurePath  # the file itself, links followed
    missing: tuple[str, ...] = ()  # packages without which the service cannot run
    missing_for_training: tuple[str, ...] = ()
    free_bytes: int = 0
    receiver: ReceiverSeen | None = None
    nvidia_device: bool = False
    nvidia_driver: str | None = None
    administrator: bool = False
    service_manager: bool = False
    checkout_complete: bool = True
    long_paths: bool = True


class CheckLevel(StrEnum):
    OK = "ok"
    WARNING = "warning"
    REFUSED = "refused"


@frozen
class CheckResult:
    """The outcome of a check: its level, and one sentence for people."""

    level: CheckLevel
    words: str
