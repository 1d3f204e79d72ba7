"""The tag of a page, computed from the state that the page shows. Pure.

A browser shows its page's tag when it asks again; the page is rendered again only when that would show something else.
The receiver stores nothing about its viewers.
"""

from __future__ import annotations

import re
from typing import NamedTuple

PROGRESS_S = 5  # a change without an event (progress, a host that asked) may wait so long
AGE_S = 20  # times such as "3 min ago" are made anew
_FORM = re.compile(r'(?:W/)?"([0-9a-f]+)-(\d{1,15})-(\d{1,15})-(\d{1,15})"')


class PageTag(NamedTuple):
    """The state from which a page was made for one viewer."""

    viewer: str  # a digest of the caller and of this program
    event: int  # the number of the last event
    version: int  # of the database
    at: int  # epoch seconds

    def __str__(self) -> str:
        return f'"{"-".join(map(str, self))}"'

    def is_news_for(self, shown: str) -> bool:
        """Return True if a page made now would differ from the one with the tag ``shown``."""
        found = _FORM.fullmatch(shown)
        if found is None or found[1] != self.viewer or int(found[2]) != self.event:
            return True
        patience = AGE_S if int(found[3]) == self.version else PROGRESS_S
        return not 0 <= self.at - int(found[4]) < patience
