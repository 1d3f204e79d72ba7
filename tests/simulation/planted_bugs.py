"""Bugs that somebody could write in one line. The simulation must see each of them, or it sees nothing.

``seed`` is a fleet in which the bug shows; ``python -m tests.simulation --bugs`` looks for the first one anew. What the
simulation found in earnest stands here too, so that it cannot come back.
"""

from __future__ import annotations

from simulation.planted_in_data import DATA_BUGS
from simulation.planted_in_folders import FOLDER_BUGS
from simulation.planted_in_healing import HEALING_BUGS
from simulation.planted_in_moves import MOVE_BUGS
from simulation.planted_in_owners import OWNER_BUGS
from simulation.planted_in_plan import PLAN_BUGS
from simulation.planted_in_receiver import RECEIVER_BUGS
from simulation.planted_in_retention import RETENTION_BUGS
from simulation.planted_in_schedule import SCHEDULE_BUGS
from simulation.planted_in_slots import SLOT_BUGS
from simulation.planted_in_store import STORE_BUGS
from simulation.planted_in_worker import WORKER_BUGS

BUGS = (
    *RECEIVER_BUGS,
    *PLAN_BUGS,
    *SCHEDULE_BUGS,
    *HEALING_BUGS,
    *STORE_BUGS,
    *RETENTION_BUGS,
    *WORKER_BUGS,
    *FOLDER_BUGS,
    *SLOT_BUGS,
    *OWNER_BUGS,
    *MOVE_BUGS,
    *DATA_BUGS,
)
