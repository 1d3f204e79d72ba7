"""The recorder's address: starts ``training.recording.record``, which data must not import."""

from __future__ import annotations

import runpy

if __name__ == "__main__":
    runpy.run_module("training.recording.record", run_name="__main__", alter_sys=True)
