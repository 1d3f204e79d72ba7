"""The recorded telemetry that the demo trains on: a folder of a checkout, or the archive beside an installed wheel."""

import io
import json
import urllib.request
import zipfile
from importlib.metadata import distribution
from pathlib import Path
from urllib.parse import urljoin

from training.checkout import INSTALLED, PROJECT, ROOT, SAMPLE, SAMPLE_DIGEST, folder_digest

ARCHIVE = "cis490-telemetry-sample.zip"
BYTES_MAX = 32 * 1024**2
PATIENCE_S = 30.0


class DemoError(Exception):
    """The demo cannot continue; the message is one sentence with the cause."""


def sample(work: Path, place: str | None) -> Path:
    """Return the folder of the recordings: ``place`` if it is one, else the checkout's. A wheel's is fetched into
    ``work`` once, from the archive ``place`` or the one beside the wheel, and verified. Raises DemoError."""
    if place is not None and Path(place).is_dir():
        return Path(place).absolute()
    if not INSTALLED:
        return ROOT / SAMPLE
    folder, wanted = work / SAMPLE, SAMPLE_DIGEST.read_text(encoding="utf-8")
    if folder_digest(folder, "*") == wanted:
        return folder
    name = "name its folder, or the file or address of its archive, with --sample"
    address = _beside_the_wheel() if place is None else Path(place).absolute().as_uri() if ":" not in place else place
    if not address:
        raise DemoError(f"the recorded sample is not in the wheel, and where the wheel came from is not known; {name}")
    try:
        with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:  # noqa: S310 - a file: address is meant
            archive = zipfile.ZipFile(io.BytesIO(answer.read(BYTES_MAX)))
        archive.extractall(work, [each for each in archive.namelist() if each.startswith(f"{SAMPLE}/")])
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DemoError(f"the recorded sample cannot be fetched from {address} ({error}); {name}") from None
    if folder_digest(folder, "*") != wanted:
        raise DemoError(f"the sample from {address} is not the one of this version's recordings; {name}")
    return folder


def _beside_the_wheel() -> str:
    """Return the address of the archive in the folder from which the wheel was installed, as installers note it; empty
    if they noted none."""
    noted = distribution(PROJECT).read_text("direct_url.json")
    return urljoin(json.loads(noted)["url"], ARCHIVE) if noted else ""
