"""Functions that train: for FSDP and the plain model in one, or for FSDP alone."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from difflib import SequenceMatcher

from fsdpfuzz.repro.fold import Substitute
from fsdpfuzz.repro.statements import merged


def function(
    name: str, parameters: Sequence[str], body: list[ast.stmt], result: ast.expr | None
) -> ast.FunctionDef:
    """A function that returns ``result``; its last assignment is what it returns where it can."""
    args = ast.arguments([], [ast.arg(p) for p in parameters], None, [], [], None, [])
    if result is not None:
        last = body[-1] if body else None
        if isinstance(last, ast.Assign) and ast.unparse(last.targets[0]) == ast.unparse(result):
            body = [*body[:-1], ast.Return(last.value)]
        else:
            body = [*body, ast.Return(result)]
    return ast.FunctionDef(name, args, body or [ast.Pass()], [])


_FLOAT32 = ast.parse("torch.float32", mode="eval").body


class _Single(ast.NodeTransformer):
    """Where everything is float32 nothing needs to say so."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        match node.func:
            case ast.Attribute(attr="to", value=owner):
                node.args = self._others(node)
                return node if node.args or node.keywords else owner
            case ast.Name(id="build" | "forward"):
                node.args = self._others(node)
            case _:
                pass
        return node

    def _others(self, node: ast.Call) -> list[ast.expr]:
        return [arg for arg in node.args if ast.unparse(arg) != ast.unparse(_FLOAT32)]


def single(statement: ast.stmt) -> ast.stmt:
    """A statement of a script in which everything is float32."""
    made: ast.stmt = _Single().visit(Substitute({"dtype": _FLOAT32}).visit(statement))
    return made


def side_by_side(usual: list[ast.stmt], own: list[ast.stmt], flag: str) -> list[ast.stmt]:
    """Two lists of statements as one, what only one of them has under ``flag``."""
    texts = [[ast.unparse(ast.fix_missing_locations(s)) for s in side] for side in (usual, own)]
    out: list[ast.stmt] = []
    test = ast.Name(flag, ast.Load())
    # autojunk takes lines that occur often in 200 or more for noise, and would not match them.
    for tag, a, b, c, d in SequenceMatcher(a=texts[0], b=texts[1], autojunk=False).get_opcodes():
        if tag == "equal":
            out += own[c:d]
            continue
        if d > c:
            out.append(ast.If(test, own[c:d], usual[a:b]))
        elif b > a:
            out.append(ast.If(ast.UnaryOp(ast.Not(), test), usual[a:b], []))
    return merged(out)


def ended(body: list[ast.stmt], seen: ast.expr, right: ast.expr) -> list[ast.stmt]:
    """A training, and what it returns: ``seen`` if FSDP trains, else ``right``."""
    if ast.unparse(seen) == ast.unparse(right):
        return [*body, ast.Return(seen)]
    fsdp = ast.Name("fsdp", ast.Load())
    match body[-1]:
        case ast.If(test=ast.UnaryOp(op=ast.Not(), operand=ast.Name(id="fsdp")), orelse=[]) as last:
            # What the plain model does in the end comes after FSDP's return.
            return [*body[:-1], ast.If(fsdp, [ast.Return(seen)], []), *last.body, ast.Return(right)]
        case ast.If(test=ast.Name(id="fsdp"), body=own, orelse=other):
            made = ast.If(fsdp, [*own, ast.Return(seen)], [])
            return [*body[:-1], made, *other, ast.Return(right)]
        case _:
            return [*body, ast.If(fsdp, [ast.Return(seen)], []), ast.Return(right)]
