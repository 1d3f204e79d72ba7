"""A trainer that fails on purpose, so that one can see how its error reaches `cis490-jobs status`."""

from __future__ import annotations

import json
import sys

print(json.dumps({"event": "start", "epochs": 3}), flush=True)
print("looking for the calibration table …", flush=True)
sys.exit("calibration table 'bench-7' has no row for channel cpu_user; record it again")
