"""Predicted durations of jobs, and the time until a running attempt ends. Pure."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Literal

from training.frozen import frozen
from training.strict_json import Json

if TYPE_CHECKING:
    from statistics import NormalDist

# The basis of a prediction: jobs with the very same settings on this host; of its family there; of its family
# elsewhere, and this host's calibration; of its family elsewhere; nothing yet
Basis = Literal["same", "here", "calibrated", "elsewhere", "guess"]

LEAST_S, MOST_S = 0.01, 30 * 86_400.0  # a shorter or longer duration counts as this
_MEAN_MOST = math.log(4.0)  # the mean over the median, at most
_LONGEST_S = 100 * 365 * 86_400.0  # no attempt has trained for longer
_CONTRADICTED = 4.0  # a prediction two standard deviations away from what its attempt says
_AFTER_EPOCHS = {"evaluate": 0.9, "done": 0.99}  # the share that a trainer of ours has done then
_HEARD_S = 30.0  # a progress line reaches the receiver so late, with a heartbeat


def bounded(seconds: float) -> float:
    return min(max(seconds, LEAST_S), MOST_S)


def amount(value: object) -> float | None:
    """Return a number from 0 to 100 years (in seconds) as a float; None for anything else, booleans included."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LONGEST_S:
        return None
    return float(value)


@frozen
class Prediction:
    """The predicted duration of a job on a host: the median, and the spread (standard deviation) of the logarithm.

    Independent errors of attempts (``own``) cancel out in a long plan; errors that all jobs of the family share on
    every host (``everywhere``) do not. The rest of the spread is shared by the family's jobs on this host.
    """

    seconds: float
    spread: float
    seen: int = 0  # attempts with the very same settings on this host that it rests on
    basis: Basis = "guess"
    own: float = 0.0
    everywhere: float = 0.0

    @property
    def mean(self) -> float:
        """Return the expected seconds: from the median to four times the median, more the wider the spread is."""
        return self.seconds * math.exp(min(self.spread**2 / 2, _MEAN_MOST))

    def at(self, share: float) -> float:
        """Return the seconds within which the job ends with the probability ``share``, in (0, 1)."""
        return self.seconds * math.exp(self.spread * _normal().inv_cdf(share))

    def left(self, elapsed_s: float, share: float = 0.5) -> float:
        """Return the remaining seconds within which a job that has trained for ``elapsed_s`` ends with the probability
        ``share``.

        The longer an attempt has taken beyond the predicted time, the longer it is expected to go on.
        """
        if elapsed_s <= LEAST_S:
            return self.at(share)
        spread = max(self.spread, 0.01)
        z = (math.log(elapsed_s) - math.log(self.seconds)) / spread
        halvings = -math.log2(1.0 - share)  # of what goes on
        outlives = math.erfc(z / math.sqrt(2.0)) / 2
        # Beyond 30 deviations the tail's probabilities are too small for numbers; its limit
        later = -_normal().inv_cdf(outlives * (1.0 - share)) if z < 30 else z + halvings * math.log(2.0) / z
        beyond = max(0.0, elapsed_s - self.at(0.9)) / 2 * halvings
        return beyond + max(elapsed_s * math.expm1(spread * (later - z)), 0.0)

    def corrected(self, done: float, total_s: float) -> Prediction:
        """Return the prediction combined with a running attempt's own estimate of its whole duration, made when the
        share ``done`` was complete.

        The attempt's own estimate weighs little at first and much at the end. A prediction that the attempt's estimate
        strongly contradicts gets little weight.
        """
        own = math.log(bounded(total_s))
        own_variance = word_variance(done)
        before = math.log(self.seconds)
        variance = max(self.spread**2, (own - before) ** 2 / _CONTRADICTED - own_variance, 1e-6)
        weight = own_variance / (variance + own_variance)
        mean = weight * before + (1.0 - weight) * own
        return replace(self, seconds=math.exp(mean), spread=math.sqrt(weight * variance))


def remaining(prediction: Prediction, elapsed_s: float, progress: Json | None) -> tuple[float, float]:
    """Return the seconds until a live attempt ends: the median, and the time within which nine of ten such attempts
    end.

    ``elapsed_s`` is how long it has trained, ``progress`` its last progress object, which may be older and may be
    invalid. Both results are finite, at least 0, at most :data:`MOST_S`, and in this order.
    """
    elapsed_s = min(elapsed_s, _LONGEST_S) if elapsed_s > 0 else 0.0
    own = own_word(progress, elapsed_s) if progress else None
    if own is not None:
        done, left_s = own
        prediction = prediction.corrected(done, elapsed_s + left_s)
    left, late = (min(max(prediction.left(elapsed_s, share), 0.0), MOST_S) for share in (0.5, 0.9))
    return left, max(left, late)


def own_word(progress: Json, elapsed_s: float) -> tuple[float, float] | None:
    """Return a running attempt's own estimate from its progress: the share of its work that is done, and the remaining
    seconds.

    Return None if the progress has no valid estimate. If the progress has epochs, the remaining time is limited: no
    future epoch counts for more than all time until now.
    """
    epoch, epochs, then_s, eta_s = (amount(progress.get(key)) for key in ("epoch", "epochs", "seconds", "eta_s"))
    then_s = elapsed_s if then_s is None else min(then_s, elapsed_s)  # at the time of these words
    if then_s <= 0:
        return None
    if progress.get("event") in _AFTER_EPOCHS:
        done = _AFTER_EPOCHS[progress["event"]]
        eta_s = step_s = then_s * (1.0 - done) / done
    elif not {"epoch", "epochs"} & progress.keys() and eta_s is not None:
        done, step_s = then_s / (then_s + eta_s), eta_s
    elif epoch is not None and epochs is not None and 0 < epoch <= epochs:
        done, most_s = epoch / epochs, then_s * (epochs - epoch)
        eta_s = min(most_s / epoch if eta_s is None else eta_s, most_s)
        step_s = eta_s / max(epochs - epoch, 1.0)
    else:
        return None
    silent_s, expected_s = elapsed_s - then_s, step_s + _HEARD_S
    stalled_s = max(silent_s - expected_s, 0.0) / 2  # as long again, in the median
    return done, max(eta_s - min(silent_s, expected_s), 0.0) + stalled_s


def word_variance(done: float) -> float:
    """Return the variance of the logarithm of an attempt's own estimate of its whole duration: large at first, small at
    the end."""
    return (0.3 * (1.0 - done) + 0.02) ** 2 / done


@cache
def _normal() -> NormalDist:
    """Return the standard normal distribution; its module is loaded at the first use, because it loads fractions and
    decimals too."""
    from statistics import NormalDist

    return NormalDist()
