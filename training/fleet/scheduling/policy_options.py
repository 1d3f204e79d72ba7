"""The option ``--policy KEY=VALUE``: the operator's settings of :class:`training.fleet.scheduling.policy.Policy`."""

import argparse
import math
import textwrap
from collections.abc import Iterable
from dataclasses import fields, replace

from training.fleet.scheduling.policy import Policy

MONTH_S = 30 * 86_400.0
_LEAST = {"stale_after_s": 1.0, "sweep_period_s": 0.01, "max_attempts": 1, "max_host_losses": 1}
_LEAST |= {"max_grants": 1, "backoff_s": 0.01, "clock_step_s": 0.1}  # all others: 0
_OF_URGENT_JOBS = ("move_s", "give_way_s", "give_way_again_s")  # no job interrupts another
_DEFAULTS = Policy()
KEYS = {
    "limits": "stale_after_s max_attempts max_host_losses max_grants max_readoptions fetch_max_s",
    "who goes first": "prefer_cuda_grace_s host_priority_grace_s retry_elsewhere_grace_s second_opinion_s reschedule_s",
    "pauses": "backoff_s backoff_max_s short_run_s short_pause_s short_pause_max_s",
    "quarantine": "odd_deaths odd_death_s suspect_crashes suspect_s gone_s",
    "periods": "sweep_period_s state_every_s clock_step_s",
}


def setting(text: str) -> tuple[str, float]:
    """Parse KEY=VALUE into key and number; raise argparse.ArgumentTypeError, whose text is one sentence, if it is
    invalid."""
    key, _, value = text.partition("=")
    kinds = {field.name: type(getattr(_DEFAULTS, field.name)) for field in fields(Policy)}
    if key not in kinds:
        import difflib

        near = difflib.get_close_matches(key, kinds, 1)
        hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(kinds)}"
        hint = "; give urgent jobs a higher `priority` in the plan" if key in _OF_URGENT_JOBS else hint
        raise argparse.ArgumentTypeError(f"there is no policy {key!r}{hint}")
    least = _LEAST.get(key, 0)
    try:
        number = kinds[key](value)
    except ValueError:
        number = math.nan
    if not least <= number <= MONTH_S:
        kind = "whole number" if kinds[key] is int else "number"
        raise argparse.ArgumentTypeError(f"{key} must be a {kind} from {least:g} to {MONTH_S:.0f}, not {value!r}")
    return key, number


def policy_of(settings: Iterable[tuple[str, float]]) -> Policy:
    """Return the default policy with these settings; if a key occurs twice, the last one counts."""
    return replace(_DEFAULTS, **dict(settings))  # type: ignore[arg-type]


def page() -> str:
    """Return the keys with their default values, each as ``KEY=VALUE``, in groups, for the help text."""
    lines = ["keys of --policy, with their defaults; those that end in _s are seconds:"]
    for group, keys in KEYS.items():
        said = " ".join(f"{key}={getattr(_DEFAULTS, key):g}" for key in keys.split())
        lines += textwrap.wrap(f"{group}: {said}", 78, initial_indent="  ", subsequent_indent="    ")
    return "\n".join(lines)
