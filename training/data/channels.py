"""The channels of a recording: what each one measures, in which unit, and who is allowed to see it.

Two properties of a channel decide how everything after it treats it. A channel's *kind* says how it is read: a gauge is
a level, a counter only ever grows and becomes a rate. Its *modes* say which models may see it: a detector on a user's
machine has the ``realistic`` channels; the laboratory, which started the behaviour itself and can watch its processes,
also has the ``oracle`` ones.

Recordings declare their channels in ``meta.json``, so other data may have channels that this table lacks; what a
machine cannot measure is absent from its recordings.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, NamedTuple

from training.contract import Mode


class Measure(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"


class View(StrEnum):
    """The thing that a recording's numbers describe: the whole machine, or one container."""

    MACHINE = "machine"
    CONTAINER = "container"


BOTH = (Mode.ORACLE, Mode.REALISTIC)
PRIVILEGED = (Mode.ORACLE,)


class Channel(NamedTuple):
    """One measured quantity. ``unit`` is that of the recorded values; a counter's rate has ``unit`` per second."""

    name: str
    unit: str
    kind: Measure
    modes: tuple[Mode, ...] = BOTH
    word: str = ""  # of the table below

    @property
    def rate_unit(self) -> str:
        """The unit of the values that windows hold, after counters have become rates."""
        return f"{self.unit}/s" if self.kind is Measure.COUNTER else self.unit

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "unit": self.unit, "kind": str(self.kind), "modes": [*map(str, self.modes)]}


def _channels(modes: tuple[Mode, ...], **tables: str) -> tuple[Channel, ...]:
    """Read channels from lines of ``name unit word``; the comment beside a name explains it to a reader of this table.

    The word says which hosts have the channel: ``machine`` or ``container``: only hosts in this view; ``some``: only
    hosts with such a kernel; ``unlike``: all hosts, but its meaning differs between views.
    """
    return tuple(
        Channel(name, unit, Measure(kind), modes, "".join(word))
        for kind, table in tables.items()
        for name, unit, *word in (line.split("#")[0].split() for line in table.strip().splitlines())
    )


SYSTEM_CHANNELS = _channels(
    BOTH,
    counter="""
        cpu_user s
        cpu_system s
        cpu_iowait s machine
        cpu_irq s machine         # hard and soft interrupts
        cpu_steal s machine       # taken by the hypervisor
        cpu_throttled s container # held back by its own quota
        pressure_cpu s some       # pressure stall information, "some" task was waiting
        pressure_io s some
        pressure_memory s some
        context_switches 1
        interrupts 1 machine
        forks 1 unlike            # container view: processes first seen, so short lives are missed
        page_faults 1
        page_faults_major 1
        disk_read_bytes B
        disk_write_bytes B
        disk_reads 1
        disk_writes 1
        net_rx_bytes B
        net_tx_bytes B
        net_rx_packets 1
        net_tx_packets 1
        tcp_active_opens 1
        tcp_passive_opens 1
        tcp_attempt_fails 1
        tcp_resets_sent 1
        tcp_retransmits 1
        udp_rx_datagrams 1
        udp_tx_datagrams 1
    """,
    gauge="""
        load_1m 1 machine
        processes 1
        threads 1
        memory_used B
        memory_cached B
        memory_dirty B
        memory_writeback B
        tcp_established 1
    """,
)

TREE_CHANNELS = _channels(
    PRIVILEGED,
    counter="""
        tree_cpu_user s
        tree_cpu_system s
        tree_context_switches 1
        tree_read_bytes B         # what the processes asked for, whether or not it reached a disk
        tree_write_bytes B
    """,
    gauge="""
        tree_processes 1
        tree_threads 1
        tree_rss B
        tree_fds 1
        tree_sockets 1
    """,
)

CHANNELS: dict[str, Channel] = {c.name: c for c in (*SYSTEM_CHANNELS, *TREE_CHANNELS)}

OPTIONAL = frozenset(c.name for c in SYSTEM_CHANNELS if c.word)  # absent on some machines
UNLIKE = frozenset(c.name for c in SYSTEM_CHANNELS if c.word == "unlike")  # views mean two things by them


def view_of(channels: Iterable[str]) -> View | None:
    """The view of recordings with these channels, if one of the channels exists in one view alone."""
    views = {CHANNELS[name].word for name in channels if name in CHANNELS} & set(View)
    return View(views.pop()) if len(views) == 1 else None
