"""Small made-up recordings with readable defaults, and a clock that only sleep moves."""

import json

import numpy as np

from training.contract import FEATURES_FILE, SCHEMA_FILE, TENSORS_FOLDER, Exit
from training.data import build, episode
from training.data.alone import LOCK
from training.data.dataset import MEMORY_FOLDER, load_processed

IDS = [f"01M7VVVMGH6NVGMPZW143VJ4{n // 10}{n % 10}" for n in range(100)]
CHANNELS = (
    ("cpu_user", "s", "counter", ["oracle", "realistic"]),
    ("net_tx_bytes", "B", "counter", ["oracle", "realistic"]),
    ("memory_used", "B", "gauge", ["oracle", "realistic"]),
    ("tree_rss", "B", "gauge", ["oracle"]),
)
IDLE = {"labels": [(0.0, "idle")], "phases": {"idle": "benign"}}  # a recording that idles throughout


class TickingClock:
    """Stands still until somebody sleeps or looks: each look costs a little, as it does in the world."""

    def __init__(self, start=1_700_000_000.0, look_s=0.0):
        self.at, self.look_s = start, look_s

    def _look(self):
        self.at += self.look_s
        return self.at

    def now(self):
        return self._look()

    def monotonic(self):
        return self._look()

    def awake(self):
        return self._look()

    def sleep(self, seconds):
        self.at += seconds


def channel_infos(channels=CHANNELS):
    return [episode.ChannelInfo(name=n, unit=u, kind=k, modes=m) for n, u, k, m in channels]


def meta(episode_id=IDS[0], **changes):
    fields = {
        "schema_version": 1,
        "episode_id": episode_id,
        "host": "h0",
        "started_at": 1000.0,
        "sample_hz": 8.0,
        "duration_s": 20.0,
        "scenario": "beacon",
        "baseline": False,
        "code_version": episode.CodeVersion(commit="0" * 40, branch="main", dirty=False),
        "channels": channel_infos(),
        "phases": {"idle": "benign", "beacon": "malicious"},
    }
    return episode.Meta(**(fields | changes))


def signal(duration_s=20.0, hz=8.0, seed=0, strength=1.0):
    """Times and values (S, C): busier, by ``strength``, in the second half."""
    rng = np.random.default_rng(seed)
    t = np.arange(round(duration_s * hz)) / hz
    busy = 1 + strength * (t >= duration_s / 2)
    steps = rng.gamma(2.0, 1.0, size=(len(t), 2)) * busy[:, None] * [0.05, 2e4]
    gauges = 1e7 * (1 + 0.1 * rng.random((len(t), 2))) * busy[:, None]
    values = np.concatenate([np.cumsum(steps, axis=0), gauges], axis=1)
    values[:, :2] -= values[:1, :2].sum(axis=0)
    return t, values


def write_episode(root, *, number=0, seed=None, labels=None, t=None, values=None, **changes):
    """A folder below ``root``; idle in its first half, malicious-like in its second."""
    about = meta(IDS[number], **changes)
    made_t, made_values = signal(about.duration_s, about.sample_hz, number if seed is None else seed)
    t = made_t if t is None else t
    values = made_values if values is None else values
    if labels is None:
        labels = [(0.0, "idle"), (about.duration_s / 2, "beacon")]
    folder = root / about.episode_id
    episode.write_folder(folder, about, t, values, labels)
    return folder


def write_fleet(root, hosts=("h0", "h1"), episodes=3, references=True):
    """Some episodes on each host, and a reference of each."""
    number = 0
    for host in hosts:
        for _ in range(episodes):
            write_episode(root, number=number, host=host, started_at=1000.0 + 100 * number)
            number += 1
        if references:
            write_episode(root, number=number, host=host, baseline=True, duration_s=30.0, **IDLE)
            number += 1


def outputs(folder):
    """The files of a data set, without its lock and what is remembered beside it."""
    return {
        path.relative_to(folder): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and MEMORY_FOLDER not in path.parts and path.name != LOCK
    }


def load(folder, mode="oracle"):
    return load_processed(folder / FEATURES_FILE, folder / TENSORS_FOLDER, folder / SCHEMA_FILE, mode)


class Built:
    """Recordings below a folder, built as a user does it."""

    def __init__(self, folder, capsys):
        self.folder, self.capsys = folder, capsys

    def __call__(self, *options, source="in", out="out"):
        """Exit code, summary, and what was said."""
        folders = [str(self.folder / source), "--out-dir", str(self.folder / out)]
        code = build.main([*folders, "--json", "--jobs", "1", *map(str, options)])
        said = self.capsys.readouterr()
        return code, json.loads(said.out) if said.out else {}, said.err

    def taken(self, *options, **folders):
        code, summary, said = self(*options, **folders)
        assert code == 0, said
        return summary

    def refused(self, *options, **folders):
        code, summary, said = self(*options, **folders)
        assert (code, summary) == (Exit.BAD_DATA, {}), said
        assert said.startswith("build: ")
        assert said.count("\n") == 1
        return said

    def load(self, out="out"):
        return load(self.folder / out)
