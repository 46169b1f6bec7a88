"""What the names in a step mean: constants of its module, other steps, imports."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Collection

from fsdpfuzz.repro.source import OURS, Source, find, is_ours, source_of

QuoteClass = Callable[[str, Source, ast.ClassDef], str]
"""Quotes a class of this dotted name; its name in the script."""


def give_meaning(
    source: Source,
    node: ast.AST,
    hidden: Collection[str],
    imports: dict[str, tuple[str, str]],
    quote_class: QuoteClass,
) -> None:
    """Puts constants and dotted names of steps where a module's own names stand in ``node``.

    ``hidden`` are parameters, which are not the module's even where they are called so.
    ``imports`` gets what is imported from elsewhere.
    """
    # All of it before anything is replaced: a name that is bound anywhere in a function is the
    # function's own everywhere in it.
    local = set(hidden)
    for inner in ast.walk(node):
        if isinstance(inner, ast.arg):
            local.add(inner.arg)
        elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            local.add(inner.id)
    _Meaning(source, local, imports, quote_class).visit(node)


class _Meaning(ast.NodeTransformer):
    def __init__(
        self,
        source: Source,
        hidden: set[str],
        imports: dict[str, tuple[str, str]],
        quote_class: QuoteClass,
    ) -> None:
        self._source, self._hidden = source, hidden
        self._imports, self._quote_class = imports, quote_class

    def visit_Name(self, node: ast.Name) -> ast.expr:
        source, name = self._source, node.id
        if name in self._hidden or is_ours(name):
            return node
        if name in source.constants:
            # A copy: what is done to a script's tree must not reach the source, which is read once.
            return copy.deepcopy(source.constants[name])
        if name in source.definitions:
            return self._step(f"{source.module}.{name}", node)
        if name in source.imports:
            module, what = source.imports[name]
            if module.startswith(f"{OURS}."):
                return self._step(f"{module}.{what}", node)
            self._imports[name] = (module, what)
        return node

    def _step(self, name: str, node: ast.Name) -> ast.expr:
        module, _, own = name.rpartition(".")
        constants = source_of(module).constants
        if own in constants:
            return copy.deepcopy(constants[own])
        source, definition = find(name)
        if isinstance(definition, ast.ClassDef):
            return ast.Name(self._quote_class(name, source, definition), ast.Load())
        return ast.copy_location(ast.Name(name, ast.Load()), node)
