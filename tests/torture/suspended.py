"""Workers that sleep beyond their lease at every kind of moment, a receiver that is away, and two with one name."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections import Counter

from process_fleet import until
from processes import nap, state_of

from torture.fleet import Fleet, dies
from torture.verdict import judge

LEASE_S = 3.0
AWAY_LEASES = 2
AT = (
    "worker.before.SendClaim", "worker.after.SendClaim", "worker.save.replaced", "worker.spawned",
    "worker.printed", "worker.trainer_ended", "worker.pack.begin", "worker.before.Upload", "client.body",
    "worker.after.Upload", "worker.before.SendComplete", "worker.after.SendComplete", "worker.discard",
)  # fmt: skip
RECEIVER_AT = (
    "transition.claim", "receiver.answering", "store.part.written", "store.published",
    "receiver.provenance", "writer.committed",
)  # fmt: skip


def _fleet() -> Fleet:
    return Fleet(policy={"stale_after_s": LEASE_S}, timeout_s=3.0)


def is_held(process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "it ended instead"
    return state_of(process.pid) == "T"


def leave(fleet: Fleet, *workers: subprocess.Popen[bytes]) -> None:
    for worker in workers:
        worker.terminate()
        # One that had only just been started knows no farewell yet.
        assert worker.wait(60) in (0, -signal.SIGTERM), "a worker did not end as told"
    judge(fleet)


def worker_sleeps(place: str, taken: bool) -> Counter[str]:
    """Suspended there until its lease is over; with ``taken`` another host trains the job meanwhile."""
    with _fleet() as fleet:
        fleet.start_receiver()
        name = fleet.add(behave="well", bytes="3000000")
        sleeper = fleet.start_worker("sleeper", crash=f"{place}:1:STOP")
        until(lambda: is_held(sleeper), f"the worker is suspended at {place}")
        held_job = fleet.status(name) != "pending"
        if taken:
            nap(LEASE_S)
            other = fleet.start_worker("other")
            fleet.wait_for(name, "completed")
        elif held_job:
            until(lambda: fleet.status(name) in ("pending", "completed"), "the lease ends")
            nap(LEASE_S / 2)
        sleeper.send_signal(signal.SIGCONT)
        fleet.wait_for(name, "completed")
        if taken:
            # It learns that its work is another's, and is ready for more.
            other.send_signal(signal.SIGSTOP)
            fleet.wait_for(fleet.add(behave="well"), "completed")
            other.send_signal(signal.SIGCONT)
            leave(fleet, sleeper, other)
        else:
            leave(fleet, sleeper)
        assert fleet.ends(name).count("completed") == 1, fleet.ends(name)
    return Counter(worker_slept=1)


def receiver_away(place: str) -> Counter[str]:
    """Killed there, and back after several leases: no attempt is counted, no line is missing."""
    with _fleet() as fleet:
        fleet.start_receiver()
        fleet.kill_receiver()
        name = fleet.add(reload=False, behave="well", bytes="3000000")
        doomed = fleet.start_receiver(f"{place}:1", wait=False)
        worker = fleet.start_worker()
        dies(doomed, place)
        nap(AWAY_LEASES * LEASE_S)
        fleet.start_receiver()
        fleet.wait_for(name, "completed")
        fleet.ended(name, "completed")
        leave(fleet, worker)
    return Counter(receiver_away=1)


def receiver_sleeps() -> Counter[str]:
    """Suspended for several leases while a trainer works: when it is back nobody is given up for lost."""
    with _fleet() as fleet:
        receiver = fleet.start_receiver()
        go = fleet.folder / "go"
        name = fleet.add(behave="linger", go=str(go))
        worker = fleet.start_worker()
        fleet.wait_for(name, "running")
        receiver.send_signal(signal.SIGSTOP)
        nap(AWAY_LEASES * LEASE_S)
        go.touch()
        nap(0.5)
        receiver.send_signal(signal.SIGCONT)
        fleet.wait_for(name, "completed")
        fleet.ended(name, "completed")
        leave(fleet, worker)
    return Counter(receiver_away=1)


def two_installations() -> Counter[str]:
    """A second machine with the host id of the first is refused, with a word, as long as the first lives."""
    with _fleet() as fleet:
        fleet.start_receiver()
        go = fleet.folder / "go"
        name = fleet.add(behave="linger", go=str(go))
        first = fleet.start_worker("host", state="first")
        fleet.wait_for(name, "running")
        further = fleet.add(behave="well")
        second = fleet.start_worker("host", state="second")
        until(lambda: "another installation" in fleet.log("host"), "the second is told")
        assert fleet.status(further) == "pending", "the second was given a job"
        go.touch()
        fleet.all_over()
        for worker in (first, second):
            worker.terminate()
            assert worker.wait(60) in (0, 1), fleet.log("host")[-1500:]
        judge(fleet)
    return Counter(two_with_one_name=1)


def copied_disk(jobs: int) -> Counter[str]:
    """Two machines run from copies of one disk: it is said, and once one of them is off, every job ends once."""
    with _fleet() as fleet:
        fleet.start_receiver()
        seed = fleet.start_worker("host", state="first")
        fleet.wait_for(fleet.add(behave="well"), "completed")
        seed.terminate()
        assert seed.wait(60) == 0
        shutil.copytree(fleet.folder / "first", fleet.folder / "second")
        for _ in range(jobs):
            fleet.add(behave="hang")
        pair = [fleet.start_worker("host", state=state) for state in ("first", "second")]

        def again(*states: str) -> None:
            """As a service does: whoever the receiver sent away is started again."""
            for number, state in enumerate(states):
                if pair[number].poll() is not None:
                    pair[number] = fleet.start_worker("host", state=state)

        def told() -> bool:
            again("first", "second")
            (host,) = fleet.client.workers()["workers"]
            return host["conflict"] is not None

        until(told, "the copy is noticed")
        pair[1].kill()
        pair[1].wait()
        for job in list(fleet.client.all_jobs()):
            if job["status"] != "completed":
                fleet.client.cancel(job["job_id"])
        names = [fleet.add(behave="well") for _ in range(jobs)]

        def over() -> bool:
            again("first")
            return all(fleet.status(name) == "completed" for name in names)

        until(over, "every job ends")
        pair[0].terminate()
        assert pair[0].wait(60) in (0, 1, -signal.SIGTERM), fleet.log("host")[-1500:]
        judge(fleet, whole_logs=False)
    return Counter(two_with_one_name=1)
