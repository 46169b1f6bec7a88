"""Which argument each parameter of a step gets."""

from __future__ import annotations

import ast
import copy

from fsdpfuzz.errors import ContractError


def plain_parameters(definition: ast.FunctionDef) -> list[str]:
    """Names of the parameters other than ``*args``."""
    return [arg.arg for arg in (*definition.args.args, *definition.args.kwonlyargs)]


def bound(definition: ast.FunctionDef, call: ast.Call) -> dict[str, ast.expr]:
    """The argument of each parameter; of ``*args`` and ``**kwargs`` none."""
    args = definition.args
    names = [arg.arg for arg in args.args]
    found: dict[str, ast.expr] = {}
    defaults = dict(zip(names[len(names) - len(args.defaults) :], args.defaults, strict=True))
    # What is spread stands for ``*args``, and those a script writes out; see `Spread`.
    given = [a for a in call.args if not isinstance(a, ast.Starred)]
    if len(given) > len(names) and args.vararg is None:
        raise ContractError(f"{definition.name} takes {len(names)} arguments, {len(given)} given")
    found.update(zip(names, given, strict=False))
    for keyword in call.keywords:
        if keyword.arg in names:
            found[keyword.arg] = keyword.value
        elif args.kwarg is None:
            raise ContractError(f"{definition.name} takes no argument {keyword.arg!r}")
    for name in names:
        if name not in found:
            if name not in defaults:
                raise ContractError(f"{definition.name} needs an argument {name!r}")
            found[name] = copy.deepcopy(defaults[name])
    return {name: found[name] for name in names}


def further(definition: ast.FunctionDef, call: ast.Call) -> list[ast.keyword]:
    """What a call hands to ``**kwargs``."""
    names = {arg.arg for arg in definition.args.args}
    return [keyword for keyword in call.keywords if keyword.arg not in names]


def without(args: ast.arguments, names: set[str]) -> ast.arguments:
    """Parameters less those of these names."""
    left: list[ast.arg] = []
    left += [arg for arg in args.args if arg.arg not in names]
    made = copy.copy(args)
    made.args, made.defaults = left, []
    return made


class Spread(ast.NodeTransformer):
    """Puts a call's arguments where ``*args`` and ``**kwargs`` are handed on."""

    def __init__(self, definition: ast.FunctionDef, call: ast.Call) -> None:
        args = definition.args
        self._name = args.vararg.arg if args.vararg is not None else None
        self._given = call.args[len(args.args) :]
        self._keywords = args.kwarg.arg if args.kwarg is not None else None
        self._named = further(definition, call)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        args: list[ast.expr] = []
        for arg in node.args:
            spread = isinstance(arg, ast.Starred) and isinstance(arg.value, ast.Name)
            if spread and arg.value.id == self._name:  # type: ignore[attr-defined]
                args += [copy.deepcopy(g) for g in self._given]
            else:
                args.append(arg)
        node.args = args
        keywords: list[ast.keyword] = []
        for keyword in node.keywords:
            spread = keyword.arg is None and isinstance(keyword.value, ast.Name)
            if spread and keyword.value.id == self._keywords:  # type: ignore[attr-defined]
                keywords += copy.deepcopy(self._named)
            else:
                keywords.append(keyword)
        node.keywords = keywords
        return node
