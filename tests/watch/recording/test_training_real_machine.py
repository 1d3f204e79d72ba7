"""The recordings of a real machine keep what their page says, and tell nothing of where they were made."""

from __future__ import annotations

from collections import Counter

from places import ROOT

from training.data.episode import find_episodes, read

REAL = ROOT / "examples" / "real-machine"


def test_they_are_what_the_page_says():
    metas = [read(path).meta for path in find_episodes(REAL)]
    references = [meta for meta in metas if meta.baseline]
    episodes = [meta for meta in metas if not meta.baseline]
    assert (len(references), len(episodes)) == (3, 30)
    assert {meta.duration_s for meta in references} == {60.0}
    assert {meta.duration_s for meta in episodes} == {30.0}
    assert {(meta.host, meta.view, str(meta.notes)) for meta in metas} == {("workshop", "machine", "{}")}
    page = (REAL / "README.md").read_text()
    counts = Counter(meta.scenario for meta in episodes)
    malicious = {name for meta in episodes for name, kind in meta.phases.items() if kind == "malicious"}
    assert all(f"`{name}`" in page for name in counts)
    assert {name: counts[name] for name in malicious} == dict.fromkeys(malicious, 3)
    assert len(malicious) == 5
