"""A module that makes an object with a finalizer when it is imported, as torch's operators do."""

import weakref


class Thing:
    """Something that can be finalized."""


def finalized(word: str) -> Thing:
    """Make an object; when the interpreter ends, ``word`` is printed."""
    thing = Thing()
    weakref.finalize(thing, print, word)
    return thing


THING = finalized("of the import")
