"""A job's matrix: the jobs it makes are those that a person would write, and its mistakes are told where they stand."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_fleet_manifest import HEAD, job, load, mistakes, only

from training.fleet.manifest.matrix import JOBS_MAX, PLAN_JOBS_MAX
from training.fleet.manifest.notes import notes

GBT = '[[jobs]]\nname = "gbt"\nmodel = "gbt"\nmode = "oracle"\n'
OWN = 'trainers.own.command = ["train"]\n'


def test_a_matrix_makes_a_job_of_every_combination_called_after_its_values():
    plan = load(
        HEAD + GBT + 'priority = 7\nmatrix = { seed = [0, 1, 2], "hyper.max_depth" = [4, 6] }\n' + job(name="z")
    )
    assert [made.name for made in plan.jobs] == [
        *(f"gbt[seed={seed},max_depth={depth}]" for seed, depth in itertools.product((0, 1, 2), (4, 6))),
        "z",
    ]
    assert {made.priority for made in plan.jobs} == {7, 0}


@settings(max_examples=25)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True),
    st.lists(st.sampled_from(["0.05", "1e-1", "0.2"]), min_size=1, max_size=3, unique=True),
)
def test_each_job_has_the_id_of_the_same_job_written_by_hand(seeds, rates):
    spread = load(HEAD + GBT + f'matrix.seed = {seeds}\nmatrix."hyper.lr" = [{", ".join(rates)}]\n').jobs
    pairs = list(itertools.product(seeds, rates))
    by_hand = [load(HEAD + GBT + f"seed = {seed}\nhyper.lr = {rate}\n").jobs[0] for seed, rate in pairs]
    assert [made.job_id for made in spread] == [each.job_id for each in by_hand]
    assert [made.to_dict() | {"name": "gbt"} for made in spread] == [each.to_dict() for each in by_hand]


def test_quoted_and_dotted_keys_mean_the_same_and_stand_beside_other_hyper_keys():
    text = HEAD + GBT.replace('mode = "oracle"\n', "hyper.max_depth = 3\n")
    both = '[1, 2.5], mode = ["oracle", "realistic"]'
    quoted, dotted = (
        load(f"{text}matrix = {{ {key} = {both} }}") for key in ('"hyper.reg_lambda"', "hyper.reg_lambda")
    )
    assert quoted.jobs == dotted.jobs
    assert [made.hyper for made in quoted.jobs[::2]] == [{"max_depth": 3, "reg_lambda": n} for n in (1.0, 2.5)]
    assert quoted.jobs[1].name == "gbt[reg_lambda=1,mode=realistic]"


def test_names_say_whole_keys_where_the_short_ones_are_equal():
    text = HEAD + OWN + '[[jobs]]\nname = "a"\nmodel = "own"\nmode = "oracle"\n'
    plan = load(text + 'matrix = { dataset = ["x"], hyper.dataset = [true], "hyper.lr" = [1e-5] }')
    assert [made.name for made in plan.jobs] == ["a[dataset=x,hyper.dataset=true,lr=1e-05]"]


@pytest.mark.parametrize(
    ("line", "key", "words"),
    [
        ("matrix = 3", "matrix", "must be a table"),
        ("matrix = {}", "matrix", "is empty"),
        ("matrix = { seed = 3 }", "matrix.seed", "must be a list of values"),
        ("matrix = { seed = [] }", "matrix.seed", "empty list"),
        ("matrix = { seed = [1, 2, 1] }", "matrix.seed[2]", "there twice"),
        ("matrix = { seed = [[1]] }", "matrix.seed[0]", "must be one value, not a list"),
        ("matrix = { seed = [1, -1] }", "matrix.seed[1]", "must be a whole number"),
        (f"matrix = {{ seed = [0x{'f' * 9000}] }}", "matrix.seed[0]", "an enormous number"),
        ("matrix = { sed = [1] }", "matrix.sed", "cannot vary"),
        ('matrix = { name = ["b"] }', "matrix.name", "cannot vary"),
        ("matrix = { priority = [1, 2] }", "matrix.priority", "cannot vary"),
        ('matrix = { train_hosts = ["a"] }', "matrix.train_hosts", "cannot vary"),
        ("seed = 1\nmatrix = { seed = [1] }", "matrix.seed", "sets `seed`, too"),
        ("hyper.lr = 0.1\nmatrix = { hyper.lr = [0.1] }", "matrix.hyper.lr", "sets `hyper.lr`, too"),
        ('matrix = { "hyper.lr" = [0.1], hyper.lr = [0.2] }', "matrix.hyper.lr", "there twice"),
        ('matrix = { "hyper.leaves" = [4, 6] }', 'matrix."hyper.leaves"[0]', "no hyperparameter `leaves`"),
        ('matrix = { "hyper.max_depth" = [4, 0] }', 'matrix."hyper.max_depth"[1]', "at least 1"),
        ("matrix = { hyper = [1] }", "matrix.hyper", "cannot vary"),
        (f"matrix = {{ seed = {list(range(JOBS_MAX + 1))} }}", "matrix", f"makes {JOBS_MAX + 1} jobs"),
        ("prioriti = 1\nmatrix = { seed = [1, 2] }", "prioriti", "no key `prioriti`"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_matrix_is_told_once_where_it_stands(line, key, words):
    found = only(HEAD + GBT + line)
    assert found.key == f"jobs[0].{key}"
    assert words in found.message


def test_a_mistake_in_a_matrix_of_several_lines_has_its_own():
    text = HEAD + GBT + "[jobs.matrix]\nseed = [\n  1,\n  -1,\n]\nhyper.max_depth = [0]\n"
    assert [each.line for each in mistakes(text)] == [10, 12]


def test_a_name_that_becomes_too_long_is_told_once():
    entry = GBT.replace('name = "gbt"', f'name = "{"n" * 120}"')
    found = only(HEAD + entry + "matrix = { seed = [1, 20] }")
    assert (found.key, found.suggestion) == ("jobs[0].name", "shorten it")
    assert "a name has 129 characters, and at most 128" in found.message


def test_every_mistake_of_a_matrix_is_told_at_once():
    text = (
        HEAD + GBT.replace("oracle", "orcale") + 'matrix = { seed = [1, -1], "hyper.lr" = [0.1, "x", 9], cores = [1] }'
    )
    assert [each.key for each in mistakes(text)] == [
        "jobs[0].mode",
        'jobs[0].matrix."hyper.lr"[1]',
        'jobs[0].matrix."hyper.lr"[2]',
        "jobs[0].matrix.cores",
        "jobs[0].matrix.seed[1]",
    ]


def test_jobs_that_differ_in_more_than_seeds_are_those_written_by_hand():
    own = "priority = 3\nmin_cores = 2\nmax_run_s = 60\n"
    axes = 'model = ["gbt", "cnn"], mode = ["oracle", "realistic"], seed = [1, 2], "hyper.lr" = [0.1, 0.2]'
    made = load(f'{HEAD}[[jobs]]\nname = "all"\n{own}matrix = {{ {axes} }}\n').jobs
    assert len({job.job_id for job in made}) == 16
    by_hand = (
        f'[[jobs]]\nname = "{each.name}"\nmodel = "{each.model}"\nmode = "{each.mode}"\n{own}'
        f"seed = {each.seed}\nhyper.lr = {each.hyper['lr']}\n"
        for each in made
    )
    assert load(HEAD + "".join(by_hand)).jobs == made


def test_jobs_of_several_data_sets_and_splits_are_those_written_by_hand():
    axes = 'dataset = ["x", "y"], split_recipe = ["sample", "time"], seed = [1, 2]'
    made = load(f"{HEAD}{GBT}matrix = {{ {axes} }}\n").jobs
    assert len({job.job_id for job in made}) == 8
    by_hand = (
        f'[[jobs]]\nname = "{each.name}"\nmodel = "gbt"\nmode = "oracle"\nseed = {seed}\n'
        f'dataset = "{data}"\nsplit_recipe = "{recipe}"\n'
        for each, (data, recipe, seed) in zip(made, itertools.product("xy", ("sample", "time"), (1, 2)), strict=True)
    )
    assert load(HEAD + "".join(by_hand)).jobs == made


def test_seeds_that_are_tested_on_different_episodes_are_noted_with_the_line_to_add():
    seeds = "matrix = { seed = [1, 2, 3] }\n"
    (note,) = notes(load(HEAD + GBT + seeds))
    assert 'jobs "gbt[seed=1]" and "gbt[seed=2]" differ only in seed' in note
    assert "add the line `split_seed = 0` to their entry" in note
    for line in ("split_seed = 0\n", 'split_recipe = "time"\n'):
        assert not notes(load(f"{HEAD}[defaults]\n{line}{GBT}{seeds}"))
    assert not notes(load(HEAD + GBT + "seed = 1\n" + GBT.replace("gbt", "mlp") + "seed = 2\n"))


def test_mistakes_behind_sound_jobs_of_a_matrix_are_told():
    text = HEAD + GBT + 'matrix = { seed = [1, 2, -1], "hyper.lr" = [0.1, "x"] }'
    assert [each.key for each in mistakes(text)] == ['jobs[0].matrix."hyper.lr"[1]', "jobs[0].matrix.seed[2]"]


def test_values_that_their_flag_takes_for_one_are_the_same_model():
    message = only(
        HEAD + GBT + "matrix = { hyper.lr = [0.1] }\n" + GBT.replace('"gbt"\nmodel', '"b"\nmodel') + "hyper.lr = 1e-1"
    )
    assert 'jobs "gbt[lr=0.1]" and "b" would train the same model' in message.message


def test_a_job_called_like_one_of_a_matrix_is_refused():
    message = only(HEAD + GBT + "matrix = { seed = [1] }\n" + GBT.replace('name = "gbt"', 'name = "gbt[seed=1]"'))
    assert message.message == 'there is another job called "gbt[seed=1]"'


def test_all_matrices_of_a_plan_make_a_bounded_number_of_jobs(monkeypatch):
    monkeypatch.setattr("training.fleet.manifest.matrix.PLAN_JOBS_MAX", 5)
    one, two = (GBT.replace("gbt", name, 1) + f"hyper.lr = {rate}\n" for name, rate in (("a", 0.1), ("b", 0.2)))
    entries = (one, "matrix.seed = [1, 2, 3]\n", two, "matrix.seed = [1, 2, 3]\n")
    assert "all of a plan at most 5" in only(HEAD + "".join(entries)).message
    assert PLAN_JOBS_MAX >= JOBS_MAX
