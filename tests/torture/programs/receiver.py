"""The receiver as it is, with a policy and a reserve of disk that suit a test: shorter leases, a smaller disk."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import fields
from functools import partial

from training.fleet import receiver
from training.fleet.policy import Policy
from training.fleet.queue import JobQueue
from training.fleet.store import ArtifactStore

given = json.loads(os.environ["CIS490_TORTURE"])
known = {field.name for field in fields(Policy)}
policy = Policy(**{name: value for name, value in given["policy"].items() if name in known})
receiver.JobQueue = partial(JobQueue, policy=policy)  # type: ignore[assignment,misc]
receiver.ArtifactStore = partial(ArtifactStore, reserve_bytes=given["reserve_bytes"])  # type: ignore[assignment,misc]

if __name__ == "__main__":
    sys.exit(receiver.main())
