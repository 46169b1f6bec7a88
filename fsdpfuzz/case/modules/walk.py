"""A forward that is followed through a model without running it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from fsdpfuzz.case.paths import join

if TYPE_CHECKING:
    from fsdpfuzz.case.flow import Situation
    from fsdpfuzz.case.modules import Model


@dataclass(frozen=True, slots=True)
class Called:
    """One module called once during a forward."""

    path: str
    grad: bool
    """Whether gradients are recorded."""
    input_grad: bool
    """Whether its input requires grad."""
    asked: bool
    """Whether the caller looks for a checkpoint of kind ``function`` on it."""


Visit: TypeAlias = Generator[Called, None, bool]
"""Yields the calls of a forward and returns whether the output requires grad."""


@dataclass(frozen=True, slots=True)
class Walk:
    """A forward that is followed through the model without running it."""

    names: tuple[str, ...]
    """FQNs of all places."""
    now: Situation
    """Where the rank stands in the program."""
    own: Callable[[str], bool]
    """Whether what the module at an FQN computes with its own parameters requires grad."""

    def visit(self, node: Model, path: str, x: bool, *, grad: bool, asked: bool = True) -> Visit:
        """A call of ``node`` at ``path``, whose input requires grad if ``x``."""
        yield Called(path, grad, x, asked)
        return (yield from node.visit(self, path, x, grad))

    def brought(
        self, path: str, held: Iterable[tuple[str, Model]], x: bool, *, grad: bool
    ) -> Visit:
        """A call by the program of a module without a node of its own, which may hold some."""
        x = yield from self.plain("", [path], x, grad=grad)
        for inner, node in held:
            x = yield from self.visit(node, inner, x, grad=grad)
        return x

    def plain(
        self, path: str, names: Iterable[str], x: bool, *, grad: bool, ours: bool = True
    ) -> Visit:
        """Modules without a node of their own, one after the other.

        ``ours`` says that a module of ours calls them, which looks for checkpoints.
        """
        for name in names:
            inner = join(path, name)
            yield Called(inner, grad, x, asked=ours)
            x = x or (grad and self.own(inner))
        return x

    def below(self, path: str) -> list[str]:
        """FQNs, within the module at ``path``, of all that lies in it."""
        start = f"{path}." if path else ""
        return [p.removeprefix(start) for p in self.names if p != path and p.startswith(start)]
