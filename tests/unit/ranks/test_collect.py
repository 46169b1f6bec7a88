"""What a rank frees once it has answered, and what it does not look at again."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from fsdpfuzz.ranks._worker import _collect


class Circle:
    """An object that only the garbage collector frees."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def thawed() -> Iterator[None]:
    """Nothing is frozen after the test, and nothing is collected during it but what it asks for."""
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


@pytest.mark.usefixtures("thawed")
def test_what_a_case_left_in_circles_is_freed() -> None:
    left = weakref.ref(Circle())
    assert left() is not None
    _collect(everything=False)
    assert left() is None


@pytest.mark.usefixtures("thawed")
def test_what_stayed_is_looked_at_every_now_and_then() -> None:
    cached = Circle()
    stayed = weakref.ref(cached)
    _collect(everything=False)
    del cached
    _collect(everything=False)
    assert stayed() is not None
    _collect(everything=True)
    assert stayed() is None
