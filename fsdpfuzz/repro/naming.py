"""Names that a script's functions and variables can have beside each other."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping

from fsdpfuzz.errors import ContractError
from fsdpfuzz.repro.source import assigned


def fresh(name: str, scope: Collection[str]) -> str:
    """``name_2`` or the like, whichever is free."""
    number = 2
    while f"{name}_{number}" in scope:
        number += 1
    return f"{name}_{number}"


def clashes(statements: list[ast.stmt], functions: Mapping[str, ast.stmt]) -> list[str]:
    """Names of functions that variables have as well."""
    variables = assigned([*statements, *functions.values()], functions=False)
    return [name for name in functions if name in variables]


def rename_function(
    statements: list[ast.stmt], functions: dict[str, ast.stmt], name: str, own: str
) -> None:
    """Gives a function another name, there and where it is called."""
    function = functions.pop(name)
    if not isinstance(function, ast.FunctionDef):
        raise ContractError(f"{name} is a class and a variable")
    function.name = own
    functions[own] = function
    for statement in (*statements, *functions.values()):
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                node.func.id = own if node.func.id == name else node.func.id
