"""`optim_state`: what is held against nothing where rounding decides whether a state is zero."""

import pytest

from fsdpfuzz.case import anatomy
from fsdpfuzz.invariants.optim_state import OptimizerState
from fsdpfuzz.observations import Comparison

from .observed import CASE, comparison, observed, subject


def entry(name: str, size: float, missing: str = "") -> Comparison:
    """What a state dict has of a parameter; with ``missing`` only one side has it."""
    return comparison(
        quantity="result",
        name=f"optim_state[0.weight].{name}",
        op=2,
        error=size,
        missing=missing,
        expected=0.0 if missing == "expected" else size,
        observed=0.0 if missing == "observed" else size,
    )


def details(*comparisons: Comparison) -> list[tuple[str, str]]:
    """The findings of it: which entry, and what is wrong with it."""
    found = OptimizerState().check(anatomy(CASE), observed(subject(comparisons=comparisons)))
    return [(finding.name.rpartition(".")[2], finding.detail) for finding in found]


@pytest.mark.parametrize("number", ["lr", "step"])
@pytest.mark.parametrize("side", ["observed", "expected"])
def test_numbers_beside_a_state_of_rounding_alone(number: str, side: str) -> None:
    assert details(entry("momentum_buffer", 1e-8, side), entry(number, 0.05, side)) == []


@pytest.mark.parametrize("side", ["observed", "expected"])
def test_a_state_that_one_side_lacks(side: str) -> None:
    found = details(entry("momentum_buffer", 0.5, side), entry("lr", 0.05, side))
    assert found == [("momentum_buffer", f"{side}-missing")]


@pytest.mark.parametrize("number", ["lr", "step"])
def test_a_number_that_is_lacking_alone(number: str) -> None:
    found = details(entry("momentum_buffer", 1e-8), entry(number, 0.05, "observed"))
    assert found == [(number, "observed-missing")]


def test_a_number_that_both_sides_have() -> None:
    assert details(entry("lr", 0.05)) == [("lr", "other")]
