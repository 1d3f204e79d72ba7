"""Views for people and their tools, each from the module for its subject.

Views are read-only. Views run on a connection of their own, parallel to the writer's; hosts and the plan come from the
service. The rules that views show are in :mod:`training.fleet.scheduling`.
"""

from functools import partial

from training.fleet.database.writer import Database
from training.fleet.service.host_views import HostViews
from training.fleet.service.incident_table import IncidentViews
from training.fleet.service.job_views import JobViews
from training.fleet.service.logs import Logs
from training.fleet.service.models import Models
from training.fleet.service.obstacles import Obstacles
from training.fleet.service.output_views import OutputViews, bundle_gone
from training.fleet.service.service import Service
from training.fleet.service.speeds import SpeedViews
from training.fleet.store.artifacts import ArtifactStore
from training.fleet.store.logs import LogStore


class Views:
    """Queries about the fleet, on the last committed state."""

    def __init__(
        self, database: Database, service: Service, files: LogStore | None = None, reports: ArtifactStore | None = None
    ) -> None:
        """``files`` contains output that is no longer in the database, ``reports`` the reports that trainers wrote."""
        clock = service.clock
        self.models, self.incidents = Models(database, clock, reports), IncidentViews(database, clock)
        self.durations = SpeedViews(database, service)
        obstacles = Obstacles(database, service, self.durations)
        jobs = JobViews(database, service, self.models, obstacles)
        self.counts, self.counted, self.held = jobs.counts, jobs.counted, jobs.held
        self.jobs, self.found, self.job, self.live, self.asked = jobs.jobs, jobs.found, jobs.job, jobs.live, jobs.asked
        self.waiting, self.events, self.explain = jobs.waiting, jobs.events, obstacles.explain
        hosts = HostViews(database, service, self.durations)
        self.quarantined, self.resting, self.refused = hosts.quarantined, hosts.resting, hosts.refused
        self.workers = hosts.workers
        self.logs = Logs(database, files)
        output = OutputViews(database, clock, self.logs)
        self.log, self.log_end = output.log, output.log_end
        self.curve, self.samples = output.curve, output.samples
        self.bundle_gone = partial(bundle_gone, database)
