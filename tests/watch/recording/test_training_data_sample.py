"""The recorded sample keeps what its page says, and builds as it lies here."""

from collections import Counter, defaultdict

import pytest
from places import ROOT

from training.contract import FEATURES_FILE, TENSORS_FOLDER
from training.data.assemble import BuildOptions
from training.data.build import build
from training.data.dataset import load_processed
from training.data.episode import find_episodes, read

SAMPLE = ROOT / "examples" / "telemetry-sample"


@pytest.fixture(scope="module")
def episodes():
    return [read(path) for path in find_episodes(SAMPLE)]


def test_every_behaviour_is_on_every_host_and_references_stand_apart(episodes):
    labelled = [e.meta for e in episodes if not e.meta.baseline]
    hosts = {m.host for m in labelled}
    seen = defaultdict(Counter)
    for meta in labelled:
        seen[meta.scenario][meta.host] += 1
    assert len(hosts) >= 3
    assert len(labelled) >= 120
    assert all(set(counts) == hosts for counts in seen.values())
    labels = {phase: kind for m in labelled for phase, kind in m.phases.items()}
    assert list(labels.values()).count("benign") >= 6
    assert list(labels.values()).count("malicious") >= 4
    references = Counter(e.meta.host for e in episodes if e.meta.baseline)
    assert set(references) == hosts
    assert min(references.values()) >= 4


def test_recordings_are_long_dense_and_small(episodes):
    for episode in episodes:
        assert episode.t[-1] >= 40
        assert len(episode.t) / episode.t[-1] >= 5
        assert not episode.meta.code_version.dirty
    assert sum(p.stat().st_size for p in SAMPLE.iterdir()) < 15e6


@pytest.mark.thorough
def test_the_sample_builds_whole(tmp_path):
    summary = build(SAMPLE, tmp_path, BuildOptions())
    assert summary.quarantined == {}
    assert summary.hosts_without_baseline == []
    assert summary.dropped_channels == []
    paths = (tmp_path / FEATURES_FILE, tmp_path / TENSORS_FOLDER, None)
    realistic, oracle = (load_processed(*paths, mode) for mode in ("realistic", "oracle"))
    assert set(realistic.channel_names) < set(oracle.channel_names)
    assert 0.1 < realistic.y.mean() < 0.5
    assert len(realistic) == summary.windows > 2000
