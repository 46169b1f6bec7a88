"""Which options a finding needs is told by running it without each."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Checkpoint,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Linear,
    Optimizer,
    Step,
    check,
    digest,
)
from fsdpfuzz.reduce import Ablation, ablate, simpler
from fsdpfuzz.verdict import Failure, Finding, Verdict
from tests.unit.reduce.samples import GRAD, seq

UNITS = (
    Fsdp1Unit(path="0", use_orig_params=True, forward_prefetch=True, sharding="SHARD_GRAD_OP"),
    Fsdp1Unit(path="", use_orig_params=True, forward_prefetch=True, sharding="SHARD_GRAD_OP"),
)
RICH = CaseSpec(
    world_size=2,
    model=seq(Linear(out=3), Linear(out=2)),
    inputs=Dense(width=3, requires_grad=True),
    plan=Fsdp1Plan(units=UNITS),
    checkpoints=(Checkpoint(path="1", kind="wrapper", reentrant=True),),
    optimizer=Optimizer(name="adamw"),
    held_out=("0.bias",),
    program=(Forward(sync=False), Backward(), Forward(), Backward(), Step()),
)
OPTIONS = {neighbour.words for neighbour in simpler(RICH) if neighbour.words}


def told(
    shows: Callable[[CaseSpec], bool], finding: Finding = GRAD, **options: int
) -> tuple[Ablation, list[CaseSpec]]:
    """What ablation says, and the cases that it ran."""
    ran: list[CaseSpec] = []

    def examine(case: CaseSpec) -> Verdict:
        check(case)
        ran.append(case)
        found = msgspec.structs.replace(finding, api=case.api)
        return Verdict(status="finding", findings=(found,)) if shows(case) else passed

    passed = Verdict(status="passed")
    return ablate(RICH, finding, examine, **options), ran


def needs(case: CaseSpec) -> bool:
    plan = case.plan
    return (
        isinstance(plan, Fsdp1Plan)
        and all(unit.use_orig_params for unit in plan.units)
        and any(c.reentrant for c in case.checkpoints)
        and case.world_size == 2
    )


def test_what_it_needs_is_named_and_nothing_else() -> None:
    found, _ = told(needs)
    assert set(found.needed) == {
        "use_orig_params=True",
        "reentrant checkpointing",
        "checkpoint_wrapper",
    }
    assert "with FSDP2" in found.absent
    assert {"at world size 1", "at world size 3", "at world size 4"} <= set(found.absent)
    assert found.complete
    assert found.words.startswith("fails only with ")


def test_what_shows_everywhere_needs_nothing() -> None:
    found, _ = told(lambda _: True)
    assert (found.needed, found.absent) == ((), ())
    assert {"at world size 3", "with FSDP2"} <= set(found.present)


def test_what_shows_nowhere_else_needs_all() -> None:
    found, _ = told(lambda case: case == RICH)
    assert set(found.needed) == OPTIONS


def test_every_option_is_run_once() -> None:
    _, ran = told(lambda _: True)
    assert len({digest(case) for case in ran}) == len(ran)
    assert digest(RICH) not in {digest(case) for case in ran}
    assert {n.words for n in simpler(RICH) if n.words and n.case in ran} == OPTIONS


def test_another_finding_is_not_the_same() -> None:
    other = msgspec.structs.replace(GRAD, invariant="loss_parity")
    verdict = Verdict(status="finding", findings=(other,))
    found = ablate(RICH, GRAD, lambda _: verdict)
    assert (found.present, found.absent) == ((), ())
    assert "at world size 3" in found.otherwise
    assert set(found.needed) == OPTIONS


def test_numbers_and_places_do_not_count() -> None:
    elsewhere = msgspec.structs.replace(GRAD, name="1.weight", observed="7", op=3, kind="other")
    verdict = Verdict(status="finding", findings=(elsewhere,))
    assert ablate(RICH, GRAD, lambda _: verdict).needed == ()


def test_another_exception_is_another_finding() -> None:
    raised = Failure(type="RuntimeError", text="sizes", place="torch/a.py:f")
    crash = msgspec.structs.replace(GRAD, invariant="no_crash", symptom="crash", failure=raised)
    found, _ = told(lambda _: True, crash)
    assert found.needed == ()
    for changed in ({"type": "ValueError"}, {"place": "torch/b.py:g"}):
        failure = msgspec.structs.replace(raised, **changed)
        verdict = Verdict(
            status="finding", findings=(msgspec.structs.replace(crash, failure=failure),)
        )
        assert set(ablate(RICH, crash, lambda _, v=verdict: v).needed) == OPTIONS  # type: ignore[misc]


@pytest.mark.parametrize("status", ["rejected", "vacuous"])
def test_what_is_refused_says_nothing(status: str) -> None:
    refused = Verdict(status=status, reason="so")  # type: ignore[arg-type]
    found = ablate(RICH, GRAD, lambda _: refused)
    assert (found.needed, found.absent, found.present) == ((), (), ())
    assert found.words == "no single option matters"


def test_it_ends_where_it_may_not_go_on() -> None:
    found, ran = told(lambda _: True, max_runs=3)
    assert (found.runs, found.complete, len(ran)) == (3, False, 3)
    stopped = ablate(RICH, GRAD, lambda _: None)
    assert (stopped.runs, stopped.complete) == (0, False)
    assert "not all options were tried" in stopped.words


@pytest.mark.parametrize("most", [1, 2, 4])
def test_no_case_has_more_ranks_than_there_are(most: int) -> None:
    _, ran = told(lambda _: True, max_ranks=most)
    assert {case.world_size for case in ran} == {2, *range(1, most + 1)}


@pytest.mark.parametrize(
    ("absent", "words"),
    [
        (("at world size 3",), "not at world size 3"),
        (("with FSDP2", "at world size 3"), "not with FSDP2 or at world size 3"),
        (("at world size 1", "at world size 3"), "not at world sizes 1 or 3"),
        (
            ("at world size 1", "with FSDP2", "at world size 3", "at world size 4"),
            "not with FSDP2 or at world sizes 1, 3 or 4",
        ),
    ],
)
def test_world_sizes_are_told_in_one(absent: tuple[str, ...], words: str) -> None:
    assert Ablation(absent=absent).words == words
