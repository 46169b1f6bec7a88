"""Which options a finding needs is told by running it without each."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from fsdpfuzz.repro import Ablation, ablate
from fsdpfuzz.repro._ablate import variations
from fsdpfuzz.spec import (
    Backward,
    CaseSpec,
    Checkpoint,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Unit,
    Optimizer,
    Step,
    check,
    digest,
)
from fsdpfuzz.verdict import Verdict
from tests.unit.repro.examples import finding, single_unit

UNITS = (
    Fsdp1Unit(path="0", use_orig_params=True, forward_prefetch=True, sharding="SHARD_GRAD_OP"),
    Fsdp1Unit(path="", use_orig_params=True, forward_prefetch=True, sharding="SHARD_GRAD_OP"),
)
RICH = single_unit(
    "fsdp1",
    plan=Fsdp1Plan(units=UNITS),
    inputs=Dense(width=3, requires_grad=True),
    checkpoints=(Checkpoint(path="1", kind="wrapper", reentrant=True),),
    optimizer=Optimizer(name="adamw"),
    frozen=("0.bias",),
    program=(Forward(sync=False), Backward(), Forward(), Backward(), Step()),
)
GRAD = finding("grad_parity", where="fsdp1:other", op=1)


def told(shows: Callable[[CaseSpec], bool], **options: int) -> Ablation:
    def examine(case: CaseSpec) -> Verdict:
        check(case)
        where = f"{case.api}:other"
        found = msgspec.structs.replace(GRAD, where=where)
        return Verdict(status="finding", findings=(found,)) if shows(case) else passed

    passed = Verdict(status="passed")
    return ablate(RICH, GRAD.key, examine, **options)


def test_what_it_needs_is_named() -> None:
    def shows(case: CaseSpec) -> bool:
        plan = case.plan
        return (
            isinstance(plan, Fsdp1Plan)
            and all(unit.use_orig_params for unit in plan.units)
            and any(c.reentrant for c in case.checkpoints)
            and case.world_size == 2
        )

    found = told(shows)
    assert "use_orig_params=True" in found.needed
    assert "reentrant checkpointing" in found.needed
    assert not any(words in found.needed for words in ("AdamW", "frozen parameters", "no_sync"))
    assert "with FSDP2" in found.absent
    assert {"at world size 1", "at world size 3", "at world size 4"} <= set(found.absent)
    assert found.complete
    assert found.words.startswith("fails only with ")


def test_what_shows_everywhere_needs_nothing() -> None:
    found = told(lambda _: True)
    assert (found.needed, found.absent) == ((), ())
    assert "at world size 3" in found.present
    assert "with FSDP2" in found.present


def test_the_other_api_counts_by_its_own_key() -> None:
    found = told(lambda case: case.api == "fsdp2" or case == RICH)
    assert "with FSDP2" in found.present


def test_another_finding_is_not_the_same() -> None:
    other = Verdict(status="finding", findings=(finding("loss_parity", where="fsdp1:other"),))
    found = ablate(RICH, GRAD.key, lambda _: other)
    assert found.present == ()
    assert "use_orig_params=True" in found.needed


@pytest.mark.parametrize("status", ["rejected", "vacuous"])
def test_what_is_refused_says_nothing(status: str) -> None:
    refused = Verdict(status=status, reason="so")  # type: ignore[arg-type]
    found = ablate(RICH, GRAD.key, lambda _: refused)
    assert (found.needed, found.absent, found.present) == ((), (), ())


def test_it_ends_where_it_may_not_go_on() -> None:
    assert (told(lambda _: True, max_runs=3).runs, told(lambda _: True, max_runs=3).complete) == (
        3,
        False,
    )
    stopped = ablate(RICH, GRAD.key, lambda _: None)
    assert (stopped.runs, stopped.complete) == (0, False)
    assert "not all options were tried" in stopped.words


def test_no_variation_has_more_ranks_than_there_are() -> None:
    sizes = {v.case.world_size for v in variations(RICH, max_ranks=2)}
    assert sizes == {1, 2}


def test_each_variation_differs_in_one_thing() -> None:
    names = [digest(v.case) for v in variations(RICH)]
    assert digest(RICH) not in names
    words = [v.words for v in variations(RICH)]
    assert len(words) == len(set(words))
    second = single_unit("fsdp2", plan=msgspec.structs.replace(single_unit("fsdp2").plan))
    assert all(
        isinstance(unit, Fsdp1Unit | Fsdp2Unit)
        for v in variations(second)
        for unit in v.case.plan.units
    )
