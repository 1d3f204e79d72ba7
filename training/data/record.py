"""The recorder's address: starts ``training.watch.recording.record``, which data must not import."""

from __future__ import annotations

import runpy

if __name__ == "__main__":
    runpy.run_module("training.watch.recording.record", run_name="__main__", alter_sys=True)
