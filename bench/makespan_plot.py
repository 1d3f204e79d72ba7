"""Draw what bench/makespan.py wrote: a line a fleet and error, a mark a rule at its median, a whisker to its worst.

python -m bench.makespan_plot docs/images/makespan.svg FILE.json …
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RULES = {"schedule": "#0072b2", "gated": "#009e73", "first-come": "#d55e00", "longest-first": "#999999"}
LEFT, WIDE, LINE, TOP = 290.0, 420.0, 34.0, 40.0
TICKS = (1, 1.5, 2, 5, 10, 30, 100, 300)


def plot(rows: Sequence[Mapping[str, Any]]) -> str:
    """Draw on a logarithmic axis of multiples of the lower bound; beyond 300 it ends."""

    def x(ratio: float) -> float:
        return LEFT + WIDE * min(1.0, math.log(max(ratio, 1.0)) / math.log(TICKS[-1]))

    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(f"{row['machines']} × {row['jobs']}, {row['error']}", []).append(row)
    height = TOP + LINE * len(groups) + 30
    parts = []
    for n, (rule, colour) in enumerate(RULES.items()):
        parts.append(f'<rect x="{LEFT + n * 105:.0f}" y="8" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + n * 105 + 14:.0f}" y="17">{rule}</text>')
    for tick in TICKS:
        parts.append(f'<path d="M{x(tick):.1f} {TOP - 8:.0f}V{height - 26:.0f}" stroke="#ccc"/>')
        parts.append(f'<text x="{x(tick):.1f}" y="{height - 10:.0f}" text-anchor="middle">{tick}</text>')
    for at, (name, found) in enumerate(groups.items()):
        y = TOP + LINE * at
        parts.append(f'<text x="{LEFT - 10:.0f}" y="{y + 16:.0f}" text-anchor="end">{name}</text>')
        for row in found:
            colour, line = RULES[row["rule"]], y + 3 + 7 * list(RULES).index(row["rule"])
            ends = x(row["median"]), x(row["worst"])
            parts.append(f'<path d="M{ends[0]:.1f} {line:.0f}H{ends[1]:.1f}" stroke="{colour}" stroke-width="2"/>')
            parts.append(f'<circle cx="{ends[0]:.1f}" cy="{line:.0f}" r="3.2" fill="{colour}"/>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDE + 30:.0f} {height:.0f}" '
    style = 'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
    return "\n".join([head + style, *parts, "</svg>", ""])


def main() -> int:
    """Write the picture named first of the files named then."""
    rows = [row for file in sys.argv[2:] for row in json.loads(Path(file).read_text(encoding="utf-8"))]
    Path(sys.argv[1]).write_text(plot(rows), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
