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


class BuildWhole(build_py):
    """Begins in an empty folder, as modules that are gone would change the digest of the code."""

    def run(self):
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        if not self.editable_mode:
            for name, content in checkout.to_ship(HERE).items():
                path = self.build_lib / checkout.SHIPPED.relative_to(checkout.ROOT) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            for path in filter(Path.is_file, Path(self.build_lib).rglob("*")):
                path.chmod(0o644)


os.umask(0o022)  # the builder's rights on files would be in the wheel
setup(cmdclass={"build_py": BuildWhole})
