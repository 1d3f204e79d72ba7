"""The launcher's half for Windows, as far as it runs elsewhere: threads and Popen instead of fork and groups."""

import runpy
from pathlib import Path

launcher = Path(__file__).parents[2] / "training" / "fleet" / "process" / "launcher.py"
runpy.run_path(str(launcher), run_name="launcher")["serve_windows"]()
