"""Rules that keep the meaning of source and make it plainer: constants, branches, spelling."""

from __future__ import annotations

import ast
import copy
from typing import Any

from fsdpfuzz.repro.source import COMMENTS

_PURE: dict[str, Any] = {
    "len": len,
    "max": max,
    "min": min,
    "tuple": tuple,
    "list": list,
    "range": range,
    "str": str,
    "float": float,
    "sorted": sorted,
}
_METHODS = frozenset(
    {"rpartition", "partition", "strip", "rstrip", "removeprefix", "removesuffix", "upper", "get"}
)
_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


def constant(value: object) -> ast.expr | None:
    """The literal of a value, or None if it has none."""
    match value:
        case bool() | int() | float() | str() | bytes() | None:
            if isinstance(value, int | float) and not isinstance(value, bool) and value < 0:
                # As the parser makes it: Python has no negative literals, and trees are compared as
                # text.
                return ast.UnaryOp(ast.USub(), ast.Constant(-value))
            return ast.Constant(value)
        case tuple() | list() | set() as items:
            made = [constant(item) for item in items]
            if any(item is None for item in made):
                return None
            elements: list[ast.expr] = [item for item in made if item is not None]
            if isinstance(value, tuple):
                return ast.Tuple(elements, ast.Load())
            return ast.List(elements, ast.Load()) if isinstance(value, list) else None
        case _:
            return ast.Constant(...) if value is ... else None


def is_constant(node: ast.AST) -> bool:
    """Whether an expression is made of literals alone."""
    match node:
        case ast.Constant():
            return True
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant()):
            return True
        case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Set(elts=elements):
            return all(is_constant(element) for element in elements)
        case ast.Dict(keys=keys, values=values):
            return all(k is not None and is_constant(k) for k in keys) and all(
                is_constant(value) for value in values
            )
        case _:
            return False


def value_of(node: ast.expr) -> Any:
    """The value of a constant expression."""
    return ast.literal_eval(node)


class Fold(ast.NodeTransformer):
    """Evaluates what is known, takes the branch that is left, and spells things as people do."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.op, ast.Add):
            if isinstance(node.right, ast.Constant) and node.right.value == 0:
                return node.left
            found = _sum(node)
            if found is not None:
                return found
        return _evaluated(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.op, ast.Not):
            return negated(node.operand, keep=node)
        return _evaluated(node)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.Compare(
                ops=[ast.In() | ast.NotIn() as op],
                comparators=[ast.Tuple(elts=[]) | ast.List(elts=[])],
            ):
                return ast.Constant(isinstance(op, ast.NotIn))
            case _:
                return _evaluated(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        ends = isinstance(node.op, ast.Or)
        left: list[ast.expr] = []
        for i, value in enumerate(node.values):
            last = i == len(node.values) - 1
            if is_constant(value) and bool(value_of(value)) == ends:
                left.append(value)
                break
            # The last operand is the value of the whole, so it stays even if it decides nothing.
            if not is_constant(value) or last:
                left.append(value)
        node.values = left
        return left[0] if len(left) == 1 or is_constant(left[0]) else node

    def visit_If(self, node: ast.If) -> ast.If:
        self.generic_visit(node)
        node.test = _tested(node.test)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        self.generic_visit(node)
        node.test = _tested(node.test)
        if is_constant(node.test):
            return node.body if value_of(node.test) else node.orelse
        # Where both come to the same, what is asked is left out with the question.
        same = ast.dump(node.body) == ast.dump(node.orelse)
        return node.body if same and _only_asks(node.test) else node

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        self.generic_visit(node)
        node.ifs = [_tested(test) for test in node.ifs]
        node.ifs = [test for test in node.ifs if not (is_constant(test) and value_of(test))]
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        self.generic_visit(node)
        parts: list[ast.expr] = []
        for part in node.values:
            if (
                isinstance(part, ast.FormattedValue)
                and isinstance(part.value, ast.Constant)
                and part.format_spec is None
                and part.conversion == -1
            ):
                part = ast.Constant(str(part.value.value))
            last = parts[-1] if parts else None
            if isinstance(part, ast.Constant) and isinstance(last, ast.Constant):
                parts[-1] = ast.Constant(str(last.value) + str(part.value))
            else:
                parts.append(part)
        if not parts:
            return ast.Constant("")
        if len(parts) == 1 and isinstance(parts[0], ast.Constant):
            return parts[0]
        node.values = parts
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.slice, ast.Constant) and node.slice.value is ...:
            return node.value  # all of a tensor
        if is_constant(node.value) and is_constant(node.slice) and isinstance(node.ctx, ast.Load):
            found = constant(value_of(node.value)[value_of(node.slice)])
            return found if found is not None else node
        key = node.slice
        enum = isinstance(node.value, ast.Name) and node.value.id[:1].isupper()
        if enum and isinstance(key, ast.Constant) and str(key.value).isidentifier():
            return ast.Attribute(node.value, str(key.value), ast.Load())
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Name(id="zip"), keywords=[ast.keyword(arg="strict")]):
                node.keywords = []  # of use to us alone
            case ast.Call(args=[ast.GeneratorExp(elt=element, generators=generators)]):
                node.args = [ast.ListComp(element, generators)]
            case ast.Call(func=ast.Name(id="getattr"), args=[owner, ast.Constant(value=str(name))]):
                return attribute(owner, name)
            case ast.Call(func=ast.Attribute(value=ast.Dict(keys=[]), attr="get"), args=[_, other]):
                return other
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _PURE:
                if args and all(is_constant(arg) for arg in args):
                    found = constant(_PURE[name](*(value_of(arg) for arg in args)))
                    return found if found is not None else node
            case ast.Call(func=ast.Attribute(value=owner, attr=name), args=args, keywords=[]):
                known = is_constant(owner) and all(is_constant(arg) for arg in args)
                if known and name in _METHODS:
                    values = (value_of(arg) for arg in args)
                    found = constant(getattr(value_of(owner), name)(*values))
                    return found if found is not None else node
            case _:
                pass
        return node


def _only_asks(test: ast.expr) -> bool:
    """Whether all that it calls are methods without arguments, as ``is_floating_point()``."""
    calls = [node for node in ast.walk(test) if isinstance(node, ast.Call)]
    return all(isinstance(c.func, ast.Attribute) and not c.args and not c.keywords for c in calls)


def _tested(node: ast.expr) -> ast.expr:
    """A test without what decides nothing in it, and makes a difference only as a value: a last
    operand, a double negation."""
    if isinstance(node, ast.UnaryOp) and _is_negation(node) and _is_negation(node.operand):
        return negated(node.operand)
    if isinstance(node, ast.BoolOp):
        last = node.values[-1]
        if is_constant(last) and bool(value_of(last)) == isinstance(node.op, ast.And):
            left = node.values[:-1]
            return left[0] if len(left) == 1 else ast.BoolOp(node.op, left)
    return node


def _evaluated(node: ast.expr) -> ast.expr:
    """The value of an operation on constants, else the operation."""
    operands = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
    if not all(is_constant(operand) for operand in operands):
        return node
    expression = ast.fix_missing_locations(ast.Expression(copy.deepcopy(node)))
    # Nothing but literals and operators comes here: a case cannot have code evaluated.
    found = constant(eval(compile(expression, "<constant>", "eval"), {"__builtins__": {}}))
    return found if found is not None else node


def _sum(node: ast.BinOp) -> ast.expr | None:
    """A sum of integers with its constants put together, behind what varies."""
    terms: list[ast.expr] = []

    def collect(part: ast.expr) -> None:
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Add):
            collect(part.left)
            collect(part.right)
        else:
            terms.append(part)

    collect(node)
    numbers = [t.value for t in terms if isinstance(t, ast.Constant) and type(t.value) is int]
    others = [t for t in terms if not (isinstance(t, ast.Constant) and type(t.value) is int)]
    if not numbers or any(isinstance(t, ast.Constant | ast.JoinedStr) for t in others):
        return None
    total = sum(numbers)
    parts = [*others, *([ast.Constant(total)] if total or not others else [])]
    out = parts[0]
    for part in parts[1:]:
        out = ast.BinOp(out, ast.Add(), part)
    return out


def negated(node: ast.expr, *, keep: ast.expr | None = None) -> ast.expr:
    """``not node``, pushed inside where that is plainer.

    ``keep`` is the same as it stands, where more than its truth counts: ``not not x`` is no ``x``.
    """
    if is_constant(node):
        return ast.Constant(not value_of(node))
    match node:
        case ast.UnaryOp(op=ast.Not(), operand=inner) if keep is None or _is_negation(inner):
            return inner
        case ast.Compare(left=left, ops=[operator], comparators=right) if (
            type(operator) in _OPPOSITE
        ):
            return ast.Compare(left, [_OPPOSITE[type(operator)]()], right)
        case _:
            return keep if keep is not None else ast.UnaryOp(ast.Not(), node)


def _is_negation(node: ast.expr) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


def attribute(owner: ast.expr, name: str) -> ast.expr:
    """``owner.name``; ``owner[0]`` for a child of a sequence."""
    if name.isdigit():
        return ast.Subscript(owner, ast.Constant(int(name)), ast.Load())
    return ast.Attribute(owner, name, ast.Load())


def plain(statements: list[ast.stmt]) -> list[ast.stmt]:
    """Statements without branches that are not taken and code that is not reached."""
    out: list[ast.stmt] = []
    for statement in statements:
        for made in _plain(statement):
            out.append(made)
            if ends(made):
                return out
    return _without_early_return(out)


def ends(statement: ast.stmt) -> bool:
    """Whether nothing behind a statement is reached."""
    match statement:
        case ast.Return() | ast.Raise() | ast.Continue() | ast.Break():
            return True
        case ast.With(body=[*_, last]):
            return ends(last)
        case ast.If(body=[*_, first], orelse=[*_, second]):
            return ends(first) and ends(second)
        case _:
            return False


def _plain(statement: ast.stmt) -> list[ast.stmt]:
    folded = Fold().visit(statement)
    match folded:
        case ast.If(test=test, body=body, orelse=orelse):
            if is_constant(test):
                return plain(body if value_of(test) else orelse)
            folded.body, folded.orelse = plain(body), plain(orelse)
            if not folded.body:  # what is tested has no effect of its own
                folded.test, folded.body, folded.orelse = negated(test), folded.orelse, []
            return [folded] if folded.body else []
        case ast.For(iter=ast.Tuple(elts=[]) | ast.List(elts=[])):
            return []
        case ast.For(target=ast.Name(id=name), iter=ast.Tuple(elts=[only]) | ast.List(elts=[only])):
            body = [Substitute({name: only}).visit(s) for s in folded.body]
            return plain(body)
        case ast.For() | ast.While() | ast.With():
            folded.body = plain(folded.body) or [ast.Pass()]
            return [folded]
        case ast.FunctionDef():
            folded.body = plain(folded.body) or [ast.Pass()]
            return [folded]
        case ast.ClassDef():
            folded.body = [made for inner in folded.body for made in _plain(inner)] or [ast.Pass()]
            return [folded]
        case ast.Pass():
            return []
        case ast.Expr(value=ast.Constant()):
            return []
        case _:
            return [folded]


def _without_early_return(statements: list[ast.stmt]) -> list[ast.stmt]:
    """``if test: return`` before the rest becomes ``if not test: the rest``."""
    for i, statement in enumerate(statements[:-1]):
        match statement:
            case ast.If(test=test, body=[ast.Return(value=None)], orelse=[]):
                rest = _without_early_return(statements[i + 1 :])
                made = ast.If(negated(test), rest, [])
                setattr(made, COMMENTS, getattr(statement, COMMENTS, []))
                return [*statements[:i], made]
            case _:
                pass
    return statements


class Substitute(ast.NodeTransformer):
    """Puts expressions for names that are read."""

    def __init__(self, by: dict[str, ast.expr]) -> None:
        self._by = by

    def visit_Name(self, node: ast.Name) -> ast.expr:
        found = self._by.get(node.id)
        if found is None or not isinstance(node.ctx, ast.Load):
            return node
        return copy.deepcopy(found)


class Rename(ast.NodeTransformer):
    """Gives names other names, wherever they stand."""

    def __init__(self, to: dict[str, str]) -> None:
        self._to = to

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self._to.get(node.id, node.id)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.name = self._to.get(node.name, node.name)
        self.generic_visit(node)
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.arg = self._to.get(node.arg, node.arg)
        return node
