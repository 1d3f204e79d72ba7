"""The earlier address of another module, which ``python -m`` still starts here."""

from __future__ import annotations

import runpy

if __name__ == "__main__":
    runpy.run_module("training.recording.workloads", run_name="__main__", alter_sys=True)
