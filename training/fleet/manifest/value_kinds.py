"""Checks of values that only manifests have, such as shares, hours of the week, hardware addresses and variables.
Pure."""

import re
from typing import Any

from training.contract import Recipe, no_variable_because
from training.fleet.capability.describe import shown
from training.fleet.manifest.reader import WrongValueError, list_of, matching, one_of, real, text, whole
from training.fleet.scheduling.hours import BadHoursError
from training.fleet.scheduling.hours import parse as parse_hours
from training.fleet.scheduling.job import CORES_MAX, GIB_MAX, SLOTS_AUTO
from training.fleet.wire.constants import HOST_ID_PATTERN, SLOTS_MAX

PRIORITY_MAX = 1_000_000
SEED_MAX = 2**31 - 1
N_RESAMPLES_MIN, N_RESAMPLES_MAX = (200, 1_000_000)  # 0 makes no intervals; fewer than 200 make unreliable ones
SECONDS_MAX = 1e8  # three years
CELSIUS_MIN, CELSIUS_MAX = 30.0, 120.0
VARIABLES_MAX = 50
VALUE_CHARS_MAX = 1024

_OUTPUT = re.compile(r"(?:\{model\}|\{mode\}|[A-Za-z0-9])(?:\{model\}|\{mode\}|[A-Za-z0-9._-]){0,127}")
_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")

host_name = matching(
    re.compile(HOST_ID_PATTERN),
    "a host's name (a letter or digit, then up to 63 letters, digits, dots, dashes or underscores)",
)
host_names = list_of(host_name)
model_name = matching(
    re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}"),
    "a name (a small letter or digit, then up to 63 small letters, digits, dots, dashes or underscores)",
)
outputs = list_of(matching(_OUTPUT, "a file's name without folders; {model} and {mode} are filled in"), most=32)
command = list_of(text(4096), least=1, most=100, words=str.split)
priority = whole(-PRIORITY_MAX, PRIORITY_MAX)
seed = whole(0, SEED_MAX)
gib = real(0.0, GIB_MAX)
cores = whole(0, CORES_MAX)
seconds = real(0.0, SECONDS_MAX)
recipe = one_of([recipe.value for recipe in Recipe], "split recipe")


def n_resamples(value: Any) -> int:
    number = whole(0, N_RESAMPLES_MAX)(value)
    if 0 < number < N_RESAMPLES_MIN:
        raise WrongValueError(
            f"must be 0 (no intervals) or from {N_RESAMPLES_MIN} to {N_RESAMPLES_MAX}, not {number}: "
            "fewer draws make unreliable intervals"
        )
    return number


def _hour(value: Any) -> str:
    """Check one text of ``hours``, such as ``mo-fr 18:00-08:00``, and return it."""
    said = text(100)(value)
    try:
        parse_hours(said)
    except BadHoursError as error:
        raise WrongValueError(str(error), 'write "mo-fr 18:00-08:00", "sa su" or "22:00-07:00"') from None
    return said


hours = list_of(_hour, least=1, most=50)


def share(value: Any) -> float:
    try:
        return real(0.0, 1.0)(value)
    except WrongValueError:
        percent = isinstance(value, int | float) and not isinstance(value, bool) and 1 < value <= 100
        hint = f"write {value / 100:g} for {value:g} %" if percent else "0.5 is half of it"
        raise WrongValueError(f"must be a share from 0 to 1, not {shown(value)}", hint) from None


def celsius(value: Any) -> float:
    try:
        return real(CELSIUS_MIN, CELSIUS_MAX)(value)
    except WrongValueError:
        raise WrongValueError(
            f"must be a temperature from {CELSIUS_MIN:g} to {CELSIUS_MAX:g} degrees Celsius, not {shown(value)}",
            "at rest a machine is at 30 to 60",
        ) from None


def mac(value: Any) -> str:
    """Check a hardware address, and return it in the form ``a0:b1:c2:d3:e4:f5``."""
    digits = value.replace("-", ":").lower() if isinstance(value, str) else ""
    if not _MAC.fullmatch(digits):
        hint = "`ip link` or `ipconfig /all` on that machine shows it"
        raise WrongValueError(f'must be a hardware address as "a0:b1:c2:d3:e4:f5", not {shown(value)}', hint)
    if int(digits[:2], 16) & 1:
        hint = "name the address of one network card"
        raise WrongValueError(f"is the address of a group of machines: {digits}", hint)
    return digits


def slots(value: Any) -> int | str:
    """Check the number of jobs that a host may train at once: a whole number from 1, or ``auto``."""
    if value == SLOTS_AUTO:
        return SLOTS_AUTO
    if value == 0 and not isinstance(value, bool):
        raise WrongValueError(
            f'must be at least 1, or "{SLOTS_AUTO}": to give a host no work, add it to denied_hosts, or stop its worker'
        )
    try:
        return whole(1, SLOTS_MAX)(value)
    except WrongValueError:
        raise WrongValueError(
            f'must be "{SLOTS_AUTO}" or a whole number from 1 to {SLOTS_MAX}, not {shown(value)}'
        ) from None


def variables(value: Any) -> dict[str, str]:
    """Check environment variables for trainers and return them. Raises WrongValueError with each wrong variable, or for
    more than :data:`VARIABLES_MAX` variables."""
    given = table(value)
    if len(given) > VARIABLES_MAX:
        raise WrongValueError(f"has more than {VARIABLES_MAX} variables", "leave some out")
    wrong = []
    for name, content in given.items():
        if not VARIABLE.fullmatch(name):
            wrong.append(
                WrongValueError("is no variable's name: letters, digits and underscores, no digit first", at=(name,))
            )
        elif (why := no_variable_because(name)) is not None:
            wrong.append(WrongValueError(f"cannot be set here: {why}", at=(name,)))
        else:
            try:
                text(VALUE_CHARS_MAX, empty=True)(content)
            except WrongValueError as found:
                wrong.append(WrongValueError(found.message, 'write it as a text, "…"', at=(name,)))
    if wrong:
        raise WrongValueError.of(wrong)
    return dict(given)


def table(value: Any) -> dict[str, Any]:
    """Return ``value`` if it is a table, with any keys. Raises WrongValueError."""
    if isinstance(value, dict):
        return value
    raise WrongValueError(f"must be a table, not {shown(value)}", "write key = value pairs below its header")
