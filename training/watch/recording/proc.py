"""Small readers of Linux's text files below /proc and /sys.

For a missing file or an ended process, and on other systems, a reader raises no error, but returns None or an empty
value; the channel is then not measured.
"""

import os
from contextlib import suppress
from pathlib import Path

Sample = dict[str, float | None]  # what was measured, by channel

PROC = Path("/proc")
NETWORK = ("net_rx_bytes", "net_rx_packets", "net_tx_bytes", "net_tx_packets")
# Channels, and the protocols and names that /proc/net/snmp has for them.
SNMP = """
    tcp_active_opens Tcp ActiveOpens
    tcp_passive_opens Tcp PassiveOpens
    tcp_attempt_fails Tcp AttemptFails
    tcp_resets_sent Tcp OutRsts
    tcp_retransmits Tcp RetransSegs
    tcp_established Tcp CurrEstab
    udp_rx_datagrams Udp InDatagrams
    udp_tx_datagrams Udp OutDatagrams
"""
SNMP_NAMES = [line.split() for line in SNMP.strip().splitlines()]


def read_text(path: str | Path) -> str:
    """Return a file's text, or an empty string if the file cannot be read."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:  # noqa: PTH123 - Path.open costs double here
            return file.read()
    except OSError:
        return ""


def number(path: str | Path) -> float | None:
    """Return the number in a file that contains only a whole number, as many control group files do; None for other
    content or an unreadable file."""
    text = read_text(path).strip()
    return float(text) if text.isdigit() else None


def pairs(text: str) -> dict[str, float]:
    """Return the whole number of each key in lines ``key value``, as in memory.stat, cpu.stat and vmstat; other lines
    are skipped."""
    found = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        value = value.strip()
        if value.isdigit():
            found[key] = float(value)
    return found


def pressure_s(text: str) -> float | None:
    """Return the total seconds in which at least one task was stalled, from a pressure file's text; None if the text
    has no such line."""
    for line in text.splitlines():
        if line.startswith("some "):
            return float(line.rpartition("total=")[2]) / 1e6
    return None


def tables(text: str) -> dict[str, dict[str, float]]:
    """Return the numbers in the text of /proc/net/snmp, by protocol and name.

    The text has two lines for each protocol, one of names and one of values, each after the protocol's name.
    """
    found = {}
    lines = text.splitlines()
    for names, values in zip(lines[::2], lines[1::2], strict=False):
        protocol, _, keys = names.partition(":")
        _, _, numbers = values.partition(":")
        found[protocol] = {k: float(v) for k, v in zip(keys.split(), numbers.split(), strict=False)}
    return found


def network(proc: Path = PROC) -> dict[str, float]:
    """Return the network channels of this process's namespace, by name; loopback counts, because behaviours use only
    loopback."""
    found: dict[str, float] = {}
    snmp = tables(read_text(proc / "net/snmp"))
    found |= {name: snmp[protocol][key] for name, protocol, key in SNMP_NAMES if protocol in snmp}
    totals = [0.0] * 4
    rows = read_text(proc / "net/dev").splitlines()[2:]
    for row in rows:
        fields = row.partition(":")[2].split()
        for i, column in enumerate((0, 1, 8, 9)):
            totals[i] += float(fields[column])
    if rows:
        found.update(zip(NETWORK, totals, strict=True))
    return found


def thread_switches(pid: int) -> float | None:
    """Return the number of context switches of all threads of a process; None if the process has ended."""
    try:
        # os.listdir and readlink, not pathlib: these run for every process many times a second.
        threads = os.listdir(f"{PROC}/{pid}/task")  # noqa: PTH208
    except OSError:
        return None
    total = 0.0
    for thread in threads:
        for line in read_text(f"{PROC}/{pid}/task/{thread}/status").splitlines()[-2:]:
            if "ctxt_switches" in line:
                total += float(line.rpartition("\t")[2])
    return total


def open_sockets(pid: int) -> float | None:
    """Return the number of sockets that a process holds open; None if /proc does not show them.

    The cost does not grow with the host's connections, because /proc/net/tcp is not read.
    """
    folder = f"{PROC}/{pid}/fd"
    count = 0
    try:
        for descriptor in os.listdir(folder):  # noqa: PTH208
            with suppress(OSError):
                target = os.readlink(f"{folder}/{descriptor}")  # noqa: PTH115
                count += target.startswith("socket:")
    except OSError:
        return None
    return float(count)
