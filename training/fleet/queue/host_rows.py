"""The rows of hosts: which hosts asked for work, with which capability, and when."""

import json
import math
from collections.abc import Mapping, Sequence

from training.fleet.queue.attempts import as_json
from training.fleet.queue.grants import Claimant
from training.fleet.queue.state import QueuePart, QueueState
from training.fleet.queue.unavailable import Quarantines
from training.fleet.scheduling.booking import UNTRIED_MOST
from training.strict_json import Json, JsonObject

_AS_THEY_ARE = ("first_seen", "last_seen", "instance_id", "session_id", "verified")


class HostRows(QueuePart):
    """The rows of hosts in the queue's database."""

    def __init__(self, queue: QueueState, quarantines: Quarantines) -> None:
        super().__init__(queue)
        self._quarantines = quarantines

    def all(self) -> list[JsonObject]:
        """Return the facts about every host that asked for work, whether or not it got any, except those that were
        forgotten."""
        return [
            {
                **{name: row[name] for name in _AS_THEY_ARE},
                "hostname": row["host"],
                "capability": json.loads(row["capability"]),
                "trainer_digests": json.loads(row["trainer_digests"] or "{}"),
            }
            for row in self._db.all("hosts", counted=UNTRIED_MOST)
        ]

    def note(
        self,
        hostname: str,
        capability: Json,
        claimant: Claimant,
        trainer_digests: Mapping[str, str] | None = None,
        set_aside: Sequence[Json] = (),
    ) -> None:
        self._db.run(
            "note_host",
            host=hostname,
            capability=json.dumps(dict(capability)),
            instance_id=claimant.instance_id,
            session_id=claimant.session_id,
            now=self._clock.now(),
            trainer_digests=as_json(trainer_digests or None),
            set_aside=json.dumps([dict(each) for each in set_aside]) if set_aside else None,
        )

    def forget_spare(self, kept: int) -> list[str]:
        """Delete the hosts that never got a job, except the ``kept`` ones seen last; return the deleted names. A host
        with undelivered work is kept."""
        gone = [str(row["host"]) for row in self._db.all("spare_hosts", kept=kept)]
        with self._db.transaction():
            for host in gone:
                self._db.run("forget_host", host=host)
                self._quarantines.release(host, "the receiver forgot this host")
        return gone

    def shift_times(self, step_s: float, since: float = -math.inf) -> None:
        """Move those times of leases, back-offs and hosts that lie after ``since`` by ``step_s``, after the wall clock
        stepped by that much.

        Times written between the step and its discovery are correct already. So that such times are not moved again, no
        heartbeat is moved beyond the present time. No end of a back-off is moved beyond that of the longest back-off
        that begins now.
        """
        now, policy = self._clock.now(), self._policy
        claimable_max = now + policy.backoff_max_s
        with self._db.transaction():
            self._db.run(
                "shift_jobs",
                step=step_s,
                since=since,
                now=now,
                claimable_max=claimable_max,
                avoid_max=claimable_max + policy.retry_elsewhere_grace_s,
                asked_max=now + policy.second_opinion_s,
            )
            self._db.run("shift_hosts", step=step_s, since=since, now=now)

    def behind_s(self) -> float:
        """Return by how many seconds the clock is behind what was noted last, if a time that :meth:`shift_times` moves
        is ahead of the clock; else 0, so that no time is moved twice."""
        now = self._clock.now()
        row = self._db.one("newest_time")
        ahead = self._db.number("stamped_ahead", now=now, claimable_max=now + self._policy.backoff_max_s)
        return float(row["at"] or 0.0) - now if row is not None and ahead else 0.0
