"""Leaves out of quoted classes the options that a script makes no use of."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Mapping

from fsdpfuzz.repro.arguments import bound, without
from fsdpfuzz.repro.fold import Substitute, is_constant, plain
from fsdpfuzz.repro.source import names_in


def without_options(statements: list[ast.stmt]) -> list[ast.stmt]:
    """The statements, with classes that lack the options of which a script makes no use.

    Those are flags, words, and parameters with defaults, that get the same literal from every call.
    """
    classes = {s.name: s for s in statements if isinstance(s, ast.ClassDef)}
    # A class that another one builds on keeps its options: ``super().__init__`` hands them on.
    bases = {name.id for found in classes.values() for b in found.bases for name in names_in(b)}
    nodes = [node for statement in statements for node in ast.walk(statement)]
    # An attribute that a method sets anew is no constant, whatever the constructor puts there.
    stored = Counter(
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    )
    for name, found in classes.items():
        calls = [
            node
            for node in nodes
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == name
        ]
        init = _constructor(found)
        if init is not None and calls and name not in bases:
            _fold_options(init, calls)
            _fold_attributes(found, init, stored)
    # Only now: an option may have been all that named another class, as the kind of an output.
    return _without_unused(plain(statements))


def _without_unused(statements: list[ast.stmt]) -> list[ast.stmt]:
    """Without the definitions that only folded options named."""
    while True:
        named = [{node.id for node in names_in(statement)} for statement in statements]
        left = [
            statement
            for i, statement in enumerate(statements)
            if not isinstance(statement, ast.ClassDef)
            or any(statement.name in names for names in (*named[:i], *named[i + 1 :]))
        ]
        if len(left) == len(statements):
            return left
        statements = left


def _constructor(found: ast.ClassDef) -> ast.FunctionDef | None:
    methods = (method for method in found.body if isinstance(method, ast.FunctionDef))
    return next((m for m in methods if m.name == "__init__" and not m.args.vararg), None)


def _fold_options(init: ast.FunctionDef, calls: list[ast.Call]) -> None:
    """Puts the values of options where they are read, and takes them out of the calls."""
    called = copy.copy(init)
    called.args = copy.copy(init.args)
    # Without ``self``, which no call gives.
    called.args.args = init.args.args[1:]
    names = [arg.arg for arg in called.args.args]
    defaults = dict(
        zip(names[len(names) - len(init.args.defaults) :], init.args.defaults, strict=True)
    )
    given = [bound(called, call) for call in calls]
    same: dict[str, ast.expr] = {}
    for name, value in given[0].items():
        flag = isinstance(value, ast.Constant) and isinstance(value.value, bool | str)
        texts = {ast.unparse(arguments[name]) for arguments in given}
        if is_constant(value) and (flag or name in defaults) and len(texts) == 1:
            same[name] = value
    for call, arguments in zip(calls, given, strict=True):
        kept = {name: value for name, value in arguments.items() if name not in same}
        call.args = [value for name, value in kept.items() if name not in defaults]
        call.keywords = [ast.keyword(n, value) for n, value in kept.items() if n in defaults]
    init.args = without(init.args, set(same))
    init.args.defaults = [default for name, default in defaults.items() if name not in same]
    init.body = plain([Substitute(same).visit(statement) for statement in init.body])


def _fold_attributes(found: ast.ClassDef, init: ast.FunctionDef, stored: Mapping[str, int]) -> None:
    """Puts literals where attributes are read that get them in the constructor alone."""
    fixed: dict[str, ast.expr] = {}
    left: list[ast.stmt] = []
    for statement in init.body:
        match statement:
            case ast.Assign(
                targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)], value=value
            ) if is_constant(value) and stored[name] == 1 and not isinstance(value, _MUTABLE):
                fixed[name] = value
            case _:
                left.append(statement)
    init.body = left
    found.body = [_Attributes(fixed).visit(method) for method in found.body]


# Each object has one of its own, which stays the same one for all of its methods.
_MUTABLE = (ast.List, ast.Dict, ast.Set)


class _Attributes(ast.NodeTransformer):
    """Puts literals where attributes are read."""

    def __init__(self, by: dict[str, ast.expr]) -> None:
        self._by = by

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        mine = isinstance(node.value, ast.Name) and node.value.id == "self"
        if mine and isinstance(node.ctx, ast.Load) and node.attr in self._by:
            return self._by[node.attr]
        return node
