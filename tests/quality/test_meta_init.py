"""A model on the meta device trains as the plain one does, and a fault in materialising shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpfuzz.case import (
    Buffered,
    CaseSpec,
    Dense,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Matrix,
    Op,
    Plan,
    Sequential,
    StateDict,
    check,
)
from fsdpfuzz.case.meta_init import WAYS, By, MetaInit
from fsdpfuzz.case.operations import Rebuild
from tests.injected.by_hand import ONCE, assert_scripted, judged

PLANS: dict[str, Plan] = {
    "fsdp1": Fsdp1Plan(units=(Fsdp1Unit(path=""), Fsdp1Unit(path="2"))),
    "fsdp2": Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="2"))),
}
COUNTER = Buffered(persistent=False, updates=True)
TRAINED = [(api, way) for api, ways in WAYS.items() for way in ways if way != "never"]
ON_CPUS = "tests.injected.synchronised:on_cpus"


def case(api: str, meta: MetaInit, *program: Op, counter: Buffered = COUNTER) -> CaseSpec:
    inner = Matrix(body=Linear(out=5), buffered=True)
    made = CaseSpec(
        world_size=2,
        model=Sequential(children=(Linear(out=5), counter, inner, Linear(out=3))),
        inputs=Dense(width=3),
        plan=PLANS[api],
        program=program,
        meta_init=meta,
    )
    check(made)
    return made


@pytest.mark.parametrize(("api", "by"), TRAINED)
@pytest.mark.parametrize("part", ["", "1", "2"])
def test_it_trains_as_the_plain_model_does(api: str, by: By, part: str) -> None:
    """Also where another model is made to load what was saved."""
    again: tuple[Op, ...] = (StateDict(), Rebuild(plan=PLANS[api]))
    given = case(api, MetaInit(by=by, part=part), *ONCE, *again, *ONCE, counter=Buffered())
    assert judged(given, needed(by)).status == "passed"


@pytest.mark.parametrize(("api", "by"), TRAINED)
def test_buffers_that_are_not_saved_are_right(api: str, by: By) -> None:
    assert judged(case(api, MetaInit(by=by), *ONCE, *ONCE), needed(by)).status == "passed"


def needed(by: By) -> str | None:
    """What lets CPUs do what fsdp1 documents to need a GPU."""
    return ON_CPUS if by == "sync_module_states" else None


def test_what_rank_0_does_not_send_shows() -> None:
    given = case("fsdp1", MetaInit(by="sync_module_states"), *ONCE)
    found = judged(given, "tests.injected.synchronised:nothing").findings
    assert {"output_parity/mismatch/fsdp1", "buffer_parity/mismatch/fsdp1"} <= {
        f.key for f in found
    }
    assert judged(given).status == "rejected"


@pytest.mark.parametrize("part", ["", "2"])
def test_what_is_left_on_meta_is_refused(part: str) -> None:
    assert judged(case("fsdp2", MetaInit(by="never", part=part), *ONCE)).status == "rejected"


FAULTS: dict[str, tuple[CaseSpec, str, str]] = {
    "meta_module_not_reset": (
        case("fsdp1", MetaInit(), *ONCE),
        "output_parity/mismatch/fsdp1",
        "passed",
    ),
    "meta_buffers_overlooked": (
        case("fsdp1", MetaInit(by="param_init_fn", part="1"), *ONCE),
        "no_crash/crash/fsdp1",
        "passed",
    ),
    "fsdp2_stale_shard_after_assign": (
        case("fsdp2", MetaInit(by="assign"), *ONCE),
        "output_parity/mismatch/fsdp2",
        "passed",
    ),
    "fsdp2_meta_parameters_not_refused": (
        case("fsdp2", MetaInit(by="never"), *ONCE),
        "no_crash/crash/fsdp2",
        "rejected",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_shows_and_so_does_its_script(fault: str, tmp_path: Path) -> None:
    given, key, without = FAULTS[fault]
    injection = f"benchmarks.faults.injections:{fault}"
    verdict = judged(given, injection)
    found = [finding for finding in verdict.findings if finding.key.startswith(key)]
    assert found, [finding.key for finding in verdict.findings]
    assert judged(given).status == without
    usual = {"passed": "not reproduced", "rejected": "failed otherwise"}[without]
    assert_scripted(given, found[0], injection, tmp_path, usual)
