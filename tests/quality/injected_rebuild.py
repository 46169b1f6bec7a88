"""Faults of a training that is taken up again, injected in the ranks."""

from __future__ import annotations

from typing import Any

from torch.distributed.checkpoint import state_dict_saver

from fsdpfuzz.ranks._env import RankEnv
from fsdpfuzz.steps import rebuild

_MODEL, _OPTIMIZER = "set_model_state_dict", "set_optimizer_state_dict"


def loses_the_momentum(_: RankEnv) -> None:
    """What the optimizer has gathered is not loaded."""
    real = getattr(rebuild, _OPTIMIZER)

    def without(model: Any, optimizer: Any, state: Any) -> None:
        real(model, optimizer, state)
        for held in optimizer.state.values():
            held["momentum_buffer"].zero_()

    setattr(rebuild, _OPTIMIZER, without)


def loads_stale_weights(_: RankEnv) -> None:
    """The model keeps the values that it was made with."""

    def nothing(model: Any, state: Any) -> None:
        pass

    setattr(rebuild, _MODEL, nothing)


def halves_what_it_saves(_: RankEnv) -> None:
    """A parameter comes to the disk with half its value."""
    real = state_dict_saver.save

    def halved(state: Any, **options: Any) -> Any:
        first = next(iter(state["model"]))
        state["model"][first] = state["model"][first] * 0.5
        return real(state, **options)

    state_dict_saver.save = halved
