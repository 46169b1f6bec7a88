"""An exception becomes bounded text, whatever it does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fsdpfuzz.observations import MAX_MESSAGE, MAX_TRACEBACK, Raised
from fsdpfuzz.ranks._raised import describe
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
