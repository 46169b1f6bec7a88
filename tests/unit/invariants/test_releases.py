"""What is promised hangs on the release that the ranks ran on."""

from __future__ import annotations

import pytest
from packaging.version import Version

from fsdpfuzz.invariants.base import is_from, reduces_in_own
from fsdpfuzz.observations import Observation


def on(torch: str) -> Observation:
    return Observation(digest="0", world_size=2, backend="gloo", torch=torch, reports=())


@pytest.mark.parametrize(
    ("torch", "own"),
    [("2.14.1+cpu", False), ("2.15.0a0+git1", True), ("2.15.0+cu132", True), ("no torch", False)],
)
def test_from_2_15_on_fsdp2_reduces_in_the_parameters_own_dtype(torch: str, own: bool) -> None:
    assert reduces_in_own(on(torch)) is own


def test_a_release_that_nobody_can_tell_is_taken_for_a_new_one() -> None:
    assert is_from(Version("2.11"), on("no torch"))
    assert not is_from(Version("2.11"), on("2.10.0"))
