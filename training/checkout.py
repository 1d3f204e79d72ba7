"""The folder of this checkout. Everything that is found relative to it starts here."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
