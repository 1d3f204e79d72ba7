"""PURE: differences in the data and code with which the models of one plan were trained, by their workers' reports."""

from collections.abc import Iterable, Mapping
from typing import Any

from training.fleet.scheduling.job import Trained
from training.frozen import frozen
from training.printable import some

_NAMED = 4  # jobs of each kind
_SHOWN = 12  # digits of a digest


@frozen
class CompletedModel:
    """A completed job of the plan, and what its model was trained with."""

    name: str
    spec: Mapping[str, Any]
    trained: Trained


def unlike(models: Iterable[CompletedModel]) -> list[str]:
    """Return a sentence for each data set, and for each trainer's code, of which completed models report different
    digests.

    Jobs that name the same data set are compared with each other, and so are all jobs without a data set. Of code, all
    jobs of this project's trainers are compared with each other, and so are the jobs of each custom trainer.
    """
    data: dict[str, dict[str, list[str]]] = {}
    code: dict[str, dict[str, list[str]]] = {}
    for model in models:
        dataset = str(model.spec.get("dataset") or "")
        trainer = str(model.spec.get("model")) if model.spec.get("trainer") else ""
        for groups, key, digest in ((data, dataset, model.trained.data), (code, trainer, model.trained.code)):
            if digest is not None:
                groups.setdefault(key, {}).setdefault(digest, []).append(model.name)
    found = [_sentence("data sets", "", kinds) for kinds in data.values() if len(kinds) > 1]
    for trainer, kinds in code.items():
        if len(kinds) > 1:
            found.append(_sentence("versions of code", trainer and f" of {trainer}", kinds))
    return found


def _sentence(what: str, of: str, kinds: Mapping[str, list[str]]) -> str:
    said = "; ".join(f"{digest[:_SHOWN]}: {some(names, _NAMED)}" for digest, names in kinds.items())
    return f"completed jobs{of} of this plan were trained on {len(kinds)} different {what} ({said})"
