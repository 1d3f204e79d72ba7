"""Retention removes nothing that is to be kept, whatever the order, and nothing on a second look."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.fleet.scheduling import retention
from training.fleet.scheduling.retention import (
    BundleShare,
    Output,
    Removal,
    RemovalKind,
    RetainedBundle,
    RetainedDataset,
    Rules,
)

NOW = 1_000 * 86_400.0
DAYS = st.one_of(st.none(), st.sampled_from([0.0, 1.0, 30.0, 400.0]))
RULES = st.builds(
    Rules,
    best=st.one_of(st.none(), st.integers(1, 3)),
    keep_models_days=st.sampled_from([0.0, 1.0, 30.0]),
    keep_superseded_days=DAYS,
    keep_logs_days=DAYS,
    keep_curves_days=DAYS,
    keep_events_days=DAYS,
    keep_datasets_days=DAYS,
)
TIMES = st.sampled_from([NOW, NOW - 10.0, NOW - 86_400.0, NOW - 29 * 86_400.0, NOW - 31 * 86_400.0, 0.0])
DELIVERIES = st.builds(
    BundleShare,
    job_id=st.sampled_from("abcd"),
    attempt=st.integers(1, 3),
    name=st.sampled_from(["one", "two"]),
    ended=st.sampled_from([True, True, True, False]),
    held=st.sampled_from([False, False, False, True]),
    current=st.booleans(),
    since=TIMES,
    figure=st.one_of(st.none(), st.sampled_from([0.25, 0.5, 0.75, 1.0, -3.0])),
    host=st.sampled_from("xy"),
)


@st.composite
def stores(draw):
    found = []
    for number in range(draw(st.integers(0, 12))):
        model, mode = draw(st.sampled_from(["gbt", "mlp"])), draw(st.sampled_from(["realistic", "oracle"]))
        deliveries = tuple(draw(st.lists(DELIVERIES, min_size=1, max_size=3)))
        found.append(RetainedBundle(f"{model}_{mode}/{number:02}", model, mode, 10, deliveries))
    return found


def gone(bundles, rules):
    return {each.subject for each in retention.bundles_to_remove(bundles, rules, NOW)}


@given(stores(), RULES)
def test_what_is_held_or_not_ended_or_young_or_without_a_figure_stays(bundles, rules):
    went = gone(bundles, rules)
    for each in bundles:
        if each.subject in went:
            assert not any(one.held or not one.ended for one in each.deliveries)
            if each.current:
                assert rules.best is not None
                assert each.figure is not None
                assert NOW - each.since >= rules.keep_models_days * 86_400
            else:
                assert rules.keep_superseded_days is not None
                assert NOW - each.since >= rules.keep_superseded_days * 86_400


def test_a_model_stays_for_its_days_whatever_its_figure():
    days = 86_400.0
    best, worse = (
        RetainedBundle(
            name, "gbt", "oracle", 1, (BundleShare(name, 1, name, True, False, True, NOW - 7 * days, figure),)
        )
        for name, figure in (("best", 0.9), ("worse", 0.5))
    )
    assert gone([best, worse], Rules(best=1, keep_models_days=7.0)) == {"worse"}
    assert gone([best, worse], Rules(best=1, keep_models_days=7.1)) == set()
    younger = replace(worse, deliveries=(replace(worse.deliveries[0], since=NOW - 6.9 * days),))
    assert gone([best, younger], Rules(best=1)) == set(), "a week, where the plan says nothing"


def test_a_model_that_is_as_good_as_the_last_kept_one_is_told_why_it_goes():
    one, two = (
        RetainedBundle(name, "gbt", "oracle", 1, (BundleShare(name, 1, name, True, False, True, since, 0.81),))
        for name, since in (("one", 0.0), ("two", 1.0))
    )
    (removal,) = retention.bundles_to_remove([two, one], Rules(best=1), NOW)
    assert removal.subject == "two"
    assert removal.why.endswith("its validation figure is 0.81, the last kept one's 0.81, reached earlier")


@given(stores(), RULES)
def test_nobody_goes_who_is_among_the_best(bundles, rules):
    """Of what goes for its figure, as many as are kept are at least as good, and as many are left."""
    went = gone(bundles, rules)
    for each in bundles:
        if each.subject in went and each.current:
            mates = [
                other
                for other in bundles
                if (other.model, other.mode) == (each.model, each.mode) and other.current and other.figure is not None
            ]
            assert each.figure is not None
            better = [one for one in mates if one.figure is not None and one.figure >= each.figure and one is not each]
            assert rules.best is not None
            assert len(better) >= rules.best
            assert sum(one.subject not in went for one in mates) >= rules.best


@given(stores(), RULES)
def test_a_second_look_finds_nothing(bundles, rules):
    assert gone([each for each in bundles if each.subject not in gone(bundles, rules)], rules) == set()


@given(stores(), RULES, st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(bundles, rules, chance):
    before = retention.bundles_to_remove(bundles, rules, NOW)
    shuffled = [replace(each, deliveries=each.deliveries[::-1]) for each in bundles]
    chance.shuffle(shuffled)
    assert retention.bundles_to_remove(shuffled, rules, NOW) == before


@given(stores(), RULES)
def test_what_no_rule_speaks_of_stays(bundles, rules):
    nothing = Rules(
        keep_models_days=rules.keep_models_days,
        keep_logs_days=rules.keep_logs_days,
        keep_events_days=rules.keep_events_days,
    )
    assert gone(bundles, nothing) == set()


def model(number, figure, since=0.0, **facts):
    said = {"ended": True, "held": False, "current": True, **facts}
    delivery = BundleShare(f"job-{number}", 1, f"gbt-{number}", since=since, figure=figure, **said)
    return RetainedBundle(f"gbt_realistic/{number}", "gbt", "realistic", 10, (delivery,))


def test_of_equal_figures_the_first_completed_stays_then_the_lesser_digest():
    tied = [model(1, 0.5, since=20.0), model(2, 0.5, since=10.0), model(3, 0.5, since=20.0)]
    assert gone(tied, Rules(best=1)) == {"gbt_realistic/1", "gbt_realistic/3"}
    assert gone(tied, Rules(best=2)) == {"gbt_realistic/3"}


def test_of_each_host_the_best_stays():
    made = [
        model(n, figure, host=host) for n, (figure, host) in enumerate([(0.9, "a"), (0.8, "a"), (0.5, "b"), (0.4, "b")])
    ]
    assert gone(made, Rules(best=1)) == {"gbt_realistic/1", "gbt_realistic/3"}
    assert gone(made, Rules(best=3)) == {"gbt_realistic/3"}


@pytest.mark.parametrize(("own", "lie", "went"), [(0.7, 0.9, {1, 3}), (None, 0.1, {3})])
def test_another_hosts_figure_for_equal_bytes_deletes_nobodys_best_model(own, lie, went):
    shared = model(1, own, host="a")
    shared = replace(shared, deliveries=(*shared.deliveries, *model(9, lie, host="liar").deliveries))
    made = [model(0, 0.8, host="a"), shared, model(2, 1.0, host="liar"), model(3, 0.1, host="a")]
    assert gone(made, Rules(best=1)) == {f"gbt_realistic/{number}" for number in went}


def test_the_reason_names_both_figures():
    (removal,) = retention.bundles_to_remove([model(1, 0.875), model(2, 0.75), model(3, None)], Rules(best=1), NOW)
    why = "it is not among the best of gbt realistic: its validation figure is 0.75, the last kept one's 0.875"
    assert removal == Removal(RemovalKind.BUNDLE, "gbt_realistic/2", 0, 10, why, "gbt-2")
    assert retention.without_figure([model(1, 0.875), model(3, None)], Rules(best=1)) == {("gbt", "realistic"): 1}
    assert retention.without_figure([model(3, None)], Rules(best=1)) == {}
    superseded = model(3, None, current=False)
    assert retention.without_figure([model(1, 0.875), model(2, 0.75), superseded], Rules(best=1)) == {}


def test_a_bundle_of_two_jobs_stays_while_one_of_them_keeps_it():
    shared = replace(model(1, 0.5), deliveries=(*model(1, 0.5).deliveries, *model(4, 0.9).deliveries))
    assert gone([shared, model(2, 0.75)], Rules(best=1)) == {"gbt_realistic/2"}
    stale = replace(
        shared, deliveries=tuple(replace(each, current=each.job_id == "job-4") for each in shared.deliveries)
    )
    assert gone([stale, model(2, 0.95)], Rules(best=2, keep_superseded_days=0)) == set()


OUTPUTS = st.lists(
    st.builds(
        Output,
        kind=st.sampled_from([RemovalKind.LOG, RemovalKind.CURVE]),
        job_id=st.sampled_from("ab"),
        attempt=st.integers(1, 3),
        name=st.just("x"),
        ended_at=TIMES,
        size=st.just(5),
        ended=st.booleans(),
        held=st.booleans(),
    ),
    max_size=8,
    unique_by=lambda each: (each.kind, each.job_id, each.attempt),
)


@given(OUTPUTS, RULES)
def test_logs_and_curves_go_by_their_age_alone_and_never_of_a_job_in_hand(outputs, rules):
    removals = retention.outputs_to_remove(outputs, rules, NOW)
    assert removals == retention.outputs_to_remove(outputs[::-1], rules, NOW)
    went = {(each.kind, each.subject, each.number) for each in removals}
    for each in outputs:
        days = rules.keep_logs_days if each.kind is RemovalKind.LOG else rules.keep_curves_days
        old = days is not None and NOW - each.ended_at >= days * 86_400
        assert ((each.kind, each.job_id, each.attempt) in went) == (old and each.ended and not each.held)


@given(st.booleans(), TIMES, DAYS)
def test_a_data_set_goes_when_nobody_needs_it_and_it_is_old(needed, used_at, days):
    found = retention.datasets_to_remove(
        [RetainedDataset("d" * 64, (), 7, needed, used_at)], Rules(keep_datasets_days=days), NOW
    )
    assert bool(found) == (not needed and days is not None and NOW - used_at >= days * 86_400)
