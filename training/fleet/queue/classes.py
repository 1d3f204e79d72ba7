"""Classes of jobs: jobs with equal needs that take equally long; within a class the oldest job is granted first."""

import json
from typing import NamedTuple

from training.certain import certain
from training.fleet.database.writer import Database
from training.fleet.scheduling.job import Needs
from training.fleet.scheduling.workload import work_facts
from training.strict_json import Json

CLASSES_MOST = 400  # that wait; beyond, jobs that differ in hyperparameters alone share one
_KNOWN_MOST = 10_000  # that are remembered


class JobClass(NamedTuple):
    """A class of jobs: the needs, and the facts that determine the duration, which all its jobs share."""

    class_id: int
    needs: Needs
    work: Json  # what bears on their duration, as a job dict has it


class RequirementClasses:
    """The classes in the queue's database. A class never changes, so up to ``_KNOWN_MOST`` classes are cached."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._known: dict[int, JobClass] = {}
        self._waiting: int | None = None  # classes that wait; None: to be counted

    def of(self, needs: Needs, spec: Json) -> int:
        """Return the number of a job's class; add the class if there is none yet. While ``CLASSES_MOST`` classes have
        pending jobs that are not held, a job whose class does not exist yet gets one that ignores hyperparameters."""
        text = needs.canonical(work_facts(spec))
        found = self.number(text)
        if found is None and self._count() >= CLASSES_MOST:
            text = needs.canonical(work_facts(spec, coarse=True))
            found = self.number(text)
        if found is None:
            self._waiting = self._count() + 1
            self._db.run("add_class", needs=text)
            found = self.number(text)
        return certain(found, "a class that was added has a number")

    def number(self, text: str) -> int | None:
        """Return the number of the class with this canonical text; None if there is none."""
        row = self._db.one("class_of", needs=text)
        return None if row is None else int(row["class_id"])

    def pending(self) -> list[JobClass]:
        """Return the classes that have a pending job which is not held, in the order in which the classes were
        created."""
        return [self.known(row["class_id"], row["needs"]) for row in self._db.all("pending_classes")]

    def at(self, class_id: int) -> JobClass:
        """Return a class by its number."""
        if class_id not in self._known:
            row = self._db.one("class_text", class_id=class_id)
            assert row is not None
            return self.known(class_id, row["needs"])
        return self._known[class_id]

    def known(self, class_id: int, text: str) -> JobClass:
        """Return the class with this number, described by its canonical text from the database."""
        found = self._known.get(class_id)
        if found is None:
            if len(self._known) >= _KNOWN_MOST:
                self._known.clear()
            told = json.loads(text)
            found = self._known[class_id] = JobClass(class_id, Needs.of(told), told["work"])
        return found

    def recount(self) -> None:
        """Make the next use count the classes with pending jobs again, because a new plan is being written."""
        self._waiting = None

    def _count(self) -> int:
        if self._waiting is None:
            self._waiting = len(self._db.all("pending_classes"))
        return self._waiting


class Drafts:
    """The classes of jobs that a forecast request supposes: classes of the queue, or new ones that are not stored."""

    def __init__(self, classes: RequirementClasses) -> None:
        self._classes = classes
        self._made: dict[str, JobClass] = {}

    def of(self, needs: Needs, spec: Json) -> JobClass:
        """Return the class of a supposed job, from the queue if the queue has such a class. After ``CLASSES_MOST``
        classes, hyperparameters are ignored."""
        coarse = len(self._made) >= CLASSES_MOST
        text = needs.canonical(work_facts(spec, coarse=coarse))
        if text not in self._made:
            class_id = self._classes.number(text)
            self._made[text] = JobClass(
                -1 - len(self._made) if class_id is None else class_id, needs, work_facts(spec, coarse=coarse)
            )
        return self._made[text]
