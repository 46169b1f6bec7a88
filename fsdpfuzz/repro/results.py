"""What operations give, where a script does not look at it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from fsdpfuzz.case import OPERATIONS
from fsdpfuzz.case.recipe import Do, Recipe, Statement, Variable, values


def without_results(recipe: Recipe, looked: Collection[str]) -> Recipe:
    """A recipe that puts into variables only those results that are looked at."""
    names = {name for kind in OPERATIONS.values() for name in kind.results}
    return replace(recipe, main=tuple(_without(recipe.main, names.difference(looked))))


def _without(statements: Sequence[Statement], names: Collection[str]) -> Iterator[Statement]:
    for statement in statements:
        match statement:
            case Do(looks=True, into=(Variable(name),)) if name in names:
                pass
            case Do(into=(Variable(name),)) if name in names:
                # What only makes another thing of a result is not done at all.
                # Left as a statement of its own: clipping acts on gradients, whoever looks at the
                # norm.
                if Variable(name) not in values(statement.call):
                    yield replace(statement, into=())
            case Do():
                yield statement
            case _:
                yield replace(statement, body=tuple(_without(statement.body, names)))
