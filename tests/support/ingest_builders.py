"""A table or an archive, ingested as a user does it."""

import json
from contextlib import closing
from pathlib import Path

import numpy as np
import polars as pl

from training.data import ingest
from training.data.dataset import load_processed
from training.data.ingest.roles import Role


def whole(table):
    """A table that was read, as it would be in memory."""
    with closing(table.store):
        roles = [name for name in table.columns if name not in table.channels]
        meant = {name: pl.concat(table.parts(Role(name))) for name in roles}
        return pl.DataFrame(meant | dict(zip(table.channels, table.values().T, strict=True)))


class Ingested:
    def __init__(self, tmp_path, capsys):
        self.tmp_path, self.capsys = tmp_path, capsys
        self.out = tmp_path / "out"

    def __call__(self, source, *options):
        """Exit code and what was said: as JSON, or the sentence."""
        path = [str(source)] if isinstance(source, Path) else []
        if isinstance(source, pl.DataFrame):
            path = [str(self.tmp_path / "a.csv")]
            source.write_csv(*path)
        elif isinstance(source, dict):
            path = [str(self.tmp_path / "a.npz")]
            np.savez(*path, **source)
        code = ingest.main([*path, "--out-dir", str(self.out), "--json", *options])
        said = self.capsys.readouterr()
        return code, json.loads(said.out) if code == 0 else said.err

    def refused(self, source, *options):
        code, said = self(source, *options)
        assert code == 65, said
        assert said.count("\n") == 1
        return said

    def taken(self, source, *options):
        code, found = self(source, *options)
        assert code == 0, found
        return found

    def load(self, mode="oracle"):
        return load_processed(None, self.out / "tensor_window_v1", None, mode)

    @property
    def validation(self):
        return pl.read_parquet(self.out / "validation_v1.parquet")
