"""A job's rotation: each host of ``train_hosts`` is tested once by a model that the others trained."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_fleet_manifest import EXAMPLE, HEAD, job, load, only

from training.fleet.manifest.matrix import JOBS_MAX

SPLIT = 'split_recipe = "host"\n'
HOSTS = 'train_hosts = ["b", "c", "a"]\n'
ROTATED = SPLIT + HOSTS + 'rotate = "hosts"\n'


def test_a_rotation_tests_each_host_alone_and_trains_on_the_others():
    plan = load(HEAD + job(ROTATED + "matrix = { seed = [0, 1] }", name="gbt"))
    assert [made.name for made in plan.jobs] == [
        f"gbt[host={host},seed={seed}]" for host, seed in itertools.product("abc", (0, 1))
    ]
    first = plan.jobs[0]
    assert (first.test_hosts, first.train_hosts, first.seed) == (("a",), ("b", "c"), 0)


def test_the_page_for_people_shows_a_rotation_that_loads():
    page = (EXAMPLE.parents[1] / "docs" / "manifest.md").read_text()
    block = page.split("### `rotate`")[1].split("```toml\n")[1].split("```")[0]
    names = [made.name for made in load(HEAD + block).jobs]
    assert (len(names), names[0], names[-1]) == (12, "gbt[host=attic-pi,seed=0]", "gbt[host=rack,seed=2]")


hosts = st.lists(st.sampled_from([*"abcdef"]), min_size=2, max_size=6, unique=True)
seeds = st.none() | st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True)


@settings(max_examples=25)
@given(hosts, seeds, st.booleans())
def test_each_job_is_the_one_that_a_person_would_write(names, values, inherits):
    said = f"train_hosts = {json.dumps(names)}\n"
    head = HEAD + (f"[defaults]\n{SPLIT}{said}" if inherits else "")
    own = "" if inherits else SPLIT + said
    matrix = "" if values is None else f"matrix.seed = {values}"
    made = load(head + job(f'{own}rotate = "hosts"\n{matrix}')).jobs
    by_hand = [
        load(HEAD + job(f"{SPLIT}train_hosts = {json.dumps([*{*names} - {name}])}\ntest_hosts = {[name]}\nseed = {n}"))
        for name, n in itertools.product(sorted(names), values or [0])
    ]
    assert [each.to_dict() for each in made] == [
        plan.jobs[0].to_dict() | {"name": each.name} for plan, each in zip(by_hand, made, strict=True)
    ]
    assert len({each.job_id for each in made}) == len(names) * len(values or [0])
    for each in made:
        assert {*each.train_hosts, *each.test_hosts} == {*names}
        assert len(each.test_hosts) == 1
        assert each.test_hosts[0] not in each.train_hosts


def test_a_job_without_test_hosts_keeps_its_id_and_its_dict():
    plain = load(HEAD + job(SPLIT + HOSTS)).jobs[0]
    assert plain.job_id == load(HEAD + job(SPLIT + HOSTS + "test_hosts = []")).jobs[0].job_id
    assert "test_hosts" not in plain.to_dict()


@pytest.mark.parametrize(
    ("lines", "key", "words", "remedy"),
    [
        (SPLIT + 'rotate = "hosts"', "rotate", "needs train_hosts", "add train_hosts"),
        (SPLIT + 'train_hosts = ["a"]\nrotate = "hosts"', "rotate", "has a alone", "two hosts or more"),
        (SPLIT + 'train_hosts = ["a", "b", "a"]\nrotate = "hosts"', "train_hosts[2]", "a is there twice", "remove one"),
        (ROTATED + 'test_hosts = ["a"]', "rotate", "cannot be given with test_hosts", "remove one"),
        (SPLIT + HOSTS + 'rotate = "host"', "rotate", "no rotation `host`", "did you mean `hosts`"),
        (SPLIT + HOSTS + "rotate = true", "rotate", "must be a rotation", "known: hosts"),
        ('rotate = "hosts"\n' + HOSTS, "rotate", 'split_recipe "sample" does not', 'split_recipe = "host"'),
        ('split_recipe = "time"\nrotate = "hosts"', "rotate", 'split_recipe "time" does not', "remove rotate"),
        (
            HOSTS + 'rotate = "hosts"\nmatrix.split_recipe = ["host"]',
            "rotate",
            "a matrix of split_recipe",
            "remove one",
        ),
        (ROTATED + f"matrix.seed = {list(range(400))}", "matrix", "makes 1200 jobs", "leave values out"),
        (ROTATED + "matrix.seed = [-1, 2]", "matrix.seed[0]", "from 0 to", ""),
        (SPLIT + 'train_hosts = ["a", "-"]\nrotate = "hosts"', "train_hosts[1]", "a host's name", ""),
        (SPLIT + HOSTS + 'test_hosts = ["d", "b"]', "test_hosts", "b is one of train_hosts, too", "remove it"),
        ('test_hosts = ["d"]', "test_hosts", 'no effect under split_recipe "sample"', 'split_recipe = "host"'),
    ],
)
def test_a_wrong_rotation_is_told_once_with_its_remedy(lines, key, words, remedy):
    found = only(HEAD + job(lines))
    assert found.key == f"jobs[0].{key}"
    assert words in found.message
    assert remedy in found.suggestion


def test_a_host_that_the_defaults_name_twice_is_told_there():
    found = only(HEAD + f'[defaults]\n{SPLIT}train_hosts = ["a", "b", "a"]\n' + job('rotate = "hosts"') * 1)
    assert found.key == "defaults.train_hosts[2]"


def test_a_rotation_of_too_many_hosts_or_too_long_names_says_so():
    many = json.dumps([f"h{n}" for n in range(JOBS_MAX + 1)])
    found = only(HEAD + job(f'{SPLIT}train_hosts = {many}\nrotate = "hosts"'))
    assert (found.key, found.message) == ("jobs[0].rotate", "makes 1001 jobs, and at most 1000 are allowed")
    long = only(HEAD + job(ROTATED, name="n" * 125))
    assert "with the values of its rotation a name has 133 characters" in long.message
