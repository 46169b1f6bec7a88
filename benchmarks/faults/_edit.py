"""Faults as small changes of torch's own functions, and how they are applied.

A change names a function and a piece of its code, as source text. Both are compared as syntax
trees, so comments, line breaks and quotes do not matter, but nothing else is forgiven: a piece
that is not found as often as it should be is an error, never a fault that does nothing.

The code object of the function is exchanged in place. Whoever holds the function already, as a
hook or under another name, runs the changed code.
"""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Literal, TypeVar

Node = TypeVar("Node", bound=ast.AST)
Api = Literal["fsdp1", "fsdp2", "both"]
Needs = Literal["cpu", "gpu", "world size 4", "tensor parallelism"]
Area = Literal[
    "fsdp1 runtime",
    "fsdp2 runtime",
    "flat parameter",
    "parameter group",
    "reduction scale",
    "reduction dtype",
    "hsdp",
    "replicate",
    "deferred all-reduce",
    "accumulation",
    "resharding",
    "resharding without gradient sync",
    "prefetch",
    "mixed precision",
    "offload",
    "no_sync",
    "freezing",
    "activation checkpointing",
    "activation offload",
    "state dict",
    "optimizer state",
    "dcp",
    "clipping",
    "gradient scaling",
    "execution order",
    "memory tracker",
    "meta initialisation",
    "ignored parameters",
    "tied parameters",
    "wrapping",
    "tensor parallelism",
    "named mesh",
]

_FUTURE = 0x1FF0000
"""The flags of ``from __future__`` among those of a code object."""


CHANGED = "_changed_"
"""The name of a function while it is compiled."""


class EditError(Exception):
    """A change does not fit the torch at hand."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One piece of code of one function and what stands there instead.

    ``which`` of ``among`` equal pieces is changed; there must be exactly that many.
    """

    where: str
    """``module:qualified.name``; of a property, its getter."""
    old: str
    new: str
    which: int = 1
    among: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault as a user would meet it. Its spellings are of different torch releases."""

    id: str
    says: str
    """What goes wrong, in the words of whoever suffers it."""
    area: Area
    api: Api
    silent: bool
    """Whether training goes on without an error or a warning."""
    needs: Needs = "cpu"
    unseen: str = ""
    """Why nothing can show it, where that is so: found out by reading, and by cases by hand."""
    steps: int = 2
    """Optimizer steps that a case may have left when it is reduced."""
    spellings: tuple[tuple[Edit, ...], ...]
    """Exactly one of them must fit."""


def fault(
    id: str,
    says: str,
    area: Area,
    api: Api,
    *spellings: Edit | tuple[Edit, ...],
    silent: bool = True,
    needs: Needs = "cpu",
    unseen: str = "",
    steps: int = 2,
) -> Fault:
    """A fault; a spelling of one change needs no tuple."""
    return Fault(
        id=id,
        says=says,
        area=area,
        api=api,
        silent=silent,
        needs=needs,
        unseen=unseen,
        steps=steps,
        spellings=tuple(s if isinstance(s, tuple) else (s,) for s in spellings),
    )


def chosen(item: Fault, tree: Path | None = None) -> tuple[Edit, ...]:
    """The spelling that fits; of the torch below ``tree`` if one is given. :class:`EditError`."""
    fitting, reasons = [], []
    for spelling in item.spellings:
        try:
            for where in dict.fromkeys(edit.where for edit in spelling):
                _edited(where, [e for e in spelling if e.where == where], tree)
        except EditError as error:
            reasons.append(str(error))
        else:
            fitting.append(spelling)
    if len(fitting) != 1:
        said = "; ".join(reasons) or "nothing to choose by"
        raise EditError(f"{item.id}: {len(fitting)} of its spellings fit: {said}")
    return fitting[0]


def changed_code(item: Fault) -> list[tuple[FunctionType, CodeType]]:
    """The functions that the fault is in, and the code that each gets."""
    spelling = chosen(item)
    return [
        (
            function_at(where),
            compiled(where, _edited(where, [e for e in spelling if e.where == where])),
        )
        for where in dict.fromkeys(edit.where for edit in spelling)
    ]


def inject(item: Fault) -> None:
    """Changes torch in this process."""
    for function, code in changed_code(item):
        function.__code__ = code


def function_at(where: str) -> FunctionType:
    """The function itself, below its decorators."""
    module, _, name = where.partition(":")
    owner: Any = importlib.import_module(module)
    for part in name.split("."):
        owner = inspect.getattr_static(owner, part)
    if isinstance(owner, property):
        owner = owner.fget
    if isinstance(owner, staticmethod | classmethod):
        owner = owner.__func__
    function = inspect.unwrap(owner)
    if not isinstance(function, FunctionType):
        raise EditError(f"{where} is no function, but {function!r}")
    return function


@cache
def parsed(module: str, tree: Path | None) -> ast.Module:
    """The syntax tree of a module; to be copied before it is changed."""
    if tree is None:
        found = inspect.getsourcefile(importlib.import_module(module))
        path = Path(found or "")
    else:
        path = tree.joinpath(*module.split(".")).with_suffix(".py")
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise EditError(f"{module}: {error}") from None


def compiled(where: str, node: ast.FunctionDef) -> CodeType:
    """The code of a changed definition, under the function's own name, file and lines."""
    function = function_at(where)
    old = function.__code__
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    if node.name != old.co_name or old.co_firstlineno not in (first, node.lineno):
        raise EditError(f"{where}: the function is not the one in its file, line {first}")
    # Under another name, so that a function that calls itself looks itself up as before.
    name, node.name, node.decorator_list = node.name, CHANGED, []
    code = _compiled(node, old)
    if code.co_freevars != old.co_freevars:
        # The change took out the last use of a variable: one that never runs keeps it.
        names = ", ".join(old.co_freevars)
        node.body.append(_at(ast.parse(f"if False: ({names},)").body[0], node.body[-1]))
        code = _compiled(node, old)
    if code.co_freevars != old.co_freevars:
        raise EditError(f"{where}: closes over {code.co_freevars}, not {old.co_freevars}")
    if _says(code) == _says(old):
        raise EditError(f"{where}: the change leaves the code as it is")
    return code.replace(co_name=name, co_qualname=old.co_qualname)


def _compiled(node: ast.FunctionDef, old: CodeType) -> CodeType:
    # Closed-over variables, the class of super() among them, are arguments of a function around.
    around = ast.FunctionDef(
        name="around",
        args=ast.arguments(
            posonlyargs=[],
            args=[ast.arg(arg=free) for free in old.co_freevars],
            kwonlyargs=[],
            kw_defaults=[],
            defaults=[],
        ),
        body=[node],
        decorator_list=[],
    )
    if "type_params" in ast.FunctionDef._fields:
        around.type_params = []  # type: ignore[attr-defined,unused-ignore]
    module = ast.fix_missing_locations(ast.Module(body=[around], type_ignores=[]))
    flags = old.co_flags & _FUTURE
    built = compile(module, old.co_filename, "exec", flags=flags, dont_inherit=True)
    outer = next(c for c in built.co_consts if isinstance(c, CodeType))
    return next(c for c in outer.co_consts if isinstance(c, CodeType) and c.co_name == CHANGED)


def _says(code: CodeType) -> tuple[object, ...]:
    """What the code does, whatever its lines; of functions within, the same."""
    consts = [_says(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, tuple(consts)


def _edited(where: str, edits: Sequence[Edit], tree: Path | None = None) -> ast.FunctionDef:
    """The syntax tree of a function with all changes."""
    node = definition(where, tree)
    for edit in edits:
        _change(node, edit)
    return node


def definition(where: str, tree: Path | None = None) -> ast.FunctionDef:
    """A copy of a function's syntax tree; of several with its name the last, as overloads are."""
    scope: ast.AST = parsed(where.partition(":")[0], tree)
    for part in where.partition(":")[2].split("."):
        body: list[ast.stmt] = getattr(scope, "body", [])
        named = [
            n for n in body if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == part
        ]
        if not named:
            raise EditError(f"{where} does not exist")
        scope = named[-1]
    if not isinstance(scope, ast.FunctionDef):
        raise EditError(f"{where} is no function")
    return copy.deepcopy(scope)


def _change(function: ast.FunctionDef, edit: Edit) -> None:
    old, new = ast.parse(edit.old).body, ast.parse(edit.new).body
    body = ast.Module(body=function.body, type_ignores=[])  # neither arguments nor decorators
    places: list[tuple[Any, str, int | None, int]]
    replacement: list[ast.expr] | list[ast.stmt]
    if _is_expression(old) and _is_expression(new):
        wanted = ast.dump(old[0].value)  # type: ignore[attr-defined]
        places = list(_expressions(body, wanted))
        replacement = [new[0].value]  # type: ignore[attr-defined]
    else:
        places = list(_statements(body, [ast.dump(statement) for statement in old]))
        replacement = new
    if len(places) != edit.among:
        raise EditError(
            f"{edit.where}: {edit.old!r} stands there {len(places)} times, not {edit.among}"
        )
    owner, field, index, length = places[edit.which - 1]
    if index is None:
        setattr(owner, field, _at(replacement[0], getattr(owner, field)))
    else:
        values = getattr(owner, field)
        values[index : index + length] = [_at(n, values[index]) for n in replacement]


def _is_expression(body: list[ast.stmt]) -> bool:
    return len(body) == 1 and isinstance(body[0], ast.Expr)


def _expressions(root: ast.AST, wanted: str) -> Iterator[tuple[Any, str, int | None, int]]:
    """Where that expression stands: its owner, the owner's field, and its index in a list."""
    for owner, field, value in _fields(root):
        if isinstance(value, ast.expr) and ast.dump(value) == wanted:
            yield owner, field, None, 1
        if isinstance(value, list):
            for i, item in enumerate(value):
                if isinstance(item, ast.expr) and ast.dump(item) == wanted:
                    yield owner, field, i, 1


def _statements(root: ast.AST, wanted: list[str]) -> Iterator[tuple[Any, str, int | None, int]]:
    """Where those statements stand one after the other."""
    for owner, field, value in _fields(root):
        if isinstance(value, list):
            dumps = [ast.dump(item) if isinstance(item, ast.stmt) else "" for item in value]
            for i in range(len(dumps) - len(wanted) + 1):
                if dumps[i : i + len(wanted)] == wanted:
                    yield owner, field, i, len(wanted)


def _fields(root: ast.AST) -> Iterator[tuple[ast.AST, str, Any]]:
    """All fields of all nodes, in the order of the source."""
    for field, value in ast.iter_fields(root):
        yield root, field, value
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _fields(child)


def _at(node: Node, place: ast.AST) -> Node:
    """A copy of the node on the lines of what it replaces."""
    node = copy.deepcopy(node)
    for part in ast.walk(node):
        if "lineno" in part._attributes:
            ast.copy_location(part, place)
    return node
