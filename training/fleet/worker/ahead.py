"""The fetch of a data set that no job in hand needs, on a thread of its own; the rules are in state/ahead.py."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial

from training.contract import reads
from training.fleet.worker.datasets import Order, Stopped
from training.fleet.worker.state import events as t

log = logging.getLogger(__name__)


class AheadFetcher:
    """Fetches one data set at a time; each fetch ends in one event, unless the worker ends before."""

    def __init__(self, provide: Callable[[str, Order], object], post: Callable[[t.Event], object]) -> None:
        self._provide, self._post = provide, post
        self._stopped = threading.Event()

    def __call__(self, data: t.NextData | None) -> None:
        """Begin to fetch; None stops what is on its way. Returns at once."""
        if data is None:
            self._stopped.set()
            return
        self._stopped = stopped = threading.Event()
        order = Order(lambda _done, _size: None, stopped, wanted=partial(reads, data.spec), ahead=True)
        threading.Thread(target=self._fetch, args=(data, order), name="data ahead", daemon=True).start()

    def _fetch(self, data: t.NextData, order: Order) -> None:
        try:
            self._provide(data.dataset_id, order)
        except Stopped:
            self._post(t.FetchedAhead(data=data, stopped=True))
        except Exception as error:  # whatever it is, the job fetches it as ever
            log.debug("data set %s", data.dataset_id, exc_info=True)
            self._post(t.FetchedAhead(data=data, problem=str(error) or type(error).__name__))
        else:
            self._post(t.FetchedAhead(data=data))
