"""What fsdp2's units are told after they were made is drawn in every form, where it goes."""

from __future__ import annotations

from collections import Counter
from typing import get_args

from fsdpfuzz.case import NEWER, CaseSpec, anatomy, foreseen_rejections, is_sound
from fsdpfuzz.case.communication import CommHook, Communication
from fsdpfuzz.case.divide_factor import DivideFactor
from fsdpfuzz.case.micro_batches import MicroBatches
from fsdpfuzz.strategies import FOCUSES, cases
from tests.unit.strategies.minimal import shrinks_to
from tests.unit.strategies.sample import features_of, sample

REFUSED = ("comm_hook_of_hybrid", "second_comm_hook", "comm_hook_below_the_root")


def everything() -> list[CaseSpec]:
    return [case for focus in FOCUSES for case in sample(focus).cases]


def test_all_that_micro_batches_leave_for_later_is_drawn() -> None:
    found = [case for case in everything() if case.micro_batches is not None]
    assert all(map(is_sound, found))
    for name in ("all_reduce_only", "keep_whole", "not_last"):
        assert sum(getattr(case.micro_batches, name) for case in found) >= 10, name
    shapes = {features_of(case)["mesh"] for case in found if case.micro_batches.all_reduce_only}  # type: ignore[union-attr]
    assert shapes == {"one shard", "one replica", "both"}


def test_some_units_are_told_and_others_are_not() -> None:
    found = [told for case in everything() if (told := case.micro_batches) and told.units]
    assert len(found) >= 20
    assert {told.all_reduce_only for told in found} == {True, False}

    def some(case: CaseSpec) -> bool:
        return case.micro_batches is not None and bool(case.micro_batches.units)

    shrinks_to(
        lambda case: case.micro_batches == MicroBatches(units=("",)) and len(case.plan.units) == 2,
        cases(apis=("fsdp2",)),
        some,
    )


def test_each_way_to_communicate_is_drawn() -> None:
    found = [told for case in everything() if (told := case.communication)]
    assert 0.02 < len(found) / len(everything()) < 0.1
    for name in ("own", "allocated", "hooked"):
        assert sum(getattr(told, name) for told in found) >= 20, name
    shrinks_to(
        lambda case: case.communication == Communication(own=True) and len(case.program) <= 3,
        cases(apis=("fsdp2",), offers=tuple(NEWER)),
        lambda case: case.communication and case.communication.own,
    )


def test_each_hook_of_fsdp1_is_drawn() -> None:
    found = [case for case in everything() if case.api == "fsdp1" and case.communication]
    told = Counter(case.communication.comm_hook for case in found if case.communication)
    assert set(told) == set(get_args(CommHook))
    assert min(told.values()) >= 20
    refused = Counter(r.name for case in found for r in foreseen_rejections(anatomy(case)))
    assert min(refused[f"fsdp1_{name}"] for name in REFUSED) >= 1
    shrinks_to(
        lambda case: (
            case.communication == Communication(comm_hook="own") and len(case.program) <= 3
        ),
        cases(apis=("fsdp1",)),
        lambda case: case.communication,
    )


def test_every_factor_is_drawn_with_sums_and_without() -> None:
    found = [case for case in everything() if case.divide_factor is not None]
    assert all(case.api == "fsdp2" for case in found)
    told = Counter(case.divide_factor for case in found)
    factors = {told.factor for told in told if told is not None}
    assert factors == {None, 0.5, 1.0, 2.0, 3.0, 4.0}
    assert DivideFactor(force_sum=True) in told
    assert {told.force_sum for told in told if told is not None} == {False, True}
    assert 0.02 < len(found) / len(everything()) < 0.08


def test_both_shrink_to_the_plainest_and_to_none() -> None:
    space = cases(apis=("fsdp2",), offers=tuple(NEWER))
    told = DivideFactor(factor=1.0, force_sum=True)
    shrinks_to(
        lambda case: (
            (case.divide_factor, case.micro_batches) == (told, None) and len(case.program) <= 3
        ),
        space,
        lambda case: case.divide_factor,
    )
    kept = MicroBatches(keep_whole=True)
    shrinks_to(
        lambda case: (
            (case.micro_batches, case.divide_factor) == (kept, None)
            and [op.kind() for op in case.program].count("forward") <= 3
        ),
        space,
        lambda case: case.micro_batches and case.micro_batches.keep_whole,
    )
