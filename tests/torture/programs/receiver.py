"""The receiver as it is, with a policy and a reserve of disk that suit a test: shorter leases, a smaller disk."""

import json
import os
import sys
from dataclasses import fields
from functools import partial

from training.fleet.receiver import program
from training.fleet.receiver.http import problems
from training.fleet.scheduling.policy import Policy
from training.fleet.store.artifacts import ArtifactStore

given = json.loads(os.environ["CIS490_TORTURE"])
known = {field.name for field in fields(Policy)}
policy = Policy(**{name: value for name, value in given["policy"].items() if name in known})
program.policy_of = lambda _: policy  # what no operator may set: seconds for a lease
program.ArtifactStore = partial(ArtifactStore, reserve_bytes=given["reserve_bytes"])  # type: ignore[assignment,misc]

for problem_type, seconds in problems._RETRY_AFTER_S.items():  # half a minute is long for a test
    problems._RETRY_AFTER_S[problem_type] = min(1.0, seconds)

if __name__ == "__main__":
    sys.exit(program.main())
