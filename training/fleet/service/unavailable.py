"""The hosts that get no jobs now: in quarantine, under an operator's order, or resting for their owner."""

from __future__ import annotations

from training.fleet.database.writer import Database
from training.fleet.queue.orders import orders
from training.fleet.queue.quarantine import quarantines
from training.fleet.scheduling.orders import Out, Resting
from training.fleet.service.hosts import HostRegistry


def at_rest(db: Database, registry: HostRegistry) -> dict[str, Out]:
    """Return the hosts that rest because of an operator's order or their owner's conditions."""
    resting = {name: Resting(name, reason) for name, reason in registry.resting.copy().items()}
    return {**resting, **orders(db)}


def taken_out(db: Database, registry: HostRegistry) -> dict[str, Out]:
    """Return every host that gets no jobs now. If there are several reasons, one that needs a person is given."""
    return {**at_rest(db, registry), **quarantines(db)}
