"""Planted bugs: data sets on hosts, and those that are fetched ahead."""

from __future__ import annotations

from simulation.mutate import Mutant
from training.fleet.worker.datasets import DatasetCache
from training.fleet.worker.state import ahead, slots

_SEES = "test_fleet_worker_ahead:test_"

DATA_BUGS = (
    Mutant(
        "a job waits for a fetch ahead of other data",
        slots.Slots.may_fetch_ahead.fget,
        "return gets_jobs and not fetches",
        "return gets_jobs",
        seed=121,
    ),
    Mutant(
        "data are fetched ahead for a host that gets no jobs",
        slots.Slots.may_fetch_ahead.fget,
        "return gets_jobs and not fetches",
        "return not fetches",
        seen_by=_SEES + "a_fetch_ahead_stops_while_the_owner_needs_the_machine",
    ),
    Mutant(
        "a fetch ahead begins before the last one has ended",
        ahead.decide,
        "return replace(ahead, stopping=True), t.StopAhead()",
        "return replace(ahead, fetching=None), t.StopAhead()",
        seen_by=_SEES + "one_is_fetched_at_a_time_and_none_while_something_matters_more",
    ),
    Mutant(
        "data in use make room for data that are fetched ahead",
        DatasetCache._remove_oldest,
        "used = set(self._in_use())",
        "used = set[str]()",
        seed=135,
    ),
    Mutant(
        "two data sets are fetched at once",
        DatasetCache.provide,
        "with self._one_at_a_time:",
        "if True:",
        seed=121,
    ),
    Mutant(
        "what was fetched ahead is fetched again and again",
        ahead.ended,
        "(*ahead.over, event.data)[-OVER_KEPT:]",
        "ahead.over",
        seen_by=_SEES + "one_is_fetched_at_a_time_and_none_while_something_matters_more",
    ),
    Mutant(
        "what arrived ahead is thrown away when its job comes",
        DatasetCache._sound,
        "return _read_if_sound(folder / place.path, place) is not None",
        "return False",
        also=Mutant(
            "and not found there either",
            DatasetCache._near,
            "known = [(folder, listing), (whole, listing)]",
            "known = [(whole, listing)]",
        ),
        seed=121,
    ),
    Mutant(
        "what failed ahead is never tried again",
        slots._Turn._hear,
        "if isinstance(event, t.Lacking) and _owner(self.slots, event) is not None:",
        "if False:",
        seen_by=_SEES + "what_failed_ahead_is_tried_again_when_a_job_has_lacked_data",
    ),
)
