"""Make a virtual environment of this wheel, on a machine where nothing of the project is installed yet.

``PYTHONPATH=NAME.whl python3 -m training.fleet.install.fresh FOLDER EXTRAS [ARGUMENTS…]`` makes the environment in
FOLDER with the pinned versions of the wheel's packages, deletes the wheel, and runs the environment's Python with the
arguments. It needs the standard library only.
"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

WHEEL = Path(__file__).parents[3]
PINS = "training/shipped/constraints.txt"


def main() -> int:
    """Make the environment. Exit codes: 0 done, 1 failed with a sentence; that of the arguments' program if given."""
    if sys.version_info < (3, 11):  # noqa: UP036 - nothing has checked it yet
        return _say("Python 3.11 or newer is needed; name another one in the line, such as python3.12")
    folder, extras, *then = sys.argv[1:]
    home = Path(folder).absolute()
    python = home / "bin" / "python"
    os.environ.pop("PYTHONPATH")
    if subprocess.run([sys.executable, "-m", "venv", home], check=False).returncode:
        return _say("Python's venv is missing; install it (Debian: apt-get install python3-venv) and repeat the line")
    pins = home / "constraints.txt"
    with zipfile.ZipFile(WHEEL) as archive:
        pins.write_bytes(archive.read(PINS))
    install = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-cache-dir", "-c", str(pins)]
    # Twice, as pip keeps an installed wheel of the same version and other bytes.
    for more in ([f"{WHEEL}[{extras}]"], ["--no-deps", "--force-reinstall", str(WHEEL)]):
        if subprocess.run([*install, *more], check=False).returncode:
            return _say("the packages could not be installed, as pip says above; repeat the line")
    WHEEL.unlink()
    return subprocess.run([python, *then], check=False).returncode if then else 0


def _say(sentence: str) -> int:
    print(f"install: {sentence}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
