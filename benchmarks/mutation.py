"""Mutants of torch's files, by their syntax trees, and the lines of these files that are run.

A mutant's id is the number of its module, of its function within that, and its own within this:
the same for the same release of torch. The module's attributes of such names are injections.
"""

from __future__ import annotations

import ast
import copy
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.faults._edit import EditError, compiled, definition, function_at, parsed

MODULES = (
    "torch.distributed.fsdp._fully_shard._fsdp_collectives",
    "torch.distributed.fsdp._fully_shard._fsdp_common",
    "torch.distributed.fsdp._fully_shard._fsdp_init",
    "torch.distributed.fsdp._fully_shard._fsdp_param",
    "torch.distributed.fsdp._fully_shard._fsdp_param_group",
    "torch.distributed.fsdp._fully_shard._fsdp_state",
    "torch.distributed.fsdp._fully_shard._fully_shard",
    "torch.distributed.fsdp._runtime_utils",
    "torch.distributed.fsdp._flat_param",
    "torch.distributed.fsdp._state_dict_utils",
    "torch.distributed.fsdp._optim_utils",
    "torch.distributed.checkpoint.state_dict",
)
REACHED = "FSDPFUZZ_REACHED"
"""The environment variable that names the folder in which ranks leave the lines that they ran."""
_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}
_TALK = re.compile(r"^(logger|warnings|torch\.profiler|record_function|SimpleProfiler|print)\b")
"""Calls that only say something."""
_WIDTH = 160
"""Characters of a statement that are shown, and that are searched for streams: ids hang on it."""
_STREAMS = re.compile(r"wait_stream|wait_event|record_event|record_stream|synchronize\(|_compiling")
"""What has no effect on a CPU, or is about tracing: its mutants are all alike there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change of one line."""

    id: str
    where: str
    line: int
    before: str
    after: str

    @property
    def module(self) -> str:
        """The module that the function is in."""
        return self.where.partition(":")[0]

    def __str__(self) -> str:
        return f"{self.id} {self.where}, line {self.line}: {self.before}  →  {self.after}"


def all_mutants() -> Iterator[Mutant]:
    """Every mutant of every function, reached or not."""
    for number, module in enumerate(MODULES):
        for function, where in enumerate(functions(module)):
            for index, (line, before, after) in enumerate(_described(where)):
                name = f"m{number}_{function}_{index}"
                yield Mutant(id=name, where=where, line=line, before=before, after=after)


def __getattr__(name: str) -> Callable[[object], None]:
    """The injection of a mutant by its id."""
    found = re.fullmatch(r"m(\d+)_(\d+)_(\d+)", name)
    if found is None:
        raise AttributeError(name)
    module, function, index = map(int, found.groups())
    return lambda _: inject(functions(MODULES[module])[function], index)


def inject(where: str, index: int) -> None:
    """Changes torch in this process."""
    node = definition(where)
    for i, (_, change) in enumerate(_changes(node)):
        if i == index:
            change()
            function_at(where).__code__ = compiled(where, node)
            return
    raise EditError(f"{where} has no mutant {index}")


@cache
def functions(module: str) -> tuple[str, ...]:
    """Its functions and methods; of several with one name the last."""
    found: dict[str, None] = {}
    for node in parsed(module, None).body:
        if isinstance(node, ast.FunctionDef):
            found[f"{module}:{node.name}"] = None
        elif isinstance(node, ast.ClassDef):
            methods = [m for m in node.body if isinstance(m, ast.FunctionDef)]
            found |= dict.fromkeys(f"{module}:{node.name}.{m.name}" for m in methods)
    return tuple(found)


def _described(where: str) -> Iterator[tuple[int, str, str]]:
    """Line, the statement as it is, and as it would be, of each mutant of a function."""
    node = definition(where)
    for index in range(sum(1 for _ in _changes(node))):
        node = definition(where)
        place, change = next(c for i, c in enumerate(_changes(node)) if i == index)
        before = ast.unparse(place)
        holder = copy.copy(place)
        change()
        yield holder.lineno, *_shown(before, ast.unparse(place))


def _head(statement: ast.stmt) -> str:
    """The first line of a statement."""
    return ast.unparse(statement).split("\n", 1)[0][:_WIDTH]


def _shown(before: str, after: str) -> tuple[str, str]:
    """The first lines of a statement, or of a long one the part in which they differ."""
    pairs = enumerate(zip(before, after, strict=False))
    at = next((i for i, (one, other) in pairs if one != other), 0)
    start = at - _WIDTH // 2 if at > _WIDTH * 3 // 4 else 0
    dots = "..." if start else ""
    first, second = ((dots + text[start:].split("\n", 1)[0])[:_WIDTH] for text in (before, after))
    return first, "(gone)" if before == after else second


def _changes(function: ast.FunctionDef) -> Iterator[tuple[ast.stmt, Callable[[], None]]]:
    """All single changes of a function, each with the statement that it is in."""
    for owner, field, index, statement in _statements(function):
        if _is_idle_here(statement):
            continue
        if isinstance(statement, ast.Expr | ast.AugAssign) or _sets_attribute(statement):
            body: list[ast.stmt] = getattr(owner, field)
            yield (
                statement,
                lambda body=body, i=index: body.__setitem__(  # type: ignore[misc]
                    i, ast.copy_location(ast.Pass(), body[i])
                ),
            )
        for part in _own_parts(statement):
            for change in _changes_of(part):
                yield statement, change


def _statements(root: ast.AST) -> Iterator[tuple[ast.AST, str, int, ast.stmt]]:
    """All statements below a node, and where they stand; not those that only raise."""
    for field in ("body", "orelse", "finalbody", "handlers"):
        for i, child in enumerate(getattr(root, field, ()) or ()):
            if isinstance(child, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom):
                continue
            if isinstance(child, ast.stmt):
                yield root, field, i, child
            yield from _statements(child)


def _own_parts(statement: ast.stmt) -> Iterator[ast.AST]:
    """What a statement is made of, without the statements below it and without annotations."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return
    yield statement
    for name, value in ast.iter_fields(statement):
        if name in ("annotation", "body", "orelse", "finalbody", "handlers"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from ast.walk(child)


def _changes_of(part: ast.AST) -> Iterator[Callable[[], None]]:
    """What can be changed at one node."""
    match part:
        case ast.Compare(ops=[compared]) if type(compared) in _COMPARED:
            yield lambda: setattr(part, "ops", [_COMPARED[type(compared)]()])
        case ast.BoolOp(op=joined):
            other = ast.Or() if isinstance(joined, ast.And) else ast.And()
            yield lambda: setattr(part, "op", other)
        case ast.BinOp(op=done) | ast.AugAssign(op=done) if type(done) in _COMPUTED:
            yield lambda: setattr(part, "op", _COMPUTED[type(done)]())
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test) if (
            not _is_negated_elsewhere(test)
        ):
            negated = ast.copy_location(ast.UnaryOp(op=ast.Not(), operand=test), test)
            yield lambda: setattr(part, "test", ast.fix_missing_locations(negated))
        case ast.Constant(value=bool(flag)):
            yield lambda: setattr(part, "value", not flag)
        case ast.Constant(value=int(number)):
            yield lambda: setattr(part, "value", number + 1)
        case ast.Return(value=ast.expr() as given) if not _is_none(given):
            nothing = ast.copy_location(ast.Constant(value=None), given)
            yield lambda: setattr(part, "value", nothing)
        case _:
            pass


def _is_negated_elsewhere(test: ast.expr) -> bool:
    """Whether the change of its comparison is its negation."""
    exact = ast.Eq | ast.NotEq | ast.Is | ast.IsNot | ast.In | ast.NotIn
    return isinstance(test, ast.Compare) and isinstance(test.ops[0], exact)


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _sets_attribute(statement: ast.stmt) -> bool:
    """Whether it can be left out: an assignment to a name leaves the name unknown instead."""
    return isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Attribute)


def _is_idle_here(statement: ast.stmt) -> bool:
    """Whether no mutant of a statement could be told from the original here."""
    if _STREAMS.search(_head(statement)):
        return True
    if isinstance(statement, ast.Expr):
        said = isinstance(statement.value, ast.Constant)  # a docstring
        return said or bool(_TALK.match(ast.unparse(statement.value)))
    return isinstance(statement, ast.Pass | ast.Global | ast.Nonlocal)


def trace(env: Any) -> None:
    """An injection that changes nothing and leaves the lines that ran, after each case."""
    from fsdpfuzz.ranks import _worker

    files = {function_file(module): module for module in MODULES}
    lines: dict[str, set[int]] = {module: set() for module in MODULES}
    target = Path(os.environ[REACHED]) / f"{os.getpid()}-{env.rank}.json"
    run_case = _worker.run_case

    def local(frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            lines[files[frame.f_code.co_filename]].add(frame.f_lineno)
        return local

    def calls(frame: FrameType, _event: str, _: object) -> Any:
        return local if frame.f_code.co_filename in files else None

    def traced(case: Any, given: Any) -> Any:
        before = sum(map(len, lines.values()))
        threading.settrace(calls)
        sys.settrace(calls)
        try:
            return run_case(case, given)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type,unused-ignore]
            if sum(map(len, lines.values())) > before:
                target.write_text(json.dumps({m: sorted(found) for m, found in lines.items()}))

    setattr(_worker, "run_case", traced)  # noqa: B010 (it takes what it is given)


def function_file(module: str) -> str:
    """The file that a module's code objects name."""
    import importlib

    return str(importlib.import_module(module).__file__)
