"""Lays out Python source as a formatter would: nested calls, lines of at most 100 columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

WIDTH = 100
STEP = "    "


@dataclass(frozen=True, slots=True)
class Call:
    """``name(args)``, or a list or dict literal with other brackets and no name."""

    name: str
    args: tuple[Expression, ...]
    brackets: str = "()"


Expression = str | Call


def call(name: str, *args: Expression) -> Call:
    """A call."""
    return Call(name, args)


def listing(*args: Expression) -> Call:
    """A list literal."""
    return Call("", args, "[]")


def flat(expression: Expression) -> str:
    """The expression in one line, however long."""
    if isinstance(expression, str):
        return expression
    inner = ", ".join(flat(arg) for arg in expression.args)
    return f"{expression.name}{expression.brackets[0]}{inner}{expression.brackets[1]}"


def statement(head: str, expression: Expression, *, depth: int = 0, tail: str = "") -> list[str]:
    """``head + expression + tail`` as lines; ``depth`` is how far it will be indented."""
    line = f"{head}{flat(expression)}{tail}"
    room = WIDTH - len(STEP) * depth
    if len(line) <= room or isinstance(expression, str) or not expression.args:
        return [line]
    opening = f"{head}{expression.name}{expression.brackets[0]}"
    closing = f"{expression.brackets[1]}{tail}"
    body = ", ".join(flat(arg) for arg in expression.args)
    if expression.brackets == "()" and len(STEP) + len(body) <= room:
        return [opening, STEP + body, closing]
    comma = "," if len(expression.args) > 1 or expression.brackets != "()" else ""
    inner = [
        line for arg in expression.args for line in statement("", arg, depth=depth + 1, tail=comma)
    ]
    return [opening, *indented(inner), closing]


def indented(lines: Iterable[str], depth: int = 1) -> list[str]:
    """The lines, further in."""
    return [f"{STEP * depth}{line}" if line else line for line in lines]
