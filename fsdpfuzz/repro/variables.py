"""Variables of a list of statements: who reads them, and which can be left out."""

from __future__ import annotations

import ast

from fsdpfuzz.repro.fold import Substitute, is_constant
from fsdpfuzz.repro.source import COMMENTS, COMPREHENSIONS, names_in


def uses(body: list[ast.stmt], name: str) -> tuple[int, bool]:
    """How often a name is read, and whether where it may be evaluated more than once."""
    count, nested = 0, False
    inner = (ast.For, ast.While, ast.Lambda, ast.FunctionDef, *COMPREHENSIONS)
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and node.id == name:
                count += 1
            if isinstance(node, inner):
                # What a loop goes over is evaluated once.
                head = getattr(node, "iter", None)
                if isinstance(node, COMPREHENSIONS):
                    head = node.generators[0].iter
                own = sum(n.id == name for n in names_in(node))
                first = sum(n.id == name for n in names_in(head)) if head is not None else 0
                nested = nested or own > first
    return count, nested


def trivial(node: ast.expr) -> bool:
    """Whether an expression costs nothing and changes nothing, so that it may stand anywhere."""
    match node:
        case ast.Name() | ast.Constant():
            return True
        case ast.Call(func=ast.Attribute(ast.Name(id="torch"), "device")):
            return True
        case ast.Attribute(value=value):
            return trivial(value)
        case ast.Subscript(value=value, slice=index):
            return trivial(value) and trivial(index)
        case ast.BinOp(left=left, right=right):
            return trivial(left) and trivial(right)
        case _:
            return is_constant(node)


def propagated(body: list[ast.stmt]) -> list[ast.stmt]:
    """Without variables that are constants, other names, or read by the next statement alone."""
    out = list(body)
    i = 0
    while i < len(out):
        rest = out[i + 1 :]
        match out[i]:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _stores(body, name) == 1:
                reads, nested = uses(rest, name)
                constant = is_constant(value) and not _mutable(value)
                # The other name must mean the same for as long as this one is read.
                alias = isinstance(value, ast.Name) and not _stores(rest, value.id)
                if reads and (constant or alias):
                    out = [*out[:i], *(Substitute({name: value}).visit(s) for s in rest)]
                    continue
                # By the next statement alone: anything in between might change what the value
                # depends on.
                near = reads == 1 and not nested and uses(rest[:1], name)[0] == 1
                if near and (_returns(rest[0], name) or trivial(value)):
                    changed = Substitute({name: value}).visit(rest[0])
                    kept = getattr(out[i], COMMENTS, [])
                    if kept:
                        setattr(changed, COMMENTS, [*kept, *getattr(changed, COMMENTS, [])])
                    out = [*out[:i], changed, *rest[1:]]
                    continue
            case _:
                pass
        i += 1
    return out


def _stores(statements: list[ast.stmt], name: str) -> int:
    """How often statements bind a name."""
    return sum(
        node.id == name and isinstance(node.ctx, ast.Store)
        for statement in statements
        for node in names_in(statement)
    )


def _mutable(node: ast.expr) -> bool:
    return isinstance(node, ast.List | ast.Dict | ast.Set)


def _returns(statement: ast.stmt, name: str) -> bool:
    """Whether a statement does nothing but return the name."""
    match statement:
        case ast.Return(value=ast.Name(id=found)):
            return found == name
        case _:
            return False
