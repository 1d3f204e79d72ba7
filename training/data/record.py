"""Start ``training.watch.recording.record`` under the name ``training.data.record``; data may not import it
directly."""

import runpy

if __name__ == "__main__":
    runpy.run_module("training.watch.recording.record", run_name="__main__", alter_sys=True)
