"""Parameters that no forward uses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from fsdpfuzz.case.modules.base import Brought, Build, Child, NodeBase, takes_features
from fsdpfuzz.case.modules.linear import linear_in
from fsdpfuzz.case.modules.walk import Visit, Walk
from fsdpfuzz.case.recipe import Value, call


class Idle(NodeBase, tag="idle", frozen=True, kw_only=True):
    """Holds ``nn.Linear(width, width)`` and never calls it: parameters that stay unused."""

    classes: ClassVar[tuple[str, ...]] = ("steps.modules.idle.Idle",)
    shows_width: ClassVar[bool] = True

    def width_after(self, width: int, at: str = "$.model") -> int:
        """Keeps the width."""
        return takes_features(self, width, at)

    def inside(self, width: int, at: str) -> Iterator[Child | Brought]:
        """The linear layer."""
        yield linear_in("idle", width, width, used=False)

    def visit(self, walk: Walk, path: str, x: bool, grad: bool) -> Visit:
        """Gives back its very input."""
        yield from ()
        return x

    def returns_its_input(self) -> bool:
        """Always."""
        return True

    def module(self, width: int, build: Build) -> Value:
        """A module of ours."""
        return call("steps.modules.idle.Idle", width)
