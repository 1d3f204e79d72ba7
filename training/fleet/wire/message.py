"""The base class of all messages."""

from __future__ import annotations

from functools import partial
from typing import Any, Self, dataclass_transform

import msgspec

from training.strict_json import JsonObject as JsonObject


class _Message(msgspec.StructMeta):
    """A metaclass that makes every message immutable, and its constructor take the members by name only."""

    def __new__(mcls, *of: Any, **config: Any) -> _Message:
        return super().__new__(mcls, *of, **{"frozen": True, "kw_only": True, **config})


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Wire(msgspec.Struct, metaclass=_Message, frozen=True, kw_only=True):
    """Base of every message."""

    @classmethod
    def of(cls, value: Any, **given: Any) -> Self:
        """Make the message: members in ``given`` get those values; the others are read by name from ``value``: items of
        a mapping or database row, else attributes. A member absent from both raises an error, also if the message has a
        default for it."""
        read = value.__getitem__ if hasattr(value, "keys") else partial(getattr, value)
        return cls(**{name: read(name) for name in cls.__struct_fields__ if name not in given}, **given)

    def __getitem__(self, member: str) -> Any:
        """Return the member with this name, so that ``answer["job_id"]`` is ``answer.job_id``; raises KeyError for any
        other name."""
        if member not in self.__struct_fields__:
            raise KeyError(member)
        return getattr(self, member)

    def to_dict(self) -> JsonObject:
        """Return the message as the JSON object that it is on the wire."""
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]
