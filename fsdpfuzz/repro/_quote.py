"""Quotes the fuzzer's own modules word for word, without their docstrings."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.resources import files

_HELPER = "call"


@cache
def _source() -> tuple[str, dict[str, ast.ClassDef | ast.FunctionDef]]:
    # Read as text: importing it would import torch.
    text = (files("fsdpfuzz.ranks") / "_modules.py").read_text(encoding="utf-8")
    definitions = {
        node.name: node
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }
    return text, definitions


def quote(names: Iterable[str], *, recomputed: bool) -> list[str]:
    """The definitions with these names and what they need, two blank lines before each.

    Where nothing is recomputed a module calls its children directly, not through ``call``.
    """
    _, definitions = _source()
    needed = set(names)
    for name in list(needed):
        node = definitions[name]
        if isinstance(node, ast.ClassDef):
            needed.update(b.id for b in node.bases if isinstance(b, ast.Name))
    if recomputed:
        needed.add(_HELPER)
    lines: list[str] = []
    for name, node in definitions.items():
        if name in needed:
            lines += ["", "", *_definition(node, recomputed=recomputed)]
    return lines


def _definition(node: ast.ClassDef | ast.FunctionDef, *, recomputed: bool) -> Iterator[str]:
    text, _ = _source()
    lines = text.splitlines()
    dropped = set(_docstring_lines(node, lines))
    if not recomputed:
        # From the right, so that the places of those to the left stay right.
        for found in sorted(_outermost_calls(node), key=_place, reverse=True):
            number = found.lineno - 1
            lines[number] = (
                lines[number][: found.col_offset]
                + _direct(found, text)
                + lines[number][found.end_col_offset :]
            )
    for number in range(node.lineno - 1, node.end_lineno or node.lineno):
        if number not in dropped:
            yield lines[number]


def _docstring_lines(node: ast.AST, lines: list[str]) -> Iterator[int]:
    for inner in ast.walk(node):
        if not isinstance(inner, ast.ClassDef | ast.FunctionDef):
            continue
        first = inner.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            end = first.end_lineno or first.lineno
            yield from range(first.lineno - 1, end)
            if isinstance(inner, ast.ClassDef) and not lines[end]:
                yield end


def _outermost_calls(node: ast.AST) -> Iterator[ast.Call]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call) and _is_helper(child):
            yield child
        else:
            yield from _outermost_calls(child)


def _place(node: ast.Call) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _is_helper(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "id", None) == _HELPER


def _direct(node: ast.expr, text: str) -> str:
    """The call without the helper: ``call(self.body, x)`` becomes ``self.body(x)``."""
    if isinstance(node, ast.Call) and _is_helper(node):
        inner = ", ".join(_direct(arg, text) for arg in node.args[1:])
        return f"{_direct(node.args[0], text)}({inner})"
    return ast.get_source_segment(text, node) or ""
