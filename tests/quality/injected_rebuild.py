"""Faults of a training that is taken up again, injected in the ranks."""

from __future__ import annotations

from threading import Event
from typing import Any

from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from benchmarks.faults import FAULTS, inject
from fsdpfuzz.ranks._env import RankEnv
from fsdpfuzz.steps import rebuild

_MODEL, _OPTIMIZER = "set_model_state_dict", "set_optimizer_state_dict"
_ZERO, _WRITE = "zero", "write_data"


def stages_nothing_and_writes_late(_: RankEnv) -> None:
    """What is saved in the background is written once the training has changed all of it."""
    inject(FAULTS["async_save_stages_nothing"])
    changed = Event()
    zero: Any = rebuild.zero
    write: Any = FileSystemWriter.write_data

    def changing(*args: Any) -> None:
        zero(*args)
        changed.set()

    def writing(*args: Any) -> Any:
        assert changed.wait(60), "nothing has been changed"
        return write(*args)

    setattr(rebuild, _ZERO, changing)
    setattr(FileSystemWriter, _WRITE, writing)


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
