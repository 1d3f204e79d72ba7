"""One run of a trainer, step by step: from the data set to checkpoint and report."""

from __future__ import annotations

import json
import platform
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np

from training.certain import certain
from training.clock import Clock, SystemClock
from training.contract import Mode
from training.data.split import Split
from training.data.values import Ints, Json, JsonDict
from training.families import FAMILIES
from training.files import write_whole
from training.printable import first_line
from training.trainer import checkpoint, machine
from training.trainer.arguments import TrainerArgs
from training.trainer.baselines import run_baselines
from training.trainer.channel_ablation import prices
from training.trainer.contract import (
    BadArguments,
    BadData,
    Interrupted,
    Keeper,
    Progress,
    Stop,
    TrainerError,
    is_out_of_memory,
)
from training.trainer.evaluation.behaviours import ShownModel, Unshown, places_of, refuse_shown, without
from training.trainer.evaluation.behaviours import figures as figures_unshown
from training.trainer.evaluation.host_levels import HostLevels, ReferenceScores
from training.trainer.evaluation.incident_rates import Choice, called
from training.trainer.evaluation.metrics import Evaluation, OperatingPoint, Scored, evaluate, operating_point
from training.trainer.evaluation.report import build_report, plain, write_report
from training.trainer.evaluation.scenarios import best_alone, by_scenario
from training.trainer.evaluation.sides import order_notes, place_notes, sides_of
from training.trainer.evaluation.thresholds import by_host, notes_on_hosts
from training.trainer.evaluation.verdict import TOO_GOOD
from training.trainer.inputs import Inputs, read_inputs, split_inputs
from training.trainer.leave_one_behaviour_out import LeaveOutPlan, packed, plan, unpacked
from training.trainer.ranges import ranges_of
from training.trainer.reasons import reported
from training.trainer.references import Added, Parted, join, part, references_of, scored_by, settled
from training.trainer.stages import Stages
from training.trainer.state_file import StateFile
from training.trainer.task import LIMITS, Fitted, Joined, MemoryLimits, Settling, Task, Weighed, metric_name
from training.trainer.training_windows import keep

NOTHING_HIDDEN = (
    "No channel of these data is for the oracle mode alone: this model has seen what a realistic one sees, and their "
    "difference says nothing about oracle channels."
)
MIXED = (
    "This run moved while it trained: {n} unlike processors (or thread counts) had it in turn, each of which rounds "
    "differently, so that no run on one host gives the same bytes. The run key names them."
)
JUDGING = 1 / 9  # of the trainings' part of the whole: about as long does the evaluation take
CALIBRATED_ON = "benign windows of the calibration side, which trained and stopped nothing"


def train(
    args: TrainerArgs,
    progress: Progress,
    stop: Stop,
    clock: Clock | None = None,
    *,
    added: Added | None = None,
    limits: MemoryLimits = LIMITS,
    ignore_state: bool = False,
) -> None:
    """Train what ``args`` ask for, and write checkpoint and report; ``ignore_state`` begins without the saved state.

    Raises ``TrainerError`` or ``BadData``. Raises ``Interrupted`` if a stop is requested; the state is saved before, if
    the training has begun. The references ``added`` join those of the data set: they train the model or set levels (see
    `references.part`).
    """
    clock = clock or SystemClock()
    began = clock.now()
    progress.event("start", model=args.model, mode=args.mode.value, seed=args.seed)
    with stop.at_once():
        family = FAMILIES[args.model]
        if "torch" in family.libraries:
            machine.settle_torch(args.threads)
        device = machine.pick_device(args.device, prefers_cuda=family.cuda)
        inputs = read_inputs(args, takes=family.takes)
        split = split_of(args, inputs, supervised=family.supervised)
        if added is not None:
            inputs = added.onto(inputs)
            added.check(inputs, split)
        left_out = plan(inputs, split, recipe=args.split_recipe, quick=family.quick, supervised=family.supervised)
        adapted = None if added is None else added.to_dict()
        key = machine.run_key(args, inputs, device=device, libraries=family.libraries, adapted=adapted, limits=limits)
    sides = {side: count.windows for side, count in split.n.items()}
    progress.event("data", windows=int(inputs.y.size), quarantined=len(inputs.quarantined), **sides)
    progress.metric_name = metric_name(len(inputs.classes))
    keeper = StateFile(args.state_dir / f"{args.model}_{args.mode}.state", key.digest, clock, facts=key.facts)
    keeper.ignored = ignore_state
    if (odd := keeper.stranger()) is not None:
        progress.event("afresh", reason=odd)
    also, kept = ((), {}) if added is None else (added.hosts, added.kept)
    setup = RunSetup(args, inputs, device, progress, stop, limits=limits, also=also, kept=kept)
    try:
        stop.check()
        each = [1.0] * (1 + len(left_out.left_out))
        each.append(sum(each) * JUDGING)
        stages = Stages(keeper, progress, each)
        judged = stages.run("", partial(setup.train, split))
        fitted, key = judged.fitted, key.with_processors(keeper.mixed)
        trained_s = progress.elapsed_s
        tried = _without_each(setup, left_out, judged, stages)
        with progress.stage("evaluation", len(each) - 1, each):
            progress.event("evaluate", **progress.place())
            point, choice, channels, report = _judge(judged, key, stop, left_out, tried)
        stop.check()
    except Interrupted:
        keeper.save()
        raise
    except Exception as error:
        if not keeper.resumed or keeper.saved or isinstance(error, OSError) or is_out_of_memory(error):
            raise
        # The state may come from another machine, and be damaged there or meant to do harm: this host has not failed.
        progress.event("afresh", reason=f"the saved state cannot be used ({type(error).__name__}: {first_line(error)})")
        progress.shown = 0.0
        train(args, progress, stop, clock, added=added, limits=limits, ignore_state=True)
        return
    document = {**_document(judged, point, key), "channels": channels}
    if added is not None and isinstance(fitted, Settling):  # other data may bring no reference of these hosts
        document["facts"] = {**document["facts"], **fitted.own()}
    document |= {} if adapted is None else {"adapted": {**adapted, "trained": True}}
    document["incidents"] = None if choice is None else choice.to_dict()
    path = checkpoint.write(args.out_dir, document, fitted.sidecar(), family.sidecar)
    stem = f"{args.model}_{args.mode}_{'train' if family.supervised else 'pretrain'}"
    write_report(report, args.reports_dir, stem)
    timing = {"host": platform.node(), "started_at": began, "ended_at": clock.now()}
    timing |= {"seconds": progress.elapsed_s, "trained_s": trained_s, "resumed": keeper.resumed}
    # Values that differ between equal runs are stored beside the report, outside the bundle.
    text = json.dumps(timing, indent=1).encode() + b"\n"
    write_whole(args.reports_dir / f"{args.model}_{args.mode}_timing.json", text)
    keeper.discard()
    auroc = report["metrics"]["test"]["auroc"]["value"]
    said = {"verdict": report["verdict_level"], "why": report["verdict_why"]}
    progress.event("done", checkpoint=path.name, metric=auroc, metric_name="test AUROC", **said)


@dataclass(frozen=True)
class RunSetup:
    """The values that all trainings of one run share; references of the hosts ``also`` may train, like those of
    training hosts (see `references.part`)."""

    args: TrainerArgs
    inputs: Inputs
    device: str
    progress: Progress
    stop: Stop
    limits: MemoryLimits = LIMITS
    also: Collection[str] = ()
    kept: dict[str, float] = field(default_factory=dict)  # thresholds of hosts whose references train

    def train(self, split: Split, keeper: Keeper) -> TrainedModel:
        """Train a model on the sides of a split."""
        parted = part(self.inputs, split, also=self.also)
        joined = join(self.inputs, split, parted.train)
        family = FAMILIES[self.args.model]
        fitted = settled(family.fit(self.task(joined, keeper)), self.inputs)
        levels = None
        if not family.supervised:
            raw = references_of(fitted, self.inputs, parted.level)
            levels = HostLevels.trained(raw, on=sorted(set(self.inputs.rows.host[split.train].tolist())))
        return TrainedModel(self.args, self.inputs, split, parted, joined, fitted, levels, self.kept)

    def task(self, joined: Joined, keeper: Keeper) -> Task:
        """Build the task of one training of a family, on the sides in ``joined``."""
        args, inputs = self.args, self.inputs
        return Task(
            **vars(joined),
            model=args.model,
            names=inputs.names,
            feature_names=inputs.schema.feature_names,
            ordinary=inputs.ordinary,
            classes=len(inputs.classes),
            is_benign=inputs.classes.is_benign(joined.y),
            hyper=args.hyper,
            seed=args.seed,
            threads=args.threads,
            device=self.device,
            limits=self.limits,
            progress=self.progress,
            stop=self.stop,
            keeper=keeper,
        )


def split_of(args: TrainerArgs, inputs: Inputs, *, supervised: bool) -> Split:
    """Split as ``args`` say. Raises ``BadArguments`` for hosts that the recipe does not use, and ``BadData``."""
    for flag, hosts in (("--train-hosts", args.train_hosts), ("--test-hosts", args.test_hosts)):
        if hosts and not args.split_recipe.by_host:
            raise BadArguments(
                f"{flag} has no effect with --split-recipe {args.split_recipe}: leave it out, or choose the recipe host"
            )
    return split_inputs(
        inputs,
        recipe=args.split_recipe,
        train_hosts=args.train_hosts,
        test_hosts=args.test_hosts,
        seed=args.seed,
        split_seed=args.split_seed,
        supervised=supervised,
        target_fpr=float(args.hyper["target_fpr"]),
    )


class TrainedModel(NamedTuple):
    """A trained model, and the data on which it is judged."""

    args: TrainerArgs
    inputs: Inputs
    split: Split
    parted: Parted
    joined: Joined
    fitted: Fitted
    levels: HostLevels | None
    kept: dict[str, float]

    def scored(self, rows: Ints) -> Scored:
        """Score the windows ``rows``. Raises ``BadArguments`` if the model returns numbers that are not finite."""
        outputs = self.fitted.predict(self.inputs.given, rows)
        said = outputs.proba if outputs.proba is not None else outputs.score
        if said is None or not np.isfinite(said).all():
            raise BadArguments("the model answers with numbers that are not finite: choose a lower lr")
        # Of many windows their own names would be most of it, and nothing asks for them.
        own = replace(self.inputs.timed, window_id=None).take(rows)
        return scored_by(outputs, own, self.levels, self.inputs.classes)

    def references(self) -> ReferenceScores:
        """Compute the scores of the reference windows that set levels."""
        return references_of(self.fitted, self.inputs, self.parted.level).measured(self.levels)

    def point(self, cal: Scored, references: ReferenceScores) -> OperatingPoint | None:
        """Choose the operating point on the calibration side; None if no class is benign."""
        if not self.inputs.classes.benign:
            return None
        target = float(self.args.hyper["target_fpr"])
        point = operating_point(cal, target, classes=self.inputs.classes, references=references)
        if point.hosts is None or not self.kept:
            return point
        return replace(point, hosts=replace(point.hosts, kept=self.kept))

    def of_unshown(self, name: str) -> Unshown:
        """Score a behaviour that this model was not trained on. Raises LeakError if the behaviour trained, stopped or
        calibrated the model."""
        refuse_shown(self.split, self.inputs.behaviour, name)
        places = places_of(name, self.inputs.behaviour[self.split.test])
        test = self.scored(self.split.test[places])
        point = certain(self.point(self.scored(self.split.cal), self.references()), "benign windows set a threshold")
        point.refuse_test(self.inputs.rows.take(self.split.test))
        return Unshown(name, places, test.score, point.alarms(test))


def _without_each(
    setup: RunSetup, left_out: LeaveOutPlan, judged: TrainedModel, stages: Stages
) -> list[tuple[str, Unshown | str]]:
    """For each behaviour to be left out, train without it and score its windows; return each name with the scores, or
    with the reason why the training failed."""
    inputs, found = judged.inputs, list[tuple[str, Unshown | str]]()

    def answer(name: str, keeper: Keeper) -> bytes:
        setup.stop.check()
        setup.progress.event("without", **setup.progress.place())
        split = without(judged.split, inputs.rows, inputs.behaviour, name)
        try:
            model = setup.train(split, keeper)
        except (TrainerError, BadData) as error:
            return packed(str(error))
        return packed(model.of_unshown(name))

    for name in left_out.left_out:
        kept = stages.answer(f"without {name}", partial(answer, name), curve=False)
        found.append((name, unpacked(certain(kept, "each training ends with an answer"))))
    return found


def _judge(
    judged: TrainedModel,
    key: machine.RunKey,
    stop: Stop,
    left_out: LeaveOutPlan,
    tried: Sequence[tuple[str, Unshown | str]],
) -> tuple[OperatingPoint | None, Choice | None, JsonDict, JsonDict]:
    """Choose thresholds and incident rule on the calibration side, measure missing channels, and build the report.

    Return operating point (None without a benign class), incident rule (None without a threshold), figures of missing
    channels, and report.
    """
    args, inputs, split, classes = judged.args, judged.inputs, judged.split, judged.inputs.classes
    test, cal = judged.scored(split.test), judged.scored(split.cal)
    stop.check()
    references = judged.references()
    point, draws = judged.point(cal, references), {"n_resamples": args.n_resamples, "seed": args.seed}
    sides = sides_of(split, inputs.rows, classes)
    never_trained = sides.never_trained
    evaluation = evaluate(test, classes=classes, operating_point=point, never_trained=never_trained, **draws)
    stop.check()
    choice = incidents = None
    if point is not None and point.threshold is not None and not inputs.schema.has_examples:
        stride_s = inputs.schema.stride_s
        choice, incidents = called(cal, test, point, classes, rows=split.cal, nominal_s=stride_s, curve=True)
    baselines = run_baselines(
        judged.joined,
        inputs.ordinary.take(judged.parted.level),
        test=test,
        cal=cal,
        classes=classes,
        target_fpr=float(args.hyper["target_fpr"]),
        stride_s=inputs.schema.stride_s,
        **draws,
    )
    channels = plain(
        prices(
            inputs,
            judged.fitted,
            judged.levels,
            split,
            references=judged.parted.level,
            takes=FAMILIES[args.model].takes,
            test=test,
            point=point,
            stop=stop,
            **draws,
        )
    )
    facts = judged.fitted.facts()
    hosts = by_host(test, point, references, classes)
    report = build_report(
        model=args.model,
        mode=args.mode.value,
        history=judged.fitted.history,
        course=judged.fitted.course,
        run_key=key.to_dict(),
        hyper=args.hyper,
        quarantined=inputs.quarantined,
        schema_hash=inputs.schema.hash(),
        has_examples=inputs.schema.has_examples,
        understood=() if inputs.understood is None else inputs.understood.lines(),
        split=split,
        sides=sides,
        classes=classes,
        evaluation=evaluation,
        operating_point=point,
        baselines=baselines,
        choice=choice,
        incidents=incidents,
        weighed_by=judged.fitted.chosen_by if isinstance(judged.fitted, Weighed) else None,
        notes=[
            *_notes(judged, key),
            *notes_on_hosts(hosts),
            *([] if point is None else point.notes_elsewhere()),
            *([] if choice is None else [choice.note]),
        ],
        channels=channels,
        thresholds=hosts,
        reasons=_reasons(judged, test, point, stop),
        scenarios=_scenarios(judged, test, point),
        alone=_alone(judged, test, evaluation),
        **_new_behaviours(judged, left_out, tried, test, point),
        **({"scores": facts["judgement"]} if "judgement" in facts else {}),
        **({"combined": facts["weights"]} if isinstance(facts.get("weights"), Mapping) else {}),
    )
    return point, choice, channels, report


def _new_behaviours(
    judged: TrainedModel,
    left_out: LeaveOutPlan,
    tried: Sequence[tuple[str, Unshown | str]],
    test: Scored,
    point: OperatingPoint | None,
) -> JsonDict:
    """Return the report's section on behaviours that were left out of training or never trained. The dict is empty if
    there is no such behaviour and no reason to state."""
    if not left_out.speaks:
        return {}
    known = ShownModel(test, None if point is None else point.alarms(test), judged.inputs.classes)
    behaviour = judged.inputs.behaviour[judged.split.test]
    unshown = [one for _, one in tried if isinstance(one, Unshown)]
    for name in left_out.never_trained:
        places = places_of(name, behaviour)
        unshown.append(known.of(Unshown(name, places, test.score[places], None, left_out=False)))
    skipped = {**left_out.skipped, **{name: one for name, one in tried if isinstance(one, str)}}
    args = judged.args
    found = figures_unshown(known, unshown, n_resamples=args.n_resamples, seed=args.seed, skipped=skipped)
    return {"new_behaviours": found | {"why": left_out.why}}


def _scenarios(judged: TrainedModel, test: Scored, point: OperatingPoint | None) -> list[JsonDict]:
    """Return the share of windows that raise an alarm, by scenario (see `by_scenario`); an empty list without a
    threshold."""
    alarm = None if point is None else point.alarms(test)
    if alarm is None:
        return []
    inputs, rows = judged.inputs, judged.split.test
    return by_scenario(test, alarm, inputs.scenario[rows], inputs.behaviour[rows], inputs.classes)


def _alone(judged: TrainedModel, test: Scored, evaluation: Evaluation) -> JsonDict | None:
    """Return the single feature with the highest AUROC if the model's own AUROC exceeds ``TOO_GOOD``; otherwise, or
    without a benign class, None."""
    value = evaluation.metrics["auroc"]["value"]
    if value is None or value <= TOO_GOOD or not judged.inputs.classes.benign:
        return None
    names = judged.inputs.schema.feature_names
    return best_alone(judged.inputs.features[judged.split.test], names, ~judged.inputs.classes.is_benign(test.y))


def _reasons(judged: TrainedModel, test: Scored, point: OperatingPoint | None, stop: Stop) -> JsonDict | None:
    """Return the channels that carried true and false alarms on the test side; None without a threshold."""
    if point is None or point.threshold is None:
        return None
    stop.check()
    alarm, benign = test.score > point.each(test), judged.inputs.classes.is_benign(test.y)
    kinds = {"true": alarm & ~benign, "false": alarm & benign}
    rows = judged.split.test
    return {kind: reported(judged.fitted, judged.inputs, rows[marks]) for kind, marks in kinds.items()}


def _notes(judged: TrainedModel, key: machine.RunKey) -> list[str]:
    """Return sentences, besides those about the split, that a reader of the figures must know."""
    inputs = judged.inputs
    notes = [] if judged.levels is None else judged.levels.notes(inputs.rows.host)
    if "mixed" in key.facts:
        notes.append(MIXED.format(n=len(key.facts["mixed"])))
    if judged.parted.train.size:
        hosts = sorted(set(inputs.reference_host[judged.parted.train].tolist()))
        notes.append(
            f"Of the references of {', '.join(hosts)} the first half has trained as benign windows "
            f"({judged.parted.train.size:,} of them)."
        )
    if (weights := judged.fitted.facts().get("weights")) and isinstance(weights, Mapping):
        notes.append(str(weights["why"]))
    test = inputs.rows.take(judged.split.test)
    notes += [*place_notes(test, inputs.classes), *order_notes(test, inputs.classes)]
    if judged.args.mode is Mode.ORACLE and inputs.hides_nothing:
        notes.append(NOTHING_HIDDEN)
    return notes


def _document(judged: TrainedModel, point: OperatingPoint | None, key: machine.RunKey) -> Json:
    args, inputs, split, levels = judged.args, judged.inputs, judged.split, judged.levels
    threshold = None if point is None else {**point.to_dict(), "calibrated_on": CALIBRATED_ON}
    facts = judged.fitted.facts()
    return {
        "model": args.model,
        "mode": args.mode.value,
        "schema": {"hash": inputs.schema.hash(), "fields": msgspec.to_builtins(inputs.schema)},
        "label_map": {name: number for number, name in enumerate(inputs.classes.names)},
        "benign": list(inputs.classes.benign),
        "normaliser": facts.pop("normaliser"),
        "facts": facts,
        "threshold": threshold,
        "levels": None if levels is None else levels.to_dict(),
        "hyper": dict(args.hyper),
        "split": split.to_dict(),
        "seen": msgspec.to_builtins(keep(inputs, split, judged.parted.train)),
        "ranges": msgspec.to_builtins(ranges_of(inputs, split.train)),
        "run_key": key.to_dict(),
    }
