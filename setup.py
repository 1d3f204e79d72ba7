"""Put into a wheel what a checkout has outside of ``training/``, its commit, and the digest of the demo's sample."""

import os
import shutil
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from training import checkout  # noqa: E402 - the path comes first

SHIPPED = ("etc/*.service", "etc/*.example", "examples/*.toml", "examples/failing_trainer.py", "examples/own-trainer/*")


class BuildWhole(build_py):
    """Begins in an empty folder, as modules that are gone would change the digest of the code."""

    def run(self):
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        if not self.editable_mode:
            self._ship(Path(self.build_lib, *checkout.SHIPPED.relative_to(checkout.ROOT).parts))
            for path in filter(Path.is_file, Path(self.build_lib).rglob("*")):
                path.chmod(0o644)

    def _ship(self, folder):
        for source in [path for pattern in SHIPPED for path in sorted(HERE.glob(pattern))]:
            target = folder / source.relative_to(HERE)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        (folder / checkout.BUILT_FROM.name).write_text(_commit(), encoding="utf-8")
        digest = checkout.folder_digest(HERE / checkout.SAMPLE, "*")
        (folder / checkout.SAMPLE_DIGEST.name).write_text(digest, encoding="utf-8")


def _commit():
    try:
        return checkout.checkout_commit(HERE) or ""
    except OSError:  # no clone
        return ""


os.umask(0o022)  # the builder's rights on files would be in the wheel
setup(cmdclass={"build_py": BuildWhole})
