"""The lines of a manifest's keys. This module is loaded only to report a mistake.

``tomllib`` keeps no positions; tree-sitter's TOML grammar does. Where tree-sitter is not installed, only mistakes in
syntax or encoding are reported with a line.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from training.fleet.manifest.reader import KeyPath
from training.fleet.manifest.toml import DOTS_A_LINE_MAX

if TYPE_CHECKING:
    from tree_sitter import Node

_DEPTH_MAX = 32
_BARE = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_KEYS = ("bare_key", "quoted_key", "dotted_key")


class Positions:
    """A map from key path to line of a source, which is parsed at the first lookup."""

    def __init__(self, source: str) -> None:
        self._source = source

    def line(self, path: KeyPath) -> int | None:
        """Return the line of the key ``path``, or else of the nearest table around it; None if neither is found."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines[path] if path else None

    @cached_property
    def _lines(self) -> dict[KeyPath, int]:
        lines: dict[KeyPath, int] = {}
        for path, line in _document(self._source):
            lines.setdefault(path, line)
        return lines


def _document(source: str) -> Iterator[tuple[KeyPath, int]]:
    try:
        import tree_sitter_toml
        from tree_sitter import Language, Parser
    except ImportError:
        return
    tree = Parser(Language(tree_sitter_toml.language())).parse(source.encode("utf-8", "replace"))
    counts: dict[KeyPath, int] = {}
    for node in tree.root_node.children:
        if node.type == "pair":
            yield from _pair(node, (), 0)
        elif node.type in ("table", "table_array_element"):
            yield from _table(node, counts)


def _table(node: Node, counts: dict[KeyPath, int]) -> Iterator[tuple[KeyPath, int]]:
    """Yield (path, line) of the header and the keys of a ``[table]`` or ``[[element]]``; ``counts`` holds the number of
    the latest element of each array."""
    key = next((child for child in node.children if child.type in _KEYS), None)
    if key is None:
        return
    path: KeyPath = ()
    for part in _key(key):
        path = (*path, part)
        if node.type == "table_array_element" and path == _key(key):
            counts[path] = counts.get(path, -1) + 1
        if path in counts:  # below an element, names belong to the latest one
            path = (*path, counts[path])
    yield from _prefixes(path, key)
    for child in node.children:
        if child.type == "pair":
            yield from _pair(child, path, 0)


def _pair(node: Node, base: KeyPath, depth: int) -> Iterator[tuple[KeyPath, int]]:
    key, value = node.children[0], node.children[-1]
    path = (*base, *_key(key))
    yield from _prefixes(path, key)
    yield from _value(value, path, depth)


def _value(node: Node, path: KeyPath, depth: int) -> Iterator[tuple[KeyPath, int]]:
    if depth >= _DEPTH_MAX:
        return
    if node.type == "inline_table":
        for child in node.children:
            if child.type == "pair":
                yield from _pair(child, path, depth + 1)
    elif node.type == "array":
        entries = [child for child in node.children if child.is_named and child.type != "comment"]
        for index, child in enumerate(entries):
            yield (*path, index), child.start_point.row + 1
            yield from _value(child, (*path, index), depth + 1)


def _prefixes(path: KeyPath, node: Node) -> Iterator[tuple[KeyPath, int]]:
    """Yield (path, line) of a key and of each table above it: ``[jobs.hyper]`` may be the first mention of ``jobs``."""
    for length in range(1, len(path) + 1):
        yield path[:length], node.start_point.row + 1


def _key(node: Node) -> KeyPath:
    """Split a key into its parts as tomllib does, with quotes and escapes; empty if the key cannot be read."""
    text = (node.text or b"").decode()
    if text.count(".") > DOTS_A_LINE_MAX:
        return ()
    if _BARE.fullmatch(text):
        return tuple(text.split("."))
    try:
        found = tomllib.loads(text + " = 0")
    except (ValueError, RecursionError):
        return ()
    parts: list[str] = []
    level: object = found
    while isinstance(level, dict) and level:
        name, level = next(iter(level.items()))
        parts.append(name)
    return tuple(parts)
