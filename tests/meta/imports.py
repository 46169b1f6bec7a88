"""The imports of a source tree, read without importing it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Import:
    """``importer`` imports ``target``, both full module names."""

    importer: str
    target: str
    line: int
    at_start: bool
    """Whether it happens when the importer is imported: not in a function, not for typing."""
    for_types: bool
    """Whether it never happens: it is there for the type checker alone."""


def sources(repository: Path = REPOSITORY) -> dict[str, Path]:
    """Module name to file, of the package and the strategies."""
    found = {}
    for folder, name in (
        (repository / "fsdpfuzz", "fsdpfuzz"),
        (repository / "strategies", "fsdpfuzz.strategies"),
    ):
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            if name == "fsdpfuzz" and parts[0] == "strategies":
                continue
            found[".".join((name, *parts)).removesuffix(".__init__")] = path
    return found


def imports(modules: dict[str, Path]) -> Iterator[Import]:
    """Every import statement of the modules; one for each name that is a module itself."""
    for importer, path in modules.items():
        tree = ast.parse(path.read_text(), str(path))
        package = importer if path.name == "__init__.py" else importer.rpartition(".")[0]
        for node, at_start, for_types in _walk(tree):
            for target in _targets(node, package, modules):
                yield Import(importer, target, node.lineno, at_start, for_types)


def _walk(
    node: ast.AST, *, at_start: bool = True, for_types: bool = False
) -> Iterator[tuple[ast.stmt, bool, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, at_start, for_types
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            yield from _walk(ast.Module(child.body, []), at_start=False, for_types=True)
            yield from _walk(ast.Module(child.orelse, []), at_start=at_start, for_types=for_types)
        else:
            later = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _walk(child, at_start=at_start and not later, for_types=for_types)


def _targets(node: ast.stmt, package: str, modules: dict[str, Path]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*above, *([base] if base else [])])
        inner = [f"{base}.{alias.name}" for alias in node.names]
        yield from (name for name in inner if name in modules)
        if any(name not in modules for name in inner):
            yield base
