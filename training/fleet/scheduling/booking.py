"""Booking: which part of a host a job takes, whether that part is free beside running trainers, and how many threads
the job gets. Pure.

=====================  ==========================================================================================
what a job books       Cores: the number that the job names, at least one, at most the host's. Memory, also of a
                       GPU: a fifth more than trainers of the job's kind ever used, and at least the amount that
                       the job names (``min_ram_gib``, ``min_vram_gib``). A job of a kind never seen books the
                       amount that it names, or without one a share. A share of the memory is the remaining
                       memory divided by the free slots; with ``"auto"``, the part of the job's cores among the
                       free cores. A share of a GPU's memory is about an equal one for each slot that the GPU
                       serves; with ``"auto"``, all of it.
what is left           The smaller of two amounts: the whole less everything that is booked, and the memory free
                       now less the part that booked trainers have not taken yet. The whole less bookings bounds
                       what the fleet promises; the memory free now includes all other users of the machine. The
                       owner's reserve is subtracted from both amounts.
who shares             Any jobs share a host if the resources of all of them are left. A job that begins on a
                       host, or on a GPU, without other trainers of the fleet needs only the resources that it
                       names.
who trains on a GPU    A job that demands or prefers a GPU or names GPU memory, and a job of a family that trains
                       on a GPU where there is one. On a host that may train several jobs at once, a job booked
                       without a GPU sees none.
who goes first         The next job in rank that finds no room waits, and starts as soon as it fits. While a job
                       waits for room, no job behind it may take a GPU, or resources that it waits for.
=====================  ==========================================================================================
"""

from collections.abc import Iterable
from dataclasses import replace

from training.families import family_of
from training.fleet.scheduling.job import Host, Needs
from training.fleet.scheduling.resources import Booking, Gpu, HeldAttempt, Left, Room

UNTRIED_MOST = 2  # jobs of a host until as many of its models were verified
MARGIN = 1.2  # of the highest peak: no two runs hold the same
_SHARED = 0.8  # of a GPU is shared out equally; its desktop, and every program's own context, take something
_LEAST_GIB = 0.5  # of memory, below which nothing is begun beside others of which nobody knows what it takes
_EDGE_GIB = 1e-6  # of sums that round
_FLUCTUATES = 0.9  # of what was free a moment ago is free still, though nothing has happened


def most_at_once(host: Host) -> int:
    """Return how many attempts a host may train at once: the declared number, else one per core and at least one; an
    untried host at most ``UNTRIED_MOST``."""
    most = host.slots or max(1, host.cores)
    return min(most, UNTRIED_MOST) if host.untried else most


def uses_gpu(needs: Needs, host: Host) -> bool:
    """Return True if a job with these needs trains on a GPU of this host; a GPU too small for it does not count."""
    if not host.cuda or host.vram_total_gib < needs.min_vram_gib:
        return False
    return needs.require_cuda or needs.prefer_cuda or needs.min_vram_gib > 0 or family_of(needs.model).cuda


def demand(needs: Needs, host: Host) -> Booking:
    """Return what a job with these needs books on this host; the result does not name the GPU."""
    whole = max(1, host.cores)
    cores = min(max(1, needs.min_cores, needs.threads or 0), whole)
    ram = _asked(needs.peak.ram_gib, needs.min_ram_gib, _ram_share(cores, host))
    if not uses_gpu(needs, host):
        return Booking(cores, min(ram, host.ram_total_gib))
    each = -(-host.slots // max(1, len(host.gpus))) if host.slots else 1
    share = host.vram_total_gib if each == 1 else _SHARED * host.vram_total_gib / each
    vram = _asked(needs.peak.vram_gib, needs.min_vram_gib, share)
    return Booking(cores, min(ram, host.ram_total_gib), min(vram, host.vram_total_gib))


def _ram_share(cores: int, host: Host) -> float:
    """Return a job's share of the remaining memory in GiB: that of one free slot, or without declared slots, that of
    its cores among the free cores. The share is at least ``_LEAST_GIB``, or all memory of a host with less."""
    room = host.room
    left, free = (host.ram_available_gib, host.cores) if room is None else (room.ram_gib, room.cores)
    jobs = 0 if room is None else room.jobs
    part = 1 / max(1, host.slots - jobs) if host.slots else min(1.0, cores / max(1, free))
    return max(part * left, min(_LEAST_GIB, host.ram_total_gib))


def _asked(peak: float | None, least: float, share: float) -> float:
    return max(MARGIN * peak, least) if peak is not None else least or share


def beside(host: Host, held: Iterable[HeldAttempt]) -> Host:
    """Return the host with ``room`` set to the cores and memory that the attempts in ``held`` leave; without attempts,
    ``room`` is None."""
    live = list(held)
    if not live:
        return host if host.room is None else replace(host, room=None)
    gpus = []
    for n, gpu in enumerate(host.gpus):
        here = [each for each in live if each.booking.gpu == n]
        booked = [(each.booking.vram_gib, each.vram_used_gib) for each in here]
        after = min(gpu.total_gib, gpu.free_gib + sum(used for _, used in booked))
        gpus.append(Left(_left(gpu.free_gib, gpu.total_gib, booked), len(here), after))
    ram = _left(host.ram_available_gib, host.ram_total_gib, [(one.booking.ram_gib, one.ram_used_gib) for one in live])
    cores = max(host.cores, host.slots or 0) - sum(each.booking.cores for each in live)
    after = min(host.ram_total_gib, host.ram_available_gib + sum(each.ram_used_gib for each in live))
    return replace(host, room=Room(len(live), cores, ram, tuple(gpus), after))


def afterwards(host: Host) -> Host:
    """Return the host as it will be when its own attempts have ended, while other programs still use their present
    memory."""
    room = host.room
    if room is None:
        return host
    gpus = tuple(Gpu(left.after_gib, gpu.total_gib) for gpu, left in zip(host.gpus, room.gpus, strict=True))
    vram = max((gpu.free_gib for gpu in gpus), default=0.0)
    return replace(host, ram_available_gib=room.ram_after_gib, gpus=gpus, vram_free_gib=vram, room=None, short="")


def _left(free: float, total: float, booked: list[tuple[float, float]]) -> float:
    """Return the memory that stays free when each attempt in ``booked`` (pairs: its booking, its present use) uses all
    that it booked."""
    coming = sum(max(0.0, most - used) for most, used in booked)
    return max(0.0, min(total - sum(most for most, _ in booked), free - coming))


def lacks_room(needs: Needs, host: Host) -> str | None:
    """Return why a job has no room beside the attempts that train on this host; None if it has room."""
    room = host.room
    if room is None:
        return None
    wanted = demand(needs, host)
    company = "1 job" if room.jobs == 1 else f"{room.jobs} jobs"
    if wanted.cores > room.cores:
        return f"{_cores(wanted.cores)} wanted, and {_cores(room.cores)} left beside {company}"
    if wanted.ram_gib > room.ram_gib + _EDGE_GIB:
        return f"{wanted.ram_gib:.1f} GiB of memory wanted, and {room.ram_gib:.1f} left beside {company}"
    if uses_gpu(needs, host) and _gpu_for(needs, wanted, host) is None:
        most = max((left.gib for left in room.gpus), default=0.0)
        return f"{wanted.vram_gib:.1f} GiB of a GPU's memory wanted, and {most:.1f} left beside {company}"
    return None


def _cores(count: int) -> str:
    return "1 core" if count == 1 else f"{max(0, count)} cores"


def _gpu_for(needs: Needs, wanted: Booking, host: Host) -> int | None:
    """Return the number of the GPU to book: among the GPUs with room, one with the fewest attempts, then the most
    memory left. Return None if no GPU has room."""
    found = [
        (left.jobs, -left.gib, n)
        for n, left in enumerate(_lefts(host))
        if left.gib + _EDGE_GIB >= (wanted.vram_gib if left.jobs else needs.min_vram_gib)
    ]
    return min(found)[2] if found else None


def book(needs: Needs, host: Host, threads: int = 1) -> Booking:
    """Return the booking of a job that fits, with ``threads`` cores, or as many as are free if that is less, and at
    least the cores that it needs.
    """
    wanted = demand(needs, host)
    cores = min(max(wanted.cores, threads), max(wanted.cores, free_cores(host)))
    gpu = _gpu_for(needs, wanted, host) if uses_gpu(needs, host) else None
    ram = host.ram_available_gib if host.room is None else host.room.ram_gib
    known = 0.0 if needs.peak.ram_gib is None else min(wanted.ram_gib, _FLUCTUATES * ram)
    least_ram = max(known, needs.min_ram_gib) + host.reserve_ram_gib
    vram = least_vram = 0.0
    if gpu is not None:
        vram, there = min(wanted.vram_gib, host.gpus[gpu].total_gib), _lefts(host)[gpu]
        least_vram = max(min(vram, _FLUCTUATES * there.gib), needs.min_vram_gib) + host.reserve_vram_gib
    return Booking(cores, wanted.ram_gib, vram, gpu, least_ram, least_vram)


def _lefts(host: Host) -> tuple[Left, ...]:
    """Return the free part of each GPU. On a GPU without attempts of the fleet, all memory that is free now counts."""
    if host.room is None:
        return tuple(Left(gpu.free_gib, 0) for gpu in host.gpus)
    pairs = zip(host.gpus, host.room.gpus, strict=True)
    return tuple(left if left.jobs else Left(gpu.free_gib, 0) for gpu, left in pairs)


def takes_back(booked: Booking, host: Host, held: Iterable[HeldAttempt]) -> bool:
    """Return True if the host has room, beside the attempts in ``held``, for the booking of a lost attempt that
    continued there; always True if ``held`` is empty."""
    all_of_it = [booked, *(each.booking for each in held)]
    if len(all_of_it) == 1:
        return True
    on_gpu = [each.vram_gib for each in all_of_it if each.gpu == booked.gpu]
    vram = host.gpus[booked.gpu].total_gib if booked.gpu is not None and booked.gpu < len(host.gpus) else 0.0
    return (
        sum(each.cores for each in all_of_it) <= max(host.cores, host.slots or 0)
        and sum(each.ram_gib for each in all_of_it) <= host.ram_total_gib + _EDGE_GIB
        and (booked.gpu is None or len(on_gpu) == 1 or sum(on_gpu) <= vram + _EDGE_GIB)
    )


def free_cores(host: Host) -> int:
    """Return how many of the host's cores are not booked, at least 1."""
    return max(1, host.cores if host.room is None else host.room.cores)


def at_once(needs: Needs, host: Host) -> tuple[bool, int]:
    """Return whether jobs with these needs train on the host's GPUs, and how many of them the host can train at once,
    at least 1."""
    wanted, gpu = demand(needs, host), uses_gpu(needs, host)
    counts = [most_at_once(host), max(host.cores, host.slots or 0) // wanted.cores]
    if wanted.ram_gib > 0:
        counts.append(int((host.ram_total_gib + _EDGE_GIB) / wanted.ram_gib))
    if gpu and wanted.vram_gib > 0:
        counts.append(sum(int((each.total_gib + _EDGE_GIB) / wanted.vram_gib) for each in host.gpus))
    return gpu, max(1, min(counts))


def goes_before(needs: Needs, waiting: Needs, host: Host) -> bool:
    """Return True if a job may begin here although a better-ranked job (``waiting``) waits for room.

    The result is True if no attempt trains on the host, or if the room is large enough for both jobs and the job uses
    no GPU.
    """
    room = host.room
    if room is None:
        return True
    mine, other = demand(needs, host), demand(waiting, host)
    fits = mine.cores + other.cores <= room.cores and mine.ram_gib + other.ram_gib <= room.ram_gib + _EDGE_GIB
    return fits and not uses_gpu(needs, host)
