"""Where this checkout lies. Everything that is found relative to it starts here, however deep the module that asks."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
