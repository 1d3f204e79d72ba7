"""The wheel of this program, made of the files that run here: new machines without a clone install it.

It is made once in the life of a receiver, and has the same bytes wherever the same sources are installed, from a clone
or from such a wheel.
"""

import base64
import hashlib
import io
import subprocess
from functools import cache

from training.checkout import INSTALLED, PROJECT, ROOT, SHIPPED, TO_SHIP, to_ship
from training.frozen import frozen
from training.printable import counted

_GIT = ["git", "-c", "safe.directory=*", "--no-optional-locks", "status", "--porcelain", "--"]
_GIT_S = 30.0
_DESCRIPTION = "Wheel-Version: 1.0\nGenerator: cis490\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@frozen
class OwnWheel:
    """A wheel: its file name, its bytes, and their SHA-256; ``note`` is a warning about its sources, for people."""

    name: str
    content: bytes
    sha256: str
    note: str | None


@cache
def own_wheel() -> OwnWheel | None:
    """Return the wheel; None if this program runs without being installed. Raises OSError."""
    import zipfile  # here, as they cost a receiver memory
    from importlib.metadata import distributions

    # A build leaves a folder of another form in the clone, which lacks the licence.
    found = (each for each in distributions(name=PROJECT) if each.read_text("METADATA"))
    if (installed := next(found, None)) is None:
        return None
    stem = f"{PROJECT.replace('-', '_')}-{installed.version}"
    files = {
        path.relative_to(ROOT).as_posix(): path.read_bytes()
        for path in (ROOT / "training").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    if not INSTALLED:
        files |= {f"training/{SHIPPED.name}/{name}": content for name, content in to_ship(ROOT).items()}
    about = {name: installed.read_text(name) or "" for name in ("METADATA", "entry_points.txt", "licenses/LICENSE")}
    about["WHEEL"] = _DESCRIPTION
    files |= {f"{stem}.dist-info/{name}": text.encode() for name, text in about.items()}
    record = [f"{name},sha256={_hash(content)},{len(content)}\n" for name, content in sorted(files.items())]
    files[f"{stem}.dist-info/RECORD"] = f"{''.join(record)}{stem}.dist-info/RECORD,,\n".encode()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(name)  # of 1980, whenever it is made
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    whole = made.getvalue()
    return OwnWheel(
        f"{stem}-py3-none-any.whl", whole, hashlib.sha256(whole).hexdigest(), None if INSTALLED else _note()
    )


def _hash(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def _note() -> str | None:
    """Return a warning if the clone has changes that no commit has, or git cannot say whether it has; else None."""
    try:
        listed = subprocess.check_output(
            [*_GIT, "training", *TO_SHIP], cwd=ROOT, stderr=subprocess.DEVNULL, timeout=_GIT_S
        )
    except (OSError, subprocess.SubprocessError):
        return "git cannot say whether the receiver's clone, and so the wheel, has uncommitted changes"
    changed = counted(len(listed.splitlines()), "files")
    return f"the wheel has uncommitted changes of the receiver's clone, in {changed}" if listed else None
