"""A fault in an option that newer releases of torch have shows where a case has the option."""

from __future__ import annotations

import msgspec
import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Idle,
    Linear,
    Norm,
    Op,
    Optimizer,
    Precision,
    Rebuild,
    Sequential,
    Step,
    chain,
    check,
    needs_of_torch,
)
from fsdpfuzz.case.anatomy import anatomy
from fsdpfuzz.case.reduce_scatter import ReduceScatter
from fsdpfuzz.ranks._machine_probe import public
from tests.injected.by_hand import judged

CHAIN = chain("fsdp2", (3, 4, 2), (0,), 2, (Forward(), Backward(), Step()))
UNUSED = msgspec.structs.replace(
    CHAIN,
    model=Sequential(children=(Linear(out=4), Idle(), Linear(out=2))),
    optimizer=Optimizer(momentum=0.0),
)
replace = msgspec.structs.replace
NORM = replace(CHAIN, model=Sequential(children=(Linear(out=4), Norm(variant="rms"))))

ROOTS = replace(CHAIN, plan=Fsdp2Plan(units=(Fsdp2Unit(path="0"), Fsdp2Unit(path="1"))))


def in_low_precision(*kept: str) -> Fsdp2Plan:
    """One unit, of which some parameters keep their dtype."""
    low = Precision(param="bfloat16", reduce="float32")
    return Fsdp2Plan(units=(Fsdp2Unit(path="", precision=low, param_dtype_override=kept),))


FAULTS: dict[str, tuple[CaseSpec, CaseSpec, str]] = {
    "unused_parameters_get_ones": (
        replace(UNUSED, reduce_scatter=ReduceScatter(unused=True, buffers=2)),
        UNUSED,
        "grad_parity/mismatch/fsdp2",
    ),
    "an_own_group_of_one_rank": (
        replace(CHAIN, reduce_scatter=ReduceScatter(own_group=True)),
        CHAIN,
        "grad_parity/mismatch/fsdp2",
    ),
    "whole_parameters_are_freed": (
        replace(CHAIN, keep_unsharded_storage=True),
        CHAIN,
        "shard_bytes/mismatch/fsdp2",
    ),
    "no_parameter_keeps_its_dtype": (
        replace(NORM, plan=in_low_precision("1.weight")),
        replace(NORM, plan=in_low_precision()),
        "collectives/mismatch/fsdp2",
    ),
    "what_autograd_left_is_not_finished": (
        replace(CHAIN, finalization="manual"),
        CHAIN,
        "grad_parity/mismatch/fsdp2",
    ),
    "only_the_first_that_shares_reduces": (
        replace(ROOTS, share_comm_ctx=True),
        ROOTS,
        "grad_parity/mismatch/fsdp2",
    ),
}


def found_in(case: CaseSpec, injection: str | None) -> list[str]:
    return [finding.key for finding in judged(case, injection).findings]


UNREDUCED: tuple[Op, ...] = (Forward(sync=False), Backward())
SOUND: dict[str, CaseSpec] = {
    "gathered_for_nothing_before_finalization": replace(
        CHAIN,
        frozen=("0.weight", "0.bias"),
        program=(*UNREDUCED, *UNREDUCED, Forward(), Backward(), Step()),
        finalization="manual",
    ),
    "in_the_order_of_several_forwards": replace(
        CHAIN,
        plan=Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="0"), Fsdp2Unit(path="1"))),
        program=(*UNREDUCED, *UNREDUCED, Forward(), Backward(), Step()),
        finalization="async",
    ),
    "kept_by_units_of_another_plan": replace(
        CHAIN,
        plan=Fsdp2Plan(units=(Fsdp2Unit(path=""),)),
        program=(
            Rebuild(plan=Fsdp2Plan(units=(Fsdp2Unit(path="0"), Fsdp2Unit(path="1")))),
            *(Forward(), Backward(), Step()),
        ),
        keep_unsharded_storage=True,
    ),
    # Each goes back where it has forgotten nothing: a first look without grad makes both roots.
    "by_roots_that_were_called_before": replace(
        CHAIN,
        model=Sequential(
            children=(Sequential(children=(Linear(out=3), Linear(out=3))), Linear(out=2))
        ),
        plan=Fsdp2Plan(units=tuple(Fsdp2Unit(path=path) for path in ("0", "0.1", "1"))),
        program=(Forward(grad=False), *(Forward(), Backward(), Step()) * 2),
        share_comm_ctx=True,
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_what_an_option_is_right_to_do_is_no_finding(name: str) -> None:
    """Found by drawing: what was promised was wrong."""
    case = SOUND[name]
    check(case)
    if lacks := [needed for needed in needs_of_torch(anatomy(case)) if not public(needed)]:
        pytest.skip(f"this torch has no {', '.join(lacks)}")
    verdict = judged(case)
    assert (verdict.status, verdict.findings) == ("passed", ())


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_shows_where_the_option_is_told(name: str) -> None:
    case, without, key = FAULTS[name]
    check(case)
    if lacks := [needed for needed in needs_of_torch(anatomy(case)) if not public(needed)]:
        pytest.skip(f"this torch has no {', '.join(lacks)}")
    injection = f"tests.quality.injected_newer:{name}"
    assert any(found.startswith(key) for found in found_in(case, injection))
    assert found_in(case, None) == []
    assert found_in(without, injection) == []
