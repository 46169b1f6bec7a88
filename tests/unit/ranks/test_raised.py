"""An exception becomes bounded text, whatever it does."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
import torch
from torch import nn

import fsdpfuzz
from fsdpfuzz.case.recipe import Do, Items, Recipe, call
from fsdpfuzz.errors import CaseError, ContractError
from fsdpfuzz.observations import MAX_MESSAGE, MAX_TRACEBACK, Raised
from fsdpfuzz.ranks._compare import Batch
from fsdpfuzz.ranks._env import RankEnv
from fsdpfuzz.ranks._execute import Execution, Watcher, resolve
from fsdpfuzz.ranks._raised import describe
from fsdpfuzz.steps import names
from fsdpfuzz.wire import FlightRecorder
from tests.misbehaviour import UnspeakableError


def caught(error: BaseException) -> Raised:
    try:
        raise error
    except BaseException as found:
        return describe(found, "case:forward[0]")


class NarrowError(ValueError):
    pass


@pytest.mark.parametrize(
    ("error", "documented"),
    [
        (ValueError("x"), True),
        (NotImplementedError("x"), True),
        (NarrowError("x"), False),
        (RuntimeError("x"), False),
        (AssertionError("x"), False),
        (SystemExit(1), False),
    ],
)
def test_only_the_two_types_of_refusal_are_documented(
    error: BaseException, documented: bool
) -> None:
    found = caught(error)
    assert (found.type, found.documented) == (type(error).__name__, documented)
    assert found.stage == "case:forward[0]"


def test_the_frame_is_the_innermost_inside_torch() -> None:
    with pytest.raises(RuntimeError) as info:
        nn.Linear(3, 2)(torch.ones(1, 4))
    assert describe(info.value, "").frame == "torch/nn/modules/linear.py:forward"
    assert caught(ValueError("ours")).frame == ""


def test_an_exception_without_text_is_described() -> None:
    found = caught(UnspeakableError())
    assert found.type == "UnspeakableError"
    assert found.message == "(no message: str() of it raised RuntimeError)"
    assert "in caught" in found.traceback


def test_long_texts_keep_both_ends() -> None:
    found = caught(RuntimeError("first" + "\ud800" * 100_000 + "last"))
    assert len(found.message) == MAX_MESSAGE
    assert found.message.startswith("first?")
    assert found.message.endswith("?last")
    assert len(found.traceback) <= MAX_TRACEBACK


def test_deep_recursion_is_described() -> None:
    def deeper() -> None:
        deeper()

    with pytest.raises(RecursionError) as info:
        deeper()
    assert len(describe(info.value, "").traceback) <= MAX_TRACEBACK


def raised_by(call: Callable[[], object]) -> bool:
    try:
        call()
    except BaseException as error:
        return describe(error, "case:forward[0]").ours
    raise AssertionError("nothing was raised")


class Backfires(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise KeyError("in the model")


def in_a_step() -> object:
    return names.at({}, "0.weight")


def in_the_comparing() -> object:
    batch = Batch("grad", 0, 0.0, 0.0)
    batch.add("0.weight", torch.ones(2), cast(torch.Tensor, 3))
    return None


def by_a_step_that_a_recipe_names() -> object:
    main = (Do(call=call("steps.names.at", Items("dict", ()), "0.weight")),)
    return executed(main)


def by_a_builtin_that_a_recipe_names() -> object:
    return executed((Do(call=call(".nothing", Items("list", ()))),))


def executed(main: tuple[Do, ...]) -> object:
    recipe = Recipe(procedures=(), main=main)
    env = RankEnv(
        rank=0,
        world_size=1,
        backend="gloo",
        device=torch.device("cpu"),
        flight=cast(FlightRecorder, Mock()),
    )
    execution = Execution(
        recipe=recipe,
        env=env,
        role="fsdp",
        dtype=torch.float32,
        label="case",
        watcher=cast(Watcher, Mock()),
    )
    return execution.run()


def raising(error: BaseException) -> Callable[[], object]:
    def call() -> object:
        raise error

    return call


ILLEGAL = "CUDA error: an illegal memory access was encountered"


def while_comparing(message: str) -> Callable[[], object]:
    """What a function in C raises for a kernel that was begun long before: no frame of its own."""
    place = str(Path(fsdpfuzz.__file__).parent / "ranks" / "_compare.py")
    code = compile(f"raise RuntimeError({message!r})", place, "exec")
    return lambda: exec(code)


def test_where_a_kernel_fails_is_not_told() -> None:
    """The program is further on by then."""
    layer = nn.Linear(3, 2)
    layer.register_forward_hook(lambda *_: while_comparing(ILLEGAL)())
    with pytest.raises(RuntimeError, match=ILLEGAL) as info:
        layer(torch.ones(1, 3))
    assert describe(info.value, "case:backward[2]").frame == ""


@pytest.mark.parametrize(
    ("call", "ours"),
    [
        (lambda: nn.Linear(3, 2)(torch.ones(1, 4)), False),
        (lambda: Backfires()(torch.ones(1)), False),
        (in_a_step, False),
        (by_a_step_that_a_recipe_names, False),
        (by_a_builtin_that_a_recipe_names, False),
        (in_the_comparing, True),
        (lambda: resolve("steps.nothing"), True),
        (raising(ContractError("x")), True),
        (raising(CaseError("x")), True),
        (raising(MemoryError()), True),
        (raising(torch.OutOfMemoryError("CUDA out of memory")), True),
        (raising(RuntimeError("DefaultCPUAllocator: can't allocate memory: you ...")), True),
        (raising(OSError(errno.ENOSPC, "No space left on device")), True),
        (raising(OSError(errno.EPIPE, "Broken pipe")), False),
        (raising(RuntimeError("injected")), False),
        (while_comparing(ILLEGAL), False),
        (while_comparing("CUDA error: out of memory"), True),
        (while_comparing("injected"), True),
    ],
)
def test_what_is_ours_is_told_from_what_the_training_raises(
    call: Callable[[], object], *, ours: bool
) -> None:
    assert raised_by(call) is ours


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("[{}[x] for x in names]", "asked"),
        ("[{x: {}[x] for x in names} for _ in names]", "asked"),
        ("{{}[x] for x in names}", "asked"),
        ("[(lambda: {}[x])() for x in names]", "<lambda>"),
        ("list({}[x] for x in names)", "<genexpr>"),
        ("list(map(lambda x: {}[x], names))", "<lambda>"),
    ],
)
def test_a_comprehension_is_part_of_its_function(body: str, expected: str) -> None:
    """Up to Python 3.11 it has a frame of its own, so that one fault would have two names."""
    place = str(Path(torch.__file__).with_name("there.py"))
    source = f"class Holder:\n    def asked(self, names):\n        return {body}\n"
    scope: dict[str, Any] = {}
    exec(compile(source, place, "exec"), scope)
    with pytest.raises(KeyError) as info:
        scope["Holder"]().asked("x")
    assert describe(info.value, "case:step[0]").frame == f"torch/there.py:{expected}"
