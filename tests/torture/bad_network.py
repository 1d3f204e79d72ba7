"""Every request of the worker is cut, held, doubled and slowed at every kind of place; every job completes once."""

from __future__ import annotations

from collections import Counter
from typing import Any

from process_fleet import until

from torture.fleet import Fleet, FleetWithData
from torture.relay import PLACES, Relay, Strike
from torture.verdict import all_told, judge

KINDS = (
    "POST claim", "POST heartbeat", "HEAD model", "PUT model", "POST complete", "POST fail", "POST log",
    "GET dataset", "GET piece",
)  # fmt: skip
FETCHED_BYTES = 20_000
CHATTER = 1000  # more lines than the report at the end of an attempt takes along


def strikes(kind: str, full: bool) -> list[Strike]:
    """Apply the strike to one kind of request."""
    places = list(PLACES) if full else ["nothing", "half the body", "all"]
    found = [Strike(kind, "cut", where) for where in places]
    answered = ["nothing", "one byte", "in the header", "the header", "half the body", "all but a byte"]
    found += [Strike(kind, "cut", where, answer=True) for where in (answered if full else ["half the body"])]
    found.append(Strike(kind, "double"))
    if full:
        found += [Strike(kind, "slow"), Strike(kind, "hang", "the header")]
        found += [Strike(kind, "hang", "nothing", answer=True)]
    return found


def strike_at(kind: str, full: bool) -> Counter[str]:
    """One job for each strike, through one relay."""
    if kind.startswith("GET"):
        return sum((_one_fetch(strike) for strike in strikes(kind, full)), Counter())
    counts: Counter[str] = Counter()
    seldom = {"heartbeat_s": 60.0} if kind == "POST log" else {}  # or they bring the lines
    with Fleet(timeout_s=1.5, settings=seldom) as fleet:
        fleet.start_receiver()
        with Relay(fleet.port) as relay:
            worker = fleet.start_worker(url=relay.url)
            for strike in strikes(kind, full):
                counts[_one(fleet, relay, strike)] += 1
            assert worker.poll() is None, fleet.log("host")[-1500:]
            worker.terminate()
            worker.wait(60)
        judge(fleet)
        assert not fleet.counts()["failed"]
    return counts


def _one(fleet: Fleet, relay: Relay, strike: Strike) -> str:
    hyper: dict[str, Any] = {"behave": "well"}
    if strike.kind == "POST fail":
        hyper = {"behave": "fail-once"}
    if strike.kind == "POST heartbeat":
        go = fleet.folder / f"go-{len(fleet.jobs)}"
        hyper = {"behave": "linger", "go": str(go)}
    if strike.kind == "POST log":
        hyper["chatter"] = str(CHATTER)
    relay.arm(strike)
    name = fleet.add(**hyper)
    if strike.kind == "POST heartbeat":
        until(relay.struck.is_set, f"{strike} happens")
        go.touch()
    fleet.wait_for(name, "completed")
    # Maybe it meets the next claim only, or what it did ends a moment after the job.
    until(relay.struck.is_set, f"{strike} happens")
    relay.disarm()
    all_told(fleet)
    attempts = fleet.job(name)["attempts"]
    wanted = 2 if strike.kind == "POST fail" else 1
    assert len(attempts) == wanted, f"{strike}: {[each['end_reason'] for each in attempts]}"
    return "strikes"


def _one_fetch(strike: Strike) -> Counter[str]:
    """A worker that has no data yet fetches it through the relay."""
    with FleetWithData(timeout_s=1.5) as fleet:
        fleet.start_receiver()
        fleet.publish([bytes(FETCHED_BYTES)])
        with Relay(fleet.port) as relay:
            relay.arm(strike)
            name = fleet.add(behave="well")
            worker = fleet.start_worker(url=relay.url)
            fleet.wait_for(name, "completed")
            assert relay.struck.is_set(), f"{strike} did not happen"
            worker.terminate()
            worker.wait(60)
        judge(fleet)
        fleet.ended(name, "completed")
    return Counter(strikes=1)
