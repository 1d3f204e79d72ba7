"""Planted bugs: whose folder is whose, where a machine has two workers."""

from __future__ import annotations

from simulation.mutate import Mutant
from training.fleet.worker.options import Options
from training.fleet.worker.state_folder import StateFolder, prune

_NO_LOCKS = Mutant(
    "no folder but the state's is locked",
    StateFolder._share_not,
    'self._open.enter_context(exclusive(folder / "lock"))',
    "pass",
    seed=3,
)

FOLDER_BUGS = (
    Mutant(
        "what is pruned are the attempts of all workers of a machine",
        prune,
        "in _of_attempts(root):",
        "in (one for each in root.parent.iterdir() for one in _of_attempts(each)):",
        seed=3,
    ),
    Mutant(
        "workers of one machine put their attempts into one folder",
        Options.own_places.fget,
        "each / self.host_id for each",
        "each for each",
        seed=3,
        also=_NO_LOCKS,
    ),
    Mutant(
        "workers of one machine are refused beside each other",
        Options.own_folders.fget,
        "places = self.own_places",
        "places = self.places",
        seed=3,
    ),
    Mutant(
        "a state folder is not locked",
        StateFolder._take,
        'self._open.enter_context(exclusive(folder / "lock"))',
        "pass",
        seed=47,
    ),
    _NO_LOCKS,
)
