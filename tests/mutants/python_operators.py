"""Small bugs in Python: each operator is a function from a syntax node to the changes it can make there.

The classes are those of the field (relational, logical, statement deletion: Offutt et al., "An experimental
determination of sufficient mutant operators", 1996), and those that a general tool does not have: two steps in the
other order, a loop that stops after its first page, a guard that never holds, an exception of another class.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise

from mutants.mutant import Mutant, numbered

Change = tuple[str, ast.AST, ast.AST, str]  # operator, first node, last node, new text

RELATIONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
SWAPPED_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
# Words for people and marks for the kill tests: no promise hangs on them.
SILENT = {"log", "logger", "logging", "warnings", "crashpoint", "print", "super", "typer", "console"}
SAID = {"say"}  # methods of ours that do nothing but tell a person
# Flags that ask not to be told what is so already: a folder that is there, a file that is gone, a thread at the exit.
EASED = {"exist_ok", "parents", "missing_ok", "daemon"}
# Calls of the same name that write different fields of one value, or lines of one report: their order is nobody's.
COLLECTING = {"set", "set_work"}
COLLECTORS = {"report"}


class Places:
    """The text of a module by syntax node."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._lines = [0]
        for line in text.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self._bytes = text.splitlines(keepends=True)

    def at(self, line: int, column: int) -> int:
        # Columns of a syntax tree count UTF-8 bytes.
        return self._lines[line - 1] + len(self._bytes[line - 1].encode()[:column].decode())

    def start(self, node: ast.AST) -> int:
        return self.at(node.lineno, node.col_offset)  # type: ignore[attr-defined]

    def end(self, node: ast.AST) -> int:
        return self.at(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def of(self, first: ast.AST, last: ast.AST | None = None) -> str:
        return self.text[self.start(first) : self.end(last or first)]


def mutants_of(path: str, text: str) -> list[Mutant]:
    """Every mutant of a module, in the order of its text."""
    tree, places, found = ast.parse(text), Places(text), list[Mutant]()
    for owner, node in _bodies(tree):
        for operator, first, last, new in _changes(node, places):
            old = places.of(first, last)
            if old != new:
                found.append(
                    Mutant(path, owner, operator, first.lineno, places.start(first), old, new)  # type: ignore[attr-defined]
                )
    found.sort(key=lambda each: (each.start, each.operator, each.new))
    return numbered(found)


def _bodies(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Every node that is run, with the dotted name of what holds it; constants of modules and classes too."""

    def walk(node: ast.AST, owner: str) -> Iterator[tuple[str, ast.AST]]:
        for field, value in ast.iter_fields(node):
            if field in {"annotation", "returns", "decorator_list", "type_params", "bases"}:
                continue
            for child in value if isinstance(value, list) else [value]:
                if not isinstance(child, ast.AST) or _is_words(child):
                    continue
                if isinstance(child, ast.keyword) and child.arg in EASED:
                    continue
                name = owner
                if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    name = f"{owner}.{child.name}".lstrip(".")
                yield name, child
                yield from walk(child, name)

    yield from walk(tree, "")


def _is_words(node: ast.AST) -> bool:
    """Docstrings, assertions, messages for people, imports: nothing that a test should pin."""
    if isinstance(node, ast.Assert | ast.Import | ast.ImportFrom | ast.JoinedStr):
        return True
    if isinstance(node, ast.Expr):
        if isinstance(node.value, ast.Constant):
            return True
        return isinstance(node.value, ast.Call) and (_root(node.value.func) in SILENT or _method(node.value) in SAID)
    if isinstance(node, ast.If):
        test = ast.unparse(node.test)
        return "TYPE_CHECKING" in test or "__main__" in test
    return False


def _root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute | ast.Call):
        node = node.value if isinstance(node, ast.Attribute) else node.func
    return node.id if isinstance(node, ast.Name) else ""


def _method(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _is_text(node: ast.AST) -> bool:
    """Recognise text that is put together: with another sign it is no program at all."""
    return any(
        isinstance(each, ast.JoinedStr) or (isinstance(each, ast.Constant) and isinstance(each.value, str | bytes))
        for each in ast.walk(node)
    )


def _changes(node: ast.AST, places: Places) -> Iterator[Change]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = places.of(node.left), places.of(node.comparators[0])
        yield "relation", node, node, f"{left} {RELATIONS[type(node.ops[0])]} {right}"
    elif isinstance(node, ast.BoolOp):
        word = " and " if isinstance(node.op, ast.And) else " or "
        for dropped in node.values:
            kept = [places.of(each) for each in node.values if each is not dropped]
            yield "condition dropped", node, node, "(" + word.join(kept) + ")"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "not dropped", node, node, f"({places.of(node.operand)})"
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield "constant", node, node, str(not node.value)
        elif isinstance(node.value, int | float) and node.value not in {0, 1}:
            yield "constant", node, node, repr(node.value * 2)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in SWAPPED_CALLS:
            yield "other extreme", node.func, node.func, SWAPPED_CALLS[node.func.id]
        elif node.func.id == "sorted" and not any(k.arg == "reverse" for k in node.keywords):
            yield ("order reversed", node, node, places.of(node)[:-1].rstrip().rstrip(",") + ", reverse=True)")
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        sign = "-" if isinstance(node.op, ast.Add) else "+"
        if not _is_text(node):
            yield "arithmetic", node, node, f"{places.of(node.left)} {sign} {places.of(node.right)}"
    yield from _statement_changes(node, places)


def _statement_changes(node: ast.AST, places: Places) -> Iterator[Change]:
    if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise | ast.Return | ast.Continue):
        yield "guard never holds", node.test, node.test, "False"
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await):
        yield "call skipped", node, node, "pass"
    elif isinstance(node, ast.Assign | ast.AugAssign):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if isinstance(target, ast.Attribute | ast.Subscript):
            yield "assignment skipped", node, node, "pass"
    elif isinstance(node, ast.While):
        last = node.body[-1]
        indent = " " * last.col_offset
        yield "page not followed", last, last, f"{places.of(last)}\n{indent}break"
    elif isinstance(node, ast.ExceptHandler) and node.type is not None:
        yield "other exception caught", node.type, node.type, "ZeroDivisionError"
    elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        yield "other exception raised", node.exc, node.exc, f"RuntimeError({places.of(node.exc)!r})"
    for body in (getattr(node, "body", None), getattr(node, "orelse", None)):
        if isinstance(body, list):
            yield from _swaps(body, places)


def _swaps(body: list[ast.stmt], places: Places) -> Iterator[Change]:
    for one, two in pairwise(body):
        if all(isinstance(each, ast.Expr) and isinstance(each.value, ast.Call) for each in (one, two)):
            if _is_words(one) or _is_words(two) or _only_collect(one, two):
                continue
            between = places.text[places.end(one) : places.start(two)]
            yield "order reversed", one, two, places.of(two) + between + places.of(one)


def _only_collect(one: ast.stmt, two: ast.stmt) -> bool:
    assert isinstance(one, ast.Expr)
    assert isinstance(two, ast.Expr)
    calls = [each.value for each in (one, two) if isinstance(each.value, ast.Call)]
    return all(_method(each) in COLLECTING or _root(each.func) in COLLECTORS for each in calls)
