"""What takes the place of fsdp1's policies: the same units, told one by one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Linear,
    Norm,
    Precision,
    Sequential,
    StateDict,
    anatomy,
)
from fsdpfuzz.case.modules import ConvNorm
from fsdpfuzz.reduce import simpler
from tests.unit.reduce.test_neighbours import assert_in_one_thing


def two_layers(*units: Fsdp1Unit) -> CaseSpec:
    return CaseSpec(
        world_size=2,
        model=Sequential(children=(Linear(out=1), Linear(out=1))),
        inputs=Dense(width=2, batch=1),
        plan=Fsdp1Plan(units=units, wrap="custom_policy"),
        program=(Forward(), Backward()),
    )


@pytest.mark.parametrize("ignored", [{"ignored": ("1",)}, {"ignored_parameters": ("1.bias",)}])
def test_a_unit_found_by_class_gives_way_without_what_it_ignores_elsewhere(
    ignored: dict[str, Any],
) -> None:
    case = CaseSpec(
        world_size=2,
        model=Sequential(children=(Norm(), Linear(out=1))),
        inputs=Dense(width=2, batch=1),
        plan=Fsdp1Plan(
            units=(Fsdp1Unit(path="", **ignored),), wrap="module_classes", classes=("norm",)
        ),
        program=(StateDict(form="full"),),
    )
    assert any(neighbour.words == "ModuleWrapPolicy" for neighbour in simpler(case))
    assert_in_one_thing(case)


def test_a_unit_wrapped_by_hand_keeps_what_custom_policy_made_of_it() -> None:
    """``CustomPolicy`` gives all units the root's ``use_orig_params`` and ``limit_all_gathers``."""
    inner = Fsdp1Unit(path="0", forward_prefetch=True, limit_all_gathers=False)
    root = Fsdp1Unit(path="", use_orig_params=True)
    case = two_layers(inner, root)
    (nested,) = (n.case for n in simpler(case) if n.words == "CustomPolicy")
    assert anatomy(nested).options == anatomy(case).options
    assert [getattr(u, "forward_prefetch", None) for u in nested.plan.units] == [False, True]
    assert_in_one_thing(case)


def test_a_unit_wrapped_by_hand_ignores_what_the_policy_passed_on() -> None:
    """Also a listed one: ``_auto_wrap`` in fsdp/_wrap_utils.py hands the root's arguments on."""
    root = Fsdp1Unit(path="", ignored_parameters=("0.bias",))
    case = two_layers(Fsdp1Unit(path="0"), root)
    (nested,) = (n.case for n in simpler(case) if n.words == "CustomPolicy")
    assert anatomy(nested).owners == anatomy(case).owners
    assert anatomy(nested).left_alone["0"] == ("0.bias",)


def test_a_policy_that_keeps_batch_norms_in_full_is_not_taken_for_units_by_hand() -> None:
    """``_run_mixed_precision_override_policy`` in fsdp/wrap.py also casts what goes into them."""
    plan = Fsdp1Plan(units=(Fsdp1Unit(path=""),), wrap="module_classes", classes=("conv_norm",))
    low = msgspec.structs.replace(plan.units[0], precision=Precision(param="bfloat16"))
    model = Sequential(children=(Linear(out=4), ConvNorm(channels=2)))
    case = CaseSpec(
        world_size=2,
        model=model,
        inputs=Dense(width=3, batch=3),
        plan=plan,
        program=(Forward(), Backward()),
    )
    mixed = msgspec.structs.replace(case, plan=msgspec.structs.replace(plan, units=(low,)))
    assert anatomy(mixed).options["1.bn"].precision is None
    words = [[found.words for found in simpler(c)] for c in (case, mixed)]
    assert ["ModuleWrapPolicy" in told for told in words] == [True, False]
    assert "mixed precision" in words[1]
