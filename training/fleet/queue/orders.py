"""The rows of operators' orders for hosts: pause, drain, resume. Other modules define what an order means."""

from __future__ import annotations

from training.clock import Clock
from training.fleet.database.writer import Database
from training.fleet.scheduling.orders import HostOrder, OrderKind


def orders(db: Database) -> dict[str, HostOrder]:
    """Return the orders in force, by host."""
    return {
        row["host"]: HostOrder(row["host"], OrderKind(row["kind"]), row["since"], row["by"])
        for row in db.all("host_orders")
    }


class Orders:
    """Writes and ends operators' orders. A host has at most one order: a new one replaces it."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db, self._clock = db, clock

    def give(self, host: str, order: OrderKind, by: str) -> HostOrder:
        """Put a host under an order; giving the same order again changes nothing, not even its time."""
        known = orders(self._db).get(host)
        if known is not None and known.order is order:
            return known
        self.end(host, by)
        now = self._clock.now()
        self._db.run("add_host_order", host=host, kind=order, now=now, by=by)
        return HostOrder(host, order, now, by)

    def end(self, host: str, by: str) -> bool:
        """End a host's order. It returns False if the host had no order."""
        return self._db.run("end_host_order", host=host, ended_by=by, now=self._clock.now()) == 1
