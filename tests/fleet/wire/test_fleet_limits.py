"""The figures that the pages tell are those of the code: a reader plans by them, and nothing else would notice."""

from collections import defaultdict

import pytest
from places import ROOT

from training.contract import FINAL_EXITS, Exit
from training.files import INODES_KEPT
from training.fleet.receiver.security import authentication, authority, registry
from training.fleet.scheduling.policy import Policy
from training.fleet.service import claims, guards
from training.fleet.store import artifacts, incoming
from training.fleet.wire import constants
from training.fleet.worker import attempt, outbox, saved_states, set_aside, state_folder, tail

DOCS = ROOT / "docs"
KIB, MIB, GIB, DAY_S = 1024, 1024**2, 1024**3, 86_400
P = Policy()
WORDS = {2: "two", 3: "three", 5: "five"}
_IN = defaultdict(str, {0.5: "twice a second", 60.0: "a minute", 7.0 * DAY_S: "a week", 14.0 * DAY_S: "two weeks"})

SAID = {
    "operations.md": [
        f"{constants.LOG_BYTES_MAX // MIB} MiB: of more the beginning and the end",
        f"| attempts with such lines | the newest {outbox.ATTEMPTS_KEPT}, {outbox.BYTES_KEPT // GIB} GiB |",
        f"of failed attempts | none; the newest {state_folder.KEPT_ATTEMPTS} |",
        (
            f"At most {saved_states.KEPT_MAX}, {saved_states.BYTES_MAX / GIB:g} GiB beside the newest, "
            f"and {_IN[saved_states.AGE_MAX_S]} |"
        ),
        f"in `set-aside/` | {set_aside.KEPT_MAX}, and {set_aside.BYTES_MAX / GIB:g} GiB |",
        f"Below {attempt.DISK_FLOOR_BYTES / MIB:g} MiB of free disk, or with fewer than {INODES_KEPT} free inodes, a",
        f"{constants.LOG_BYTES_MAX // MIB} MiB of text an attempt",
        f"of more the first and the last {constants.LOG_BYTES_MAX // 2 // MIB} MiB",
        f"Below {artifacts.RESERVE_BYTES / MIB:g} MiB of free disk, or with fewer than {INODES_KEPT} free inodes, no",
    ],
    "job-lifecycle.md": [
        f"(hosts without CUDA wait {P.prefer_cuda_grace_s:g} s",
        f"a host of higher priority that is idle ({P.host_priority_grace_s:g} s)",
        f"a back-off after a failure ({P.backoff_s:g} s, doubled by each further one, at most {P.backoff_max_s / 60:g}",
        f"another host that goes first after a failure ({P.retry_elsewhere_grace_s:g} s)",
        f"`trainer: failed {P.max_attempts} of {P.max_attempts} times (max_attempts)`",
        f"`infrastructure: lost {P.max_host_losses} of {P.max_host_losses} times (max_host_losses)`",
        f"`infrastructure: granted {P.max_grants} times without an end (max_grants)`",
        "Exit code {} or {} ends a job only when".format(*sorted(FINAL_EXITS)),
        f"stopped and can resume (exit {Exit.INTERRUPTED.value})",
        f"it failed within {P.odd_death_s:g} s of its start",
        f"on which {WORDS[P.odd_deaths]} different jobs in a row failed at once",
        f"when {WORDS[P.suspect_crashes]} *different* hosts crashed or rebooted within {P.suspect_s / 60:g} minutes",
        f"its folders can be written, {attempt.DISK_WANTED_BYTES / MIB:g} MiB are free",
    ],
    "protocol.md": [
        f"`capability` and `trainer_digests` hold {guards.DESCRIPTION_MAX / KIB:g} KiB each as JSON",
        f"(and hold no finished work) the receiver remembers about {claims.SPARE_HOSTS_KEPT}",
        f"may upload at most {WORDS[incoming.PARTS_MAX]} different bundles",
        f"{WORDS[authentication.FAILURES_MAX]} wrong tokens or codes came from this address",
        f"came from this address within {_IN[authentication.FAILURES_S]}",
    ],
    "security.md": [
        f"good for {registry.CODE_LIFE_S / 60:g} minutes, for one name and one certificate request",
        f"A certificate is valid for {authority.CLIENT_DAYS} days",
        f"no more tokens of fewer than {authentication.UNGUESSABLE_CHARS} characters",
    ],
}  # fmt: skip


def test_one_look_reads_all_the_output_that_may_wait_and_what_came_meanwhile():
    assert tail.POLLS_A_LOOK * tail.READ_BYTES > tail.QUEUE_BYTES


@pytest.mark.parametrize("page", SAID)
def test_a_page_tells_the_figures_of_the_code(page):
    text = " ".join((DOCS / page).read_text(encoding="utf-8").split())
    assert [each for each in SAID[page] if each not in text] == []
