"""The other engine: atheris, libFuzzer for Python, which looks at the way each input takes through our code."""

from __future__ import annotations

import importlib
import sys

import atheris

if __name__ == "__main__":
    name = sys.argv.pop(1)
    with atheris.instrument_imports(include=["training"]):
        target = importlib.import_module(f"fuzz.fuzz_{name}")
    atheris.Setup(sys.argv, target.one_input)
    atheris.Fuzz()
