"""``--policy KEY=VALUE``: what may be said, and what is answered to anything else."""

from __future__ import annotations

import argparse
import re
from dataclasses import fields

import pytest

from training.fleet.scheduling.policy import Policy
from training.fleet.scheduling.policy_options import page, policy_of, setting


def test_without_settings_it_is_the_usual_policy():
    assert policy_of([]) == Policy()


def test_a_setting_changes_its_figure_and_the_last_one_counts():
    said = [setting("stale_after_s=1200"), setting("odd_deaths=5"), setting("odd_deaths=0")]
    assert policy_of(said) == Policy(stale_after_s=1200.0, odd_deaths=0)


SHOWN = re.findall(r"\w+=\S+", page())


@pytest.mark.parametrize("text", SHOWN)
def test_every_default_may_be_said(text):
    assert policy_of([setting(text)]) == Policy()


def test_the_help_shows_every_figure():
    assert sorted(text.partition("=")[0] for text in SHOWN) == sorted(field.name for field in fields(Policy))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stale_after=9", "there is no policy 'stale_after'; did you mean stale_after_s?"),
        ("xyzzy=1", "there are stale_after_s, max_attempts"),
        ("give_way_s=60", "; give urgent jobs a higher `priority` in the plan"),
        ("", "there is no policy ''"),
        ("stale_after_s=0", "a number from 1 to 2592000, not '0'"),
        ("stale_after_s=nan", "not 'nan'"),
        ("stale_after_s=inf", "not 'inf'"),
        ("stale_after_s=", "not ''"),
        ("max_attempts=2.5", "a whole number from 1"),
        ("odd_deaths=-1", "a whole number from 0"),
    ],
)
def test_anything_else_is_refused_in_one_sentence(text, said):
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        setting(text)
    assert said in str(refused.value)
