"""Leaves out what no reader of a script needs: variables that nobody, or one line, reads."""

from __future__ import annotations

import ast
import builtins
import copy
from typing import TypeGuard

from fsdpfuzz.repro.fold import Fold, Rename, Substitute, attribute, plain
from fsdpfuzz.repro.source import assigned, bodies_of, names_in
from fsdpfuzz.repro.variables import propagated

_DROPPABLE = frozenset({"named", "mesh", "loss", "weights", "kept", "pending", "rank", "right"})
"""Variables that are assigned for their value alone."""
MOST_INLINED = 4
"""How many forwards may stand where they are called."""


def tidied(statements: list[ast.stmt], *, compares: bool = False) -> list[ast.stmt]:
    """The statements of a whole script, without assignments whose variable nobody reads.

    A script that ``compares`` does not wait for an error, so a loss that nobody reads is left out
    with the function that gives it.
    """
    usual = (_OnCpu().visit(statement) for statement in statements)
    statements = _without_losses([made for made in usual if made is not None])
    for function in (s for s in statements if isinstance(s, ast.FunctionDef)):
        function.body = _with_one_parameter(function.body)
    statements = _with_one_parameter(statements)
    while True:
        read = {
            node.id
            for statement in statements
            for node in names_in(statement)
            if isinstance(node.ctx, ast.Load)
        }
        # Again and again: what only a dropped assignment has read is read by nobody now.
        unread = assigned(statements, functions=False) - read
        dropper = _Drop(frozenset(name for name in unread if _own(name) in _DROPPABLE))
        statements = [made for s in statements if (made := dropper.visit(s)) is not None]
        if not dropper.dropped:
            statements = _without_function(statements) if compares else statements
            return _without_numbers(plain(propagated(statements)))


def _own(name: str) -> str:
    """``named`` of ``named_2``, as a name is called where another variable has it already."""
    own, _, number = name.rpartition("_")
    return own if number.isdigit() and own else name


def _without_function(statements: list[ast.stmt]) -> list[ast.stmt]:
    """``x = ...`` and ``model(x)`` for each ``forward(model, i)`` of which nobody reads the loss.

    Not where many calls share the function.
    """
    defined = [s for s in statements if isinstance(s, ast.FunctionDef) and s.name == "forward"]
    calls = [n for s in statements for n in names_in(s) if n.id == "forward"]
    bodies = [statements, *(body for s in statements for n in ast.walk(s) for body in bodies_of(n))]
    alone = [(body, s) for body in bodies for s in body if _calls_forward(s)]
    if not defined or len(calls) != len(alone) or len(alone) > MOST_INLINED:
        return statements
    (function,) = defined
    match function.body:
        case [
            ast.Assign() as given,
            ast.Assign(targets=[ast.Name()], value=ast.Call() as called),
            *_,
            ast.Return(),
        ] if not any(body for statement in function.body for body in bodies_of(statement)):
            pass
        case _:
            return statements
    for body, statement in alone:
        put = dict(zip((a.arg for a in function.args.args), statement.value.args, strict=True))  # type: ignore[attr-defined]
        made = [copy.deepcopy(one) for one in (given, ast.Expr(called))]
        at = body.index(statement)
        body[at : at + 1] = [Fold().visit(Substitute(put).visit(one)) for one in made]
    return [s for s in statements if s is not function]


def _calls_forward(statement: ast.stmt) -> bool:
    """Whether it is a forward whose loss is thrown away."""
    return isinstance(statement, ast.Expr) and _is_forward(statement.value)


def _without_numbers(statements: list[ast.stmt]) -> list[ast.stmt]:
    """``right`` for ``right_2`` where nothing is called ``right`` any more."""
    taken = {node.id for s in statements for node in names_in(s)} | set(dir(builtins))
    taken |= {
        n.name
        for s in statements
        for n in ast.walk(s)
        if isinstance(n, ast.FunctionDef | ast.ClassDef)
    }
    taken |= {n.arg for s in statements for n in ast.walk(s) if isinstance(n, ast.arg)}
    to: dict[str, str] = {}
    for name in sorted(assigned(statements, functions=False)):
        own = _own(name)
        if own not in taken:
            to[name] = own
            taken.add(own)
    return [Rename(to).visit(statement) for statement in statements]


CPU = ast.parse('torch.device("cpu")', mode="eval").body


class _OnCpu(ast.NodeTransformer):
    """Where everything is on the CPU nothing needs to say so."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr="to"), args=[first, *rest]) if (
                ast.unparse(first) == ast.unparse(CPU)
            ):
                node.args = rest
                return node if rest or node.keywords else owner
            case _:
                return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        is_type = node.attr == "type" and ast.unparse(node.value) == ast.unparse(CPU)
        return ast.Constant("cpu") if is_type else node

    def visit_Expr(self, node: ast.Expr) -> ast.stmt | None:
        self.generic_visit(node)
        return None if isinstance(node.value, ast.Name) else node


class _Drop(ast.NodeTransformer):
    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self.dropped = False

    def visit_Assign(self, node: ast.Assign) -> ast.stmt | None:
        match node.targets:
            case [ast.Name(id=name)] if name in self._names:
                self.dropped = True
                return ast.Expr(node.value) if _is_forward(node.value) else None
            case _:
                return node


def _is_forward(value: ast.expr) -> bool:
    """Whether it is a call of the script's function for a forward, which does more than give
    its value."""
    match value:
        case ast.Call(func=ast.Name(id="forward")):
            return True
        case _:
            return False


def _without_losses(statements: list[ast.stmt]) -> list[ast.stmt]:
    """``forward(...).backward()`` where nothing but backwards reads losses."""
    reads = sum(
        node.id == "loss" and isinstance(node.ctx, ast.Load)
        for statement in statements
        for node in names_in(statement)
    )
    bodies = [statements, *(body for s in statements for n in ast.walk(s) for body in bodies_of(n))]
    pairs = [(body, i) for body in bodies for i in range(len(body) - 1) if _is_pair(body, i)]
    if len(pairs) == reads:
        for body, i in reversed(pairs):
            first = body.pop(i)
            match first, body[i]:
                case ast.Assign(value=value), ast.Expr(value=ast.Call(func=ast.Attribute() as to)):
                    to.value = value
    return statements


_NAMED = "dict(model.named_parameters())"
_ONE = "p"


def _with_one_parameter(body: list[ast.stmt]) -> list[ast.stmt]:
    """``p = model[0].weight`` where nothing else is wanted of all parameters by name."""
    at = next((i for i, s in enumerate(body) if _is_named(s)), None)
    if at is None:
        return body
    rest = body[at + 1 :]
    reads = [node for s in rest for node in names_in(s) if node.id == "named"]
    items = {ast.unparse(n) for s in rest for n in ast.walk(s) if _is_item(n)}
    wanted = [n for s in rest for n in ast.walk(s) if _is_item(n)]
    others = assigned([s for s in rest if not _is_own(s)], comprehensions=False)
    if len(items) != 1 or len(wanted) != len(reads) or _ONE in others:
        return body
    found: ast.expr = ast.Name("model", ast.Load())
    for part in ast.literal_eval(wanted[0].slice).split("."):
        found = attribute(found, part)
    first = ast.Assign([ast.Name(_ONE, ast.Store())], found)
    left = [_One().visit(s) for s in rest if not _is_own(s)]
    return [*body[:at], first, *left]


def _is_named(statement: ast.stmt) -> bool:
    match statement:
        case ast.Assign(targets=[ast.Name(id="named")], value=value):
            return ast.unparse(value) == _NAMED
        case _:
            return False


def _is_item(node: ast.AST) -> TypeGuard[ast.Subscript]:
    match node:
        case ast.Subscript(value=ast.Name(id="named"), slice=ast.Constant(value=str())):
            return True
        case _:
            return False


def _is_own(statement: ast.stmt) -> bool:
    """Whether it is ``p = named[...]``."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return name == _ONE and _is_item(value)
        case _:
            return False


class _One(ast.NodeTransformer):
    """Puts the one parameter where it is looked up."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self.generic_visit(node)
        return ast.Name(_ONE, ast.Load()) if _is_item(node) else node


def _is_pair(body: list[ast.stmt], i: int) -> bool:
    match body[i : i + 2]:
        case [
            ast.Assign(targets=[ast.Name(id="loss")], value=value),
            ast.Expr(value=ast.Call(func=ast.Attribute(ast.Name(id="loss"), "backward"))),
        ]:
            return _is_forward(value)
        case _:
            return False
