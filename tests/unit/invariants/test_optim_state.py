"""`optim_state`: what is held against nothing where rounding decides whether a state is zero."""

import pytest

from fsdpfuzz.case import anatomy
from fsdpfuzz.invariants.optim_state import OptimizerState
from fsdpfuzz.observations import Comparison

from .observed import CASE, comparison, observed, subject


def entry(
    name: str, size: float, missing: str = "", of: str = "optim_state[0.weight]"
) -> Comparison:
    """What a state dict has of a parameter; with ``missing`` only one side has it."""
    return comparison(
        quantity="result",
        name=f"{of}.{name}",
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


@pytest.mark.parametrize("side", ["observed", "expected"])
def test_a_number_beside_a_state_of_rounding_alone(side: str) -> None:
    assert details(entry("momentum_buffer", 1e-8, side), entry("step", 0.05, side)) == []


@pytest.mark.parametrize("side", ["observed", "expected"])
def test_a_state_that_one_side_lacks(side: str) -> None:
    found = details(entry("momentum_buffer", 0.5, side), entry("step", 0.05, side))
    assert found == [("momentum_buffer", f"{side}-missing")]


def test_a_number_that_is_lacking_alone() -> None:
    found = details(entry("momentum_buffer", 1e-8), entry("step", 0.05, "observed"))
    assert found == [("step", "observed-missing")]


BESIDE = [("optim_options[0.weight]", "lr"), ("optim_loaded[group 0]", "lr")]
BESIDE.append(("optim_loaded[0.weight]", "step"))


@pytest.mark.parametrize(("of", "number"), BESIDE)
def test_options_and_what_is_loaded_where_both_sides_have_them(of: str, number: str) -> None:
    assert details(entry(number, 0.05, of=of)) == [(number, "other")]
    for side in ("observed", "expected"):
        assert details(entry(number, 0.05, side, of=of)) == []
