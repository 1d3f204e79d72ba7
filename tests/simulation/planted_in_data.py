"""Planted bugs: data sets on hosts."""

from __future__ import annotations

from simulation.mutate import Mutant
from training.fleet.worker.datasets import DatasetCache

DATA_BUGS = (
    Mutant(
        "data in use make room for others",
        DatasetCache._remove_oldest,
        "used = set(self._in_use())",
        "used = set[str]()",
        seen_by="test_fleet_dataset_fetch:test_no_data_set_that_a_trainer_uses_makes_room_for_another",
    ),
    Mutant(
        "two data sets are fetched at once",
        DatasetCache.provide,
        "with self._one_at_a_time:",
        "if True:",
        seed=128,
    ),
    Mutant(
        "what has arrived is thrown away when its job comes again",
        DatasetCache._sound,
        "return _read_if_sound(folder / place.path, place) is not None",
        "return False",
        also=Mutant(
            "and not found there either",
            DatasetCache._near,
            "known = [(folder, listing), (whole, listing)]",
            "known = [(whole, listing)]",
        ),
        seed=142,
    ),
)
