"""The source of steps, read without importing them: functions, classes, constants, imports."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import TypeAlias

from fsdpfuzz.errors import ContractError

OURS = "fsdpfuzz"
Definition: TypeAlias = ast.FunctionDef | ast.ClassDef
COMMENTS = "_comments"
"""Attribute of a statement: the comments that stand above it, a line each, and behind it."""
BEHIND = ">"
"""First character of a comment that stands behind its statement, on the same line."""


@dataclass(slots=True)
class Source:
    """One module of steps."""

    module: str
    definitions: dict[str, Definition] = field(default_factory=dict)
    constants: dict[str, ast.expr] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Name to module and what of it, which is empty for the module itself."""


@cache
def source_of(module: str) -> Source:
    """The source of a module of ours; see `parsed`."""
    folder, _, name = module.rpartition(".")
    return parsed(module, (files(folder) / f"{name}.py").read_text(encoding="utf-8"))


def parsed(module: str, text: str) -> Source:
    """The source of a module, docstrings and annotations left out."""
    tree = ast.parse(text)
    # First of all: comments are found by line, and what is made anew below has none.
    _keep_comments(tree, text)
    tree = _Bare().visit(tree)
    source = Source(module)
    for node in tree.body:
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                source.definitions[node.name] = node
            case ast.Assign(targets=[ast.Name(id=constant)], value=value):
                source.constants[constant] = value
            case ast.Import(names=names):
                for alias in names:
                    # "import a.b" binds a, and what is used of it says the rest.
                    bound = alias.asname or alias.name.partition(".")[0]
                    source.imports[bound] = (alias.name if alias.asname else bound, "")
            case ast.ImportFrom(module=origin, names=names) if origin != "__future__":
                for alias in names:
                    source.imports[alias.asname or alias.name] = (origin or "", alias.name)
            case _:
                pass
    return source


def find(name: str) -> tuple[Source, Definition]:
    """The definition that a dotted name of ours means, and the module that it stands in.

    ``steps.loss.projection``, with or without ``fsdpfuzz`` before it.
    """
    full = name if name.startswith(f"{OURS}.") else f"{OURS}.{name}"
    module, _, own = full.rpartition(".")
    source = source_of(module)
    if own not in source.definitions:
        raise ContractError(f"{module} has no {own}")
    return source, source.definitions[own]


def is_ours(name: str) -> bool:
    """Whether a dotted name means a step."""
    return name.startswith(("steps.", f"{OURS}."))


def _keep_comments(tree: ast.Module, text: str) -> None:
    """Hangs comments on the statements that they stand above or behind.

    What is meant for a type checker or a linter stays behind.
    """
    above: dict[int, str] = {}
    behind: dict[int, str] = {}
    # Tokens, as `ast` drops comments and a # may stand inside of a string.
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith(("# type:", "# noqa")):
            alone = token.line.strip() == token.string
            (above if alone else behind)[token.start[0]] = token.string
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            found: list[str] = []
            line = node.lineno - 1
            while line in above:
                found.insert(0, above[line])
                line -= 1
            if node.lineno == node.end_lineno and node.lineno in behind:
                found.append(BEHIND + behind[node.lineno])
            setattr(node, COMMENTS, found)


class _Bare(ast.NodeTransformer):
    """Drops what a script has no use for: docstrings, annotations, imports for typing."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        node.returns = None
        node.body = _without_docstring(node.body)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        # The annotations of a dataclass are what it consists of.
        fields = [s for s in node.body if isinstance(s, ast.AnnAssign) and node.decorator_list]
        body = (s if s in fields else self.visit(s) for s in _without_docstring(node.body))
        node.body = [s for s in body if s is not None] or [ast.Pass()]
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt | None:
        if node.value is None:
            return None
        made = ast.copy_location(ast.Assign(targets=[node.target], value=node.value), node)
        setattr(made, COMMENTS, getattr(node, COMMENTS, []))
        return made

    def visit_If(self, node: ast.If) -> ast.stmt | None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return None
        self.generic_visit(node)
        return node


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    return body or [ast.Pass()]


def names_in(node: ast.AST) -> Iterator[ast.Name]:
    """All names in a tree."""
    return (found for found in ast.walk(node) if isinstance(found, ast.Name))


COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def assigned(
    statements: Iterable[ast.AST], *, comprehensions: bool = True, functions: bool = True
) -> set[str]:
    """Names that statements bind, those of functions and classes among them.

    Without ``comprehensions`` names that one binds are left out: they are not seen outside.
    Without ``functions`` those of functions and classes are.
    """
    found: set[str] = set()
    for node in statements:
        if isinstance(node, COMPREHENSIONS) and not comprehensions:
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) and functions:
            found.add(node.name)
        inner = ast.iter_child_nodes(node)
        found |= assigned(inner, comprehensions=comprehensions, functions=functions)
    return found


def bodies_of(statement: ast.AST) -> Iterator[list[ast.stmt]]:
    """The lists of statements inside a statement."""
    for name in ("body", "orelse", "finalbody"):
        inner = getattr(statement, name, None)
        if isinstance(inner, list) and inner and isinstance(inner[0], ast.stmt):
            yield inner
    for handler in getattr(statement, "handlers", ()):
        yield handler.body
