"""Ranks that do nothing but call a step, and report what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fsdpfuzz.case import CaseSpec, digest
from fsdpfuzz.observations import RankReport, Subject

if TYPE_CHECKING:
    from torch import nn

    from fsdpfuzz.ranks._env import RankEnv


def install_averaging(env: RankEnv) -> None:
    """Injects `averaged`."""
    from fsdpfuzz.ranks import _worker

    _worker.run_case = averaged


def averaged(case: CaseSpec, env: RankEnv) -> RankReport:
    """Averages gradients, twice, that differ on the ranks; every other rank lacks one of them."""
    import torch

    from fsdpfuzz.steps import averaging

    def parameter(*grad: float) -> nn.Parameter:
        made = torch.nn.Parameter(torch.zeros(len(grad)))
        made.grad = torch.tensor(grad)
        return made

    scale = float(env.rank + 1)
    named = {
        "everywhere": parameter(scale, 10 * scale),
        "nowhere": torch.nn.Parameter(torch.zeros(1)),
        "odd ranks": parameter(8 * scale, 0.0),
    }
    if env.rank % 2 == 0:
        named["odd ranks"].grad = None
    averaging.fill(named.values(), env.device)
    filled = told("filled", named)
    averaging.average(named.values(), lacking=True)
    once = told("once", named)
    averaging.average(named.values(), lacking=True)
    twice = told("twice", named)
    averaging.put_aside(named, ["everywhere"])
    subject = Subject(warnings=(*filled, *once, *twice, *told("dropped", named)))
    return RankReport(rank=env.rank, digest=digest(case), subjects=(subject,))


def told(when: str, named: Mapping[str, nn.Parameter]) -> list[str]:
    """The gradients in words."""
    return [
        f"{when}: {name} {None if p.grad is None else p.grad.tolist()}" for name, p in named.items()
    ]
