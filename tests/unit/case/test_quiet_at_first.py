"""Units that a forward calls without reading what they train, before one that reads it."""

from __future__ import annotations

import msgspec
import pytest

from fsdpfuzz.case import (
    Backward,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Op,
    Rebuild,
    ZeroGrad,
    unit_features,
)
from fsdpfuzz.case.units.sharding import Sharding
from fsdpfuzz.known.defect import ways
from tests.unit.case.test_layer_drop import ONCE, case, having
from tests.unit.case.test_units import fsdp1

DROPPED = Forward(drop=True)
# The third forward leaves out the second layer, which is the root's.
THREE: tuple[Op, ...] = ONCE * 3


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (THREE, []),
        ((*THREE, *ONCE), [""]),
        ((*THREE, Forward(grad=False)), []),
        ((*ONCE, *ONCE), []),
        # The second forward leaves out the first layer.
        ((DROPPED, *ONCE, *ONCE), ["layers.0"]),
        ((DROPPED, *ONCE), []),
        ((Forward(grad=False), *ONCE, *ONCE), []),
        # A backward comes to it after all.
        ((Forward(), Forward(), Backward(), *ONCE), []),
    ],
)
def test_what_was_left_out_is_read_later(program: tuple[Op, ...], expected: list[str]) -> None:
    plan = fsdp1("", "layers.0", use_orig_params=True)
    assert having(case(plan, program), "quiet_at_first") == expected


@pytest.mark.parametrize(
    ("sharding", "program", "expected"),
    [
        ("NO_SHARD", (*ONCE, DROPPED, *ONCE), True),
        ("NO_SHARD", (*ONCE, ZeroGrad(), DROPPED, *ONCE), False),
        ("NO_SHARD", (*ONCE, *ONCE, DROPPED), False),
        ("FULL_SHARD", (*ONCE, DROPPED, *ONCE), False),
    ],
)
def test_a_whole_unit_has_gradients_as_a_backward_passes_over_it(
    sharding: Sharding, program: tuple[Op, ...], expected: bool
) -> None:
    plan = fsdp1("", "layers.1", use_orig_params=True, sharding=sharding)
    assert ("layers.1" in having(case(plan, program), "quiet_graded")) == expected


@pytest.mark.parametrize("orig", [False, True])
@pytest.mark.parametrize(
    ("offloaded", "program", "flat"),
    [
        # The second forward leaves out the first layer.
        ("layers.0", (*ONCE, ZeroGrad(), *ONCE), True),
        ("layers.0", ONCE, False),
        ("layers.1", (*ONCE, ZeroGrad(), *ONCE), False),
        # A forward of the other layer alone.
        ("layers.0", (Forward(target="layers.1"), Backward()), True),
        # It has its gradient still, which is no other one.
        ("layers.0", (*ONCE, *ONCE), False),
        ("layers.0", (*ONCE, ZeroGrad(), Forward(sync=False), Backward()), False),
        # The third leaves out the second layer.
        ("layers.0", (*ONCE, ZeroGrad(), Forward(grad=False), *ONCE), False),
    ],
)
def test_an_offloaded_unit_is_handed_what_lies_on_the_cpu(
    orig: bool, offloaded: str, program: tuple[Op, ...], flat: bool
) -> None:
    """As on two GPUs: gradients of the first backward behind the second, unless cleared late."""
    plan = Fsdp1Plan(
        units=(
            Fsdp1Unit(path="", use_orig_params=orig),
            Fsdp1Unit(path="layers.0", use_orig_params=orig, cpu_offload=offloaded == "layers.0"),
            Fsdp1Unit(path="layers.1", use_orig_params=orig, cpu_offload=offloaded == "layers.1"),
        )
    )
    found = having(case(plan, program), "handed_again")
    # With original parameters only what a forward has called, as below.
    assert found == [offloaded] * (flat and not orig)


def test_with_original_parameters_a_unit_is_handed_it_that_a_forward_called() -> None:
    """The second forward leaves out the first layer, which is the root's."""
    units = (
        Fsdp1Unit(path="", use_orig_params=True, cpu_offload=True),
        Fsdp1Unit(path="layers.1", use_orig_params=True),
    )
    program = (*ONCE, ZeroGrad(), *ONCE)
    assert having(case(Fsdp1Plan(units=units), program), "handed_again") == [""]
    bare = tuple(msgspec.structs.replace(unit, cpu_offload=False) for unit in units)
    assert having(case(Fsdp1Plan(units=bare), program), "handed_again") == []


def test_a_unit_of_a_later_wrapping_is_passed_over_as_that_says() -> None:
    whole = fsdp1("layers.1", use_orig_params=True, sharding="NO_SHARD")
    program = (Rebuild(plan=whole), *ONCE, DROPPED, *ONCE)
    given = case(fsdp1("", use_orig_params=True), program)
    first, last = ways(given)
    assert unit_features(first, "")["quiet_graded"] == "off"
    assert unit_features(last, "layers.1")["quiet_graded"] == "on"
