"""Reading a host's channels: from texts as kernels write them, and from this very machine."""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.data.channels import CHANNELS, View
from training.watch.recording import cgroups, proc
from training.watch.recording.collect import Accumulator, ContainerCollector, MachineCollector, TreeCollector
from training.watch.recording.record import choose_collector
from training.watch.recording.stage import RecordError

# What processes report, sighting by sighting: some appear, some end, an id may be used again.
sightings = st.lists(st.dictionaries(st.integers(1, 4), st.floats(0, 1e6), max_size=4), min_size=1, max_size=30)


@given(sightings)
def test_sums_over_processes_never_fall(seen):
    total = Accumulator()
    sums = [total.update(values) for values in seen]
    assert all(after >= before - 1e-6 for before, after in pairwise(sums))
    assert sums[-1] >= sum(seen[-1].values()) - 1e-6


def test_what_an_ended_process_did_is_kept():
    total = Accumulator()
    assert total.update({1: 5.0}) == 5
    assert total.update({1: 7.0, 2: 1.0}) == 8
    assert total.update({2: 3.0}) == 10
    assert total.update({1: 2.0, 2: 3.0}) == 12, "the id is used again by another process"
    assert total.update({1: 1.0, 2: 3.0}) == 13, "and again: a smaller value is a new process"


def test_pressure_and_pairs_and_tables():
    text = "some avg10=8.33 avg60=1.50 avg300=0.31 total=1033862\nfull avg10=0.00 total=7\n"
    assert proc.pressure_s(text) == pytest.approx(1.033862)
    assert proc.pressure_s("") is None
    assert proc.pairs("a 1\nb x\nc\nd 20\n") == {"a": 1.0, "d": 20.0}
    snmp = "Tcp: ActiveOpens CurrEstab\nTcp: 7 2\nUdp: InDatagrams\nUdp: 9\n"
    assert proc.tables(snmp) == {"Tcp": {"ActiveOpens": 7, "CurrEstab": 2}, "Udp": {"InDatagrams": 9}}


def test_the_network_of_a_namespace_counts_loopback(tmp_path):
    (tmp_path / "net").mkdir()
    (tmp_path / "net/dev").write_text(
        "Inter-|   Receive\n face |bytes packets errs drop fifo frame compressed multicast|bytes packets\n"
        "    lo: 100 3 0 0 0 0 0 0 200 4 0 0 0 0 0 0\n"
        "  eth0:1000 30 0 0 0 0 0 0 2000 40 0 0 0 0 0 0\n"
    )
    found = proc.network(tmp_path)
    assert found == {"net_rx_bytes": 1100, "net_rx_packets": 33, "net_tx_bytes": 2200, "net_tx_packets": 44}
    assert proc.network(tmp_path / "nowhere") == {}


def lay(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def version_1(root):
    lay(
        root,
        {
            "cpu/cpu.stat": "nr_periods 23\nnr_throttled 21\nthrottled_time 1500000000\n",
            "cpu/cpu.cfs_quota_us": "50000\n",
            "cpuacct/cpuacct.usage_user": "2000000000\n",
            "cpuacct/cpuacct.usage_sys": "500000000\n",
            "cpuacct/cgroup.procs": f"{os.getpid()}\n",
            "memory/memory.stat": "cache 1\ntotal_rss 10\ntotal_cache 20\ntotal_dirty 3\ntotal_pgfault 7\n",
            "blkio/blkio.throttle.io_service_bytes": "254:0 Read 100\n254:0 Write 50\n254:16 Read 1\nTotal 151\n",
            "blkio/blkio.throttle.io_serviced": "254:0 Read 4\n254:0 Write 2\nTotal 6\n",
            "pids/pids.current": "5\n",
        },
    )
    return cgroups.Cgroup(v1={c: root / c for c in cgroups.V1_CONTROLLERS})


def version_2(root):
    lay(
        root,
        {
            "cpu.stat": "usage_usec 5\nuser_usec 2000000\nsystem_usec 500000\nthrottled_usec 1500000\n",
            "cpu.max": "50000 100000\n",
            "cpu.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=2000000\n",
            "memory.current": "99\n",
            "memory.max": "max\n",
            "memory.stat": "anon 10\nfile 20\nfile_dirty 3\npgfault 7\n",
            "io.stat": "254:0 rbytes=100 wbytes=50 rios=4 wios=2 dbytes=0 dios=0\n254:16 rbytes=1\n",
            "pids.current": "5\n",
            "cgroup.procs": f"{os.getpid()}\n",
        },
    )
    return cgroups.Cgroup(v2=root)


@pytest.mark.parametrize("lay_out", [version_1, version_2])
def test_both_versions_of_control_groups_tell_the_same(tmp_path, lay_out):
    group = lay_out(tmp_path)
    told = cgroups.usage(group)
    expected = {
        "cpu_user": 2.0,
        "cpu_system": 0.5,
        "cpu_throttled": 1.5,
        "memory_used": 10,
        "memory_cached": 20,
        "memory_dirty": 3,
        "page_faults": 7,
        "disk_read_bytes": 101,
        "disk_write_bytes": 50,
        "disk_reads": 4,
        "disk_writes": 2,
        "threads": 5,
    }
    assert {k: told[k] for k in expected} == expected
    assert told["page_faults_major"] is None
    assert set(told) <= set(CHANNELS)
    assert group.pids() == [os.getpid()]
    assert cgroups.is_bounded(group)


def test_a_group_without_limits_is_no_container(tmp_path):
    group = version_2(tmp_path)
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert not cgroups.is_bounded(group)


def test_mounts_are_read_from_the_kernels_table():
    v1, v2 = cgroups.mounts(
        "none /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n"
        "none /sys/fs/cgroup/mem cgroup rw,relatime,memory 0 0\n"
        "none /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
        "tmpfs /tmp tmpfs rw 0 0\n"
    )
    assert v1 == {"cpu": Path("/sys/fs/cgroup/cpu"), "memory": Path("/sys/fs/cgroup/mem")}
    assert v2 == Path("/sys/fs/cgroup/unified")


def test_the_container_view_counts_its_own_processes(tmp_path):
    collector = ContainerCollector(version_2(tmp_path))
    first, second = collector.sample(), collector.sample()
    assert first["processes"] == 1
    assert first["forks"] == second["forks"] == 1
    assert set(first) <= set(CHANNELS)


def test_the_machine_view_works_unprivileged_here():
    collector = MachineCollector()
    first, second = collector.sample(), collector.sample()
    assert set(first) <= set(CHANNELS)
    measured = {name for name, value in first.items() if value is not None}
    assert {"cpu_user", "context_switches", "memory_used", "net_rx_bytes", "processes"} <= measured
    for name in measured:
        if CHANNELS[name].kind == "counter" and name != "cpu_iowait":  # the kernel lets that one fall
            assert second[name] >= first[name]


def test_the_tree_is_seen_with_its_children_and_stays_when_they_end():
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        roots = [parent.pid]
        collector = TreeCollector(lambda: roots)
        sample = collector.sample()
        while sample["tree_processes"] < 2:
            sample = collector.sample()
        assert sample["tree_rss"] > 0
        assert sample["tree_threads"] >= 2
        parent.communicate(b"\n")
        roots.clear()
        after = collector.sample()
        assert after["tree_processes"] == 0
        assert after["tree_cpu_user"] >= sample["tree_cpu_user"]
    finally:
        parent.kill()
        parent.wait()


def test_the_view_is_chosen_by_limits(monkeypatch, tmp_path):
    monkeypatch.setattr(cgroups, "own_cgroup", lambda: None)
    assert choose_collector("auto").view is View.MACHINE
    with pytest.raises(RecordError, match="--view machine"):
        choose_collector("container")
    group = version_2(tmp_path)
    monkeypatch.setattr(cgroups, "own_cgroup", lambda: group)
    assert choose_collector("auto").view is View.CONTAINER
    assert choose_collector("machine").view is View.MACHINE
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert choose_collector("auto").view is View.MACHINE
    assert choose_collector("container").view is View.CONTAINER
