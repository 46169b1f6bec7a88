"""Recipes that run here, without other ranks."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from fsdpfuzz.case import CaseSpec, anatomy, lower
from fsdpfuzz.case.recipe import Do, Recipe, Statement
from fsdpfuzz.ranks._env import RankEnv
from fsdpfuzz.ranks._execute import Execution, Role, Variables
from fsdpfuzz.wire import FlightRecorder


class Noting:
    """A watcher that writes down what it is told; leaves at variables of these names."""

    def __init__(self, leaves_at: Sequence[str] = ()) -> None:
        self.told: list[str] = []
        self._leaves_at = leaves_at

    def before(self, op: int, name: str) -> None:
        """Before an operation."""
        self.told.append(f"before {name}[{op}]")

    def assigned(self, name: str, variables: Variables) -> bool:
        """A variable has a new value."""
        self.told.append(f"{name} assigned")
        return name not in self._leaves_at

    def after(self, op: int, name: str, variables: Variables) -> None:
        """After an operation."""
        self.told.append(f"after {name}[{op}]")


def environment(rank: int = 0, world_size: int = 2) -> RankEnv:
    """A rank of no process group."""
    with tempfile.TemporaryDirectory() as folder:
        flight = FlightRecorder(Path(folder) / "flight")
    return RankEnv(
        rank=rank, world_size=world_size, backend="gloo", device=torch.device("cpu"), flight=flight
    )


def execution(
    recipe: Recipe,
    role: Role = "plain",
    *,
    rank: int = 0,
    watcher: Noting | None = None,
    dtype: torch.dtype = torch.float32,
) -> Execution:
    """An execution of the whole recipe."""
    return Execution(
        recipe=recipe,
        env=environment(rank),
        role=role,
        dtype=dtype,
        label="case",
        watcher=watcher or Noting(),
    )


def run(*main: Statement, role: Role = "plain", rank: int = 0) -> Variables:
    """The variables after these statements."""
    return execution(Recipe(procedures=(), main=main), role, rank=rank).run()


def built(case: CaseSpec, dtype: torch.dtype = torch.float32) -> nn.Module:
    """The plain model of a case, with the checkpoints that it takes over."""
    recipe = lower(anatomy(case))
    making = ("recipe.build", "recipe.shard")
    main = tuple(
        statement
        for statement in recipe.main
        if isinstance(statement, Do) and getattr(statement.call, "function", "") in making
    )
    assert len(main) == len(making)
    model = execution(replace(recipe, main=main), dtype=dtype).run()["model"]
    assert isinstance(model, nn.Module)
    return model
