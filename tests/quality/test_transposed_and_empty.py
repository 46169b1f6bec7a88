"""Parameters that are not contiguous or have no element, and what goes wrong with them alone."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fsdpfuzz.case import (
    ITERATION,
    Backward,
    CaseSpec,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Node,
    Sequential,
    StateDict,
    features,
)
from fsdpfuzz.case.modules import Empty, Transposed
from fsdpfuzz.pool import Pool
from tests.injected.by_hand import judged
from tests.injected.hunting import assert_shown_by_its_script, case_of, found_by, hunt


def case(layer: Node, form: str = "full", **unit: object) -> CaseSpec:
    units = (Fsdp1Unit(path="", **unit), Fsdp1Unit(path="2", **unit))  # type: ignore[arg-type]
    return CaseSpec(
        world_size=2,
        model=Sequential(children=(Linear(out=3), layer, Linear(out=2))),
        inputs=Dense(width=3, batch=3),
        plan=Fsdp1Plan(units=units),
        program=(*ITERATION, *ITERATION, Forward(), Backward(), StateDict(form=form)),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("orig", [False, True])
@pytest.mark.parametrize("layer", [Transposed(out=5), Empty()], ids=lambda node: node.kind())
def test_fsdp1_trains_and_saves_them(layer: Node, orig: bool) -> None:
    assert judged(case(layer, use_orig_params=orig)).status == "passed"


def test_a_local_state_has_them_as_they_lie() -> None:
    assert judged(case(Transposed(out=5), form="local")).status == "passed"


def test_fsdp2_refuses_what_is_not_contiguous() -> None:
    given = CaseSpec(
        world_size=2,
        model=Transposed(out=3),
        inputs=Dense(width=3),
        plan=Fsdp2Plan(units=(Fsdp2Unit(path=""),)),
        program=(Forward(), Backward()),
    )
    assert judged(given).status == "rejected"


def test_strides_that_are_forgotten(tmp_path: Path) -> None:
    fault = "benchmarks.faults.injections:fsdp1_strides_forgotten"
    key = "output_parity/mismatch/fsdp1"
    found = found_by(hunt(fault, tmp_path, number=400, apis=("fsdp1",), until=(key,)), key)
    assert features(case_of(found))["transposed"] != "off"
    assert_shown_by_its_script(found)


@pytest.mark.parametrize("ignored", [(), ("1",)])
def test_the_reference_averages_each_gradient_once(ignored: tuple[str, ...]) -> None:
    """Else it is as far off as its two trainings are apart, and nothing would be found."""
    unit = Fsdp1Unit(path="", ignored=ignored)
    given = msgspec.structs.replace(case(Transposed(out=5)), plan=Fsdp1Plan(units=(unit,)))
    with Pool(2, "gloo") as pool:
        seen = pool.run(given)
    for report in seen.reports:
        assert report is not None
        grads = [c for s in report.subjects for c in s.comparisons if c.quantity == "grad"]
        # ``*`` stands for all tensors of an operation, which no baseline had to be asked for.
        assert len(grads) >= 3
        assert {c.name for c in grads} <= {"*", "1.weight", "1.bias"}
        assert all(c.baseline < 1e-5 for c in grads)
