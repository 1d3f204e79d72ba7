"""A request for a page: the views that answer it, its address, and its caller."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from training.fleet.service.guards import whole_number
from training.fleet.service.views import Views
from training.fleet.wire.forecasts import ForecastReply
from training.fleet.wire.views import HealthReply


class PageRequest(NamedTuple):
    """A request for a page. ``query`` has the parameters of the address, those of its path among them; ``jobs`` has the
    ids of the jobs that it names, which the caller may see."""

    views: Views
    query: Mapping[str, str] = {}
    jobs: Sequence[str] = ()  # ids
    host: str | None = None  # the training host that asks, where callers are proven
    health: HealthReply | None = None  # for a page that shows the outlook
    forecast: ForecastReply | None = None  # likewise, unless too many are being made

    def number(self, name: str) -> int:
        """Return the whole number in the query's field ``name``, 0 where it is absent."""
        return whole_number(name, self.query.get(name), 0)
