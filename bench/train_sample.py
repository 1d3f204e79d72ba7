"""Every model on the recorded sample, under each way of setting a test side apart; hosts in turn, several seeds.

    python bench/train_sample.py [--recipes host,time,sample] [--models gbt,mlp,…] [--seeds 0,1,2] [--mode realistic]
        [--keep FOLDER] [--json]

The data set is built from `examples/telemetry-sample` as `make demo` does. `host` is a rotation: each host is tested by
models that the others trained, and the figures are folded as the fleet folds them (mean over hosts, spread between
hosts, worst host). `time` tests on later recordings, `sample` on other recordings of the same machines, folded over
seeds: the distance between the rows is what a split that shares machines hides. The logistic regression has what the
models have: the references that train, the validation windows, thresholds by host. `gap`: AUROC minus its, on the same
tests. With `--keep` reports stay in that folder, and a second run trains only what is missing there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainers import FAMILIES, ROOT, Table, arguments, own_python, train, words_of, workplace

sys.path.insert(0, str(ROOT))

from training.rotation import Fold, fold

RECIPES = ("host", "time", "sample")
PLAIN = "logistic_regression"
FIGURES = ("auroc", "tpr", "fpr")
EVERY = "all"  # in place of a host, where all are tested at once

Values = dict[str, list[float]]  # by tested host, one a seed


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--recipes", default=",".join(RECIPES), help="names with commas")
    parser.add_argument("--models", default=",".join((*FAMILIES, "combined")), help="names with commas")
    parser.add_argument("--seeds", default="0,1,2", help="numbers with commas")
    parser.add_argument("--mode", default="realistic")
    parser.add_argument("--keep", type=Path, help="folder for data and reports, to go on another time")
    args = parser.parse_args()
    seeds = [int(seed) for seed in args.seeds.split(",")]
    columns = {"recipe": 8, "model": 20, "AUROC": 15, "gap to logistic": 22, "worst host": 18}
    columns |= {"caught": 13, "false alarms": 13, "worst": 6}
    table = Table(f"the recorded sample, {len(seeds)} seeds, ± between hosts", columns, as_json=args.json)
    with workplace(args.keep) as folder:
        data = folder / "data"
        if not data.exists():
            sample = ROOT / "examples" / "telemetry-sample"
            words_of([own_python(), "-m", "training.data.build", str(sample), "--out-dir", str(data)])
        hosts = json.loads((data / "hosts_v1.json").read_text())["hosts"]
        for recipe in args.recipes.split(","):
            plain: dict[str, Values] = {}
            for model in args.models.split(","):
                reports = [
                    (host, report(model, data, folder, recipe, host, hosts, seed, args.mode))
                    for host in (hosts if recipe == "host" else [EVERY])
                    for seed in seeds
                ]
                own = gathered((host, one["metrics"]["test"]) for host, one in reports)
                plain = plain or gathered((host, one["baselines"][PLAIN]) for host, one in reports)
                tell(table, recipe, model, own, plain["auroc"])
            tell(table, recipe, "logistic regression", plain, None)
    table.end()
    return 0


def report(
    model: str, data: Path, folder: Path, recipe: str, host: str, hosts: Sequence[str], seed: int, mode: str
) -> Mapping[str, Any]:
    """The report of one training, made now or kept."""
    kept = folder / "reports" / f"{recipe}-{model}-{mode}-{host}-{seed}.json"
    if kept.exists():
        return json.loads(kept.read_text())
    flags = ["--split-recipe", recipe, "--seed", str(seed), "--n-resamples", "0"]
    if host != EVERY:
        flags += [flag for other in hosts if other != host for flag in ("--train-hosts", other)]
    found = train(model, data, folder / "run" / kept.stem, *flags, mode=mode).report
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(found))
    return found


def gathered(found: Any) -> dict[str, Values]:
    """The figures of (host, metrics) by name and host, those that could not be had left out."""
    made: dict[str, Values] = {name: {} for name in FIGURES}
    for host, metrics in found:
        for name in FIGURES:
            value = metrics.get(name, {}).get("value")
            if value is not None:
                made[name].setdefault(host, []).append(value)
    return made


def tell(table: Table, recipe: str, name: str, own: Mapping[str, Values], plain: Values | None) -> None:
    auroc, caught, false = fold(own["auroc"]), fold(own["tpr"]), fold(own["fpr"], low_is_worst=False)
    gap = None
    if plain is not None:
        pairs = {h: [a - b for a, b in zip(v, plain.get(h, ()), strict=False)] for h, v in own["auroc"].items()}
        gap = fold(pairs)
    ahead = "" if gap is None or plain is None else f" ({sum(sum(v) > 0 for v in pairs.values())} of {len(pairs)})"
    table.row(
        recipe,
        name,
        shown(auroc, 3),
        shown(gap, 3, sign=True) + ahead,
        "–" if auroc is None or auroc.worst_host == EVERY else f"{auroc.worst_host} {auroc.worst:.3f}",
        shown(caught),
        shown(false),
        "–" if false is None else f"{false.worst:.2f}",
        by_host=own,
    )


def shown(one: Fold | None, digits: int = 2, *, sign: bool = False) -> str:
    if one is None:
        return "–"
    spread = one.spread if one.spread is not None else one.seed_spread
    return f"{one.mean:{'+' if sign else ''}.{digits}f}" + ("" if spread is None else f" ±{spread:.{digits}f}")


if __name__ == "__main__":
    sys.exit(main())
