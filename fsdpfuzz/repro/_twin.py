"""Two trainings that differ in a few statements, as one function."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from difflib import SequenceMatcher

from fsdpfuzz.repro._layout import indented


def merged(usual: Sequence[str], other: Sequence[str], test: str) -> list[str]:
    """Both bodies in one: what is in only one of them stands under an ``if`` on ``test``.

    ``usual`` is what runs where the test is false. Each is cut between its statements, so
    either way the statements of one body run, in their order.
    """
    first, second = _statements(usual), _statements(other)
    matcher = SequenceMatcher(None, first, second, autojunk=False)
    lines: list[str] = []
    for _, low, high, start, end in matcher.get_opcodes():
        mine, its = _joined(first[low:high]), _joined(second[start:end])
        if mine == its:
            lines += mine
        elif not mine:
            lines += [f"if {test}:", *indented(its)]
        elif not its:
            lines += [f"if not {test}:", *indented(mine)]
        else:
            lines += [f"if {test}:", *indented(its), "else:", *indented(mine)]
    return lines


def _statements(lines: Sequence[str]) -> list[tuple[str, ...]]:
    """The lines of each statement, with the comments before it."""
    found, begin = [], 0
    for node in ast.parse("\n".join(lines)).body:
        end = node.end_lineno or node.lineno
        found.append(tuple(lines[begin:end]))
        begin = end
    return found


def _joined(statements: Sequence[tuple[str, ...]]) -> list[str]:
    return [line for statement in statements for line in statement]
