"""An old name of ``python -m training.fleet.work.prefetch``, for what was installed with it."""

import runpy

if __name__ == "__main__":
    runpy.run_module("training.fleet.work.prefetch", run_name="__main__", alter_sys=True)
