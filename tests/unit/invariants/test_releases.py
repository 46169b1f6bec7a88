"""What is promised hangs on the release that the ranks ran on."""

from __future__ import annotations

import pytest
from packaging.version import Version

from fsdpfuzz.invariants.base import is_from, reduces_in_own


@pytest.mark.parametrize(
    ("torch", "own"),
    [("2.14.1+cpu", False), ("2.15.0a0+git1", True), ("2.15.0+cu132", True), ("no torch", False)],
)
def test_from_2_15_on_fsdp2_reduces_in_the_parameters_own_dtype(torch: str, own: bool) -> None:
    assert reduces_in_own(torch) is own


def test_a_release_that_nobody_can_tell_is_taken_for_a_new_one() -> None:
    assert is_from(Version("2.11"), "no torch")
    assert not is_from(Version("2.11"), "2.10.0")
