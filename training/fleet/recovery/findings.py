"""The doctor's findings, each with a problem, a remedy and a gravity, and the report that collects them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from training.frozen import frozen
from training.sizes import Grown
from training.strict_json import JsonObject

BACKUP = (
    "with the receiver stopped, `cis490-jobs restore FOLDER --force` brings a backup back; without one, "
    "`cis490-jobs rebuild --force` makes a new database from the store"
)
HISTORY = f"the job itself is right, its history is not: keep a copy of the database and report this; {BACKUP}"

SHOWN_MAX = 20  # findings of one kind; of the rest there is only a count


class Gravity(StrEnum):
    """The seriousness of a finding; a fleet with only notes is healthy."""

    FAULT = "fault"  # a promise is broken
    WARNING = "warning"  # it will be, unless an operator acts
    NOTE = "note"


@frozen
class Finding:
    """A finding of the doctor: a problem, its remedy and its gravity."""

    check: str  # the check that found it
    problem: str  # the fault
    remedy: str  # the remedy
    level: Gravity = Gravity.FAULT

    @property
    def sentence(self) -> str:
        return f"{self.problem}; {self.remedy}"

    def to_dict(self) -> JsonObject:
        return {"check": self.check, "level": self.level.value, "problem": self.problem, "remedy": self.remedy}


@dataclass
class DoctorReport:
    """The doctor's report: all findings, how many things were checked, and the sizes of what grows."""

    findings: list[Finding] = field(default_factory=list)
    looked_at: dict[str, int] = field(default_factory=dict)  # kind → number
    grown: list[Grown] = field(default_factory=list)

    def add(self, findings: Iterable[Finding]) -> None:
        """Add findings, at most SHOWN_MAX of one kind, and for each kind one line about the rest."""
        known, rest = Counter(each.check for each in self.findings), Counter[str]()
        for each in findings:
            known[each.check] += 1
            if known[each.check] <= SHOWN_MAX:
                self.findings.append(each)
            else:
                rest[each.check] += 1
        for check, count in rest.items():
            last = next(each for each in reversed(self.findings) if each.check == check)
            self.findings.append(Finding(check, f"there are {count} more of this kind", last.remedy, last.level))

    def worded(self, words: Callable[[str], str]) -> DoctorReport:
        """Return a copy of the report in which each problem and remedy is replaced by what the function ``words``
        returns for it."""
        findings = [replace(each, problem=words(each.problem), remedy=words(each.remedy)) for each in self.findings]
        return DoctorReport(findings, self.looked_at, self.grown)

    @property
    def healthy(self) -> bool:
        """Tell whether all findings are notes, or there are none."""
        return all(each.level is Gravity.NOTE for each in self.findings)

    def to_dict(self) -> JsonObject:
        return {
            "healthy": self.healthy,
            "findings": [each.to_dict() for each in self.findings],
            "looked_at": self.looked_at,
            "sizes": [each.to_dict() for each in self.grown],
        }
