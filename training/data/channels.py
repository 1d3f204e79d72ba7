"""The table of channels: the name, unit, kind and modes of each quantity that the recorder measures.

A channel's *kind* says how its values are read: a gauge is a level; a counter only grows, and becomes a rate. A
channel's *modes* say which models may see the channel: a detector on a user's machine has the ``realistic`` channels.
The laboratory, which started the behaviour and can watch its processes, has further channels; the mode ``oracle`` sees
all channels.

Recordings declare their channels in ``meta.json``, so other data may have channels that this table lacks. A channel
that a machine cannot measure is absent from its recordings.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from training.contract import Mode
from training.data.values import JsonDict


class Measure(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"


class View(StrEnum):
    """The object that a recording's numbers describe: the whole machine, or one container."""

    MACHINE = "machine"
    CONTAINER = "container"


BOTH = (Mode.ORACLE, Mode.REALISTIC)
PRIVILEGED = (Mode.ORACLE,)


class Channel(NamedTuple):
    """The entry of one measured quantity in the table. ``unit`` is the unit of the recorded values; a counter's rate
    has this unit per second."""

    name: str
    unit: str
    kind: Measure
    modes: tuple[Mode, ...] = BOTH
    word: str = ""  # of the table below

    def to_dict(self) -> JsonDict:
        return {"name": self.name, "unit": self.unit, "kind": str(self.kind), "modes": [*map(str, self.modes)]}


def _channels(modes: tuple[Mode, ...], **tables: str) -> tuple[Channel, ...]:
    """Return the channels of tables with lines ``name unit word``; text after ``#`` is a comment for readers.

    The optional word says which hosts have the channel. ``machine`` or ``container`` means only hosts in this view;
    ``some`` means only hosts whose kernel has it; ``unlike`` means all hosts, but another meaning in each view.
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

CHANNELS = {c.name: c for c in (*SYSTEM_CHANNELS, *TREE_CHANNELS)}

OPTIONAL = frozenset(c.name for c in SYSTEM_CHANNELS if c.word)  # absent on some machines
UNLIKE = frozenset(c.name for c in SYSTEM_CHANNELS if c.word == "unlike")  # views mean two things by them


def view_of(channels: Iterable[str]) -> View | None:
    """Return the view that alone has some of these channels; None if no channel belongs to one view only, or each view
    has channels of its own among these."""
    views = {CHANNELS[name].word for name in channels if name in CHANNELS} & set(View)
    return View(views.pop()) if len(views) == 1 else None
