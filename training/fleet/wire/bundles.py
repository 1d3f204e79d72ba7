"""PURE: the rules that a bundle must follow, checked both when it is packed and when it is unpacked.

A worker does not pack files that ``cis490-jobs get`` would refuse to unpack: the attempt fails, instead of completing
its job with a useless bundle. The receiver opens no bundle; it limits uploads to ``ARTIFACT_BYTES_MAX``.
"""

import json
import re
from collections.abc import Mapping

from training.contract import CHECKPOINT_ENDING
from training.fleet.wire.constants import ARTIFACT_BYTES_MAX

MEMBERS_MAX = 64
MEMBER_BYTES_MAX = 8 * 1024**3 - 1  # the largest size in a USTAR header
UNPACKED_BYTES_MAX = 64 * 1024**3
CHECKPOINT_BYTES_MAX = 64 * 1024**2
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # the longest name in a USTAR header

GIB = 1024**3


def complaint(sizes: Mapping[str, int], packed_bytes: int = 0) -> str | None:
    """Return a sentence on the first rule that a bundle of files with these names and sizes breaks; None if it breaks
    none. ``packed_bytes`` is the size of the packed bundle, 0 if it is not packed yet."""
    if not sizes:
        return "there is no file in it"
    if len(sizes) > MEMBERS_MAX:
        return f"it has {len(sizes)} files, and at most {MEMBERS_MAX} are taken; put some into one"
    for name, size in sizes.items():
        if not NAME.fullmatch(name):
            return (
                f"{name[:120]!a} is no name for a file in a bundle: at most 100 letters, digits, dots, dashes and "
                "underscores, and a letter or digit first"
            )
        if size > MEMBER_BYTES_MAX:
            return f"{name} is larger than 8 GiB; save less in it"
        if name.endswith(CHECKPOINT_ENDING) and size > CHECKPOINT_BYTES_MAX:
            return f"{name} is larger than 64 MiB, too large for a checkpoint; put the weights into files next to it"
    total = sum(sizes.values())
    if total > UNPACKED_BYTES_MAX:
        most = UNPACKED_BYTES_MAX // GIB
        return f"its files have {total / GIB:.1f} GiB together, and at most {most} GiB are taken; save less"
    if packed_bytes > ARTIFACT_BYTES_MAX:
        most = ARTIFACT_BYTES_MAX // GIB
        return f"it has {packed_bytes / GIB:.1f} GiB, and at most {most} GiB are taken; save less"
    return None


def sidecar_complaint(name: str, content: bytes, files: Mapping[str, tuple[int, str]]) -> str | None:
    """Return a sentence if a checkpoint is no JSON object, or does not fit the sidecar file that it names; else None.

    ``content`` is the checkpoint's JSON; ``files`` maps the names of all files of the bundle to size and SHA-256.
    """
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        return f"{name} is not a JSON object"
    named = document.get("sidecar")
    if not isinstance(named, dict):
        return None
    if files.get(str(named.get("file"))) != (named.get("bytes"), named.get("sha256")):
        return f"{name} was not written with the sidecar in its folder"
    return None
