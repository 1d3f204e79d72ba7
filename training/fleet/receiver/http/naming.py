"""Paths that name a job: a name may hold any printable character, also a slash, which is sent as ``%2F``."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from starlette.routing import Match, Route
from starlette.types import Scope

_SLASH = "\0"  # in no name: stands for a slash while a path is cut into segments


class NamingRoute(Route):
    """A route that cuts a path into segments before it decodes them."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        raw = scope.get("raw_path", b"").decode("ascii", "replace")
        if "%2f" not in raw.lower():
            return super().matches(scope)
        path = "/".join(unquote(part).replace("/", _SLASH) for part in raw.split("/"))
        match, found = super().matches({**scope, "path": path})
        return match, {**found, "path_params": _with_slashes(found.get("path_params", {}))}


def _with_slashes(named: dict[str, Any]) -> dict[str, Any]:
    return {key: value.replace(_SLASH, "/") for key, value in named.items()}
