"""A fault in what fsdp2's units are told after they were made is found, shrunk and scripted."""

from __future__ import annotations

from pathlib import Path

import msgspec

from fsdpfuzz.case import Backward, Forward, Op, Step, chain
from fsdpfuzz.case.communication import Communication
from fsdpfuzz.case.divide_factor import DivideFactor
from fsdpfuzz.case.mesh import Mesh
from fsdpfuzz.case.micro_batches import MicroBatches
from tests.injected.by_hand import assert_scripted, judged
from tests.injected.hunting import (
    LONGER,
    assert_shown_by_its_script,
    case_of,
    found_by,
    hunt,
    linears,
)

INJECTIONS = "benchmarks.faults.injections"
KEY = "grad_parity/mismatch/fsdp2"


def test_a_fault_of_a_deferred_all_reduce(tmp_path: Path) -> None:
    injection = f"{INJECTIONS}:fsdp2_deferred_gradients_dropped"
    found = found_by(hunt(injection, tmp_path, number=150, until=(KEY,)), KEY)
    case = case_of(found)
    assert linears(case) <= 2
    assert case.micro_batches == MicroBatches(all_reduce_only=True)
    assert_shown_by_its_script(found, lines=LONGER)


def test_gradients_that_never_come(tmp_path: Path) -> None:
    injection = f"{INJECTIONS}:fsdp2_sync_not_switched_on"
    summary = hunt(injection, tmp_path, property_name="checkpoint", number=60, until=(KEY,))
    found = found_by(summary, KEY)
    assert found.finding.detail == "observed-missing"
    assert linears(case_of(found)) == 1
    assert_shown_by_its_script(found, lines=LONGER)


def test_units_that_are_told_beside_the_one_that_is_named(tmp_path: Path) -> None:
    injection = f"{INJECTIONS}:fsdp2_sync_of_all_units"
    unreduced: tuple[Op, ...] = (Forward(sync=False), Backward())
    plain = chain("fsdp2", (3, 4, 2), (0,), 2, (*unreduced, Forward(), Backward(), Step()))
    told = msgspec.structs.replace(plain, micro_batches=MicroBatches(units=("",)))
    (found,) = judged(told, injection).findings
    assert found.key.startswith("waiting_gradients/leak/fsdp2")
    assert_scripted(told, found, injection, tmp_path)
    inner = msgspec.structs.replace(plain, micro_batches=MicroBatches(units=("0",)))
    for sound, fault in ((told, None), (plain, injection), (inner, injection)):
        assert judged(sound, fault).findings == ()


def test_a_hook_whose_change_is_lost(tmp_path: Path) -> None:
    injection = f"{INJECTIONS}:fsdp2_all_reduce_hook_of_a_copy"
    found = found_by(hunt(injection, tmp_path, number=150, until=(KEY,)), KEY)
    case = case_of(found)
    assert linears(case) <= 2
    assert case.communication == Communication(hooked=True)
    assert_shown_by_its_script(found)


def test_a_fault_of_a_divide_factor(tmp_path: Path) -> None:
    injection = f"{INJECTIONS}:fsdp2_divide_factor_of_one_shard"
    found = found_by(hunt(injection, tmp_path, number=200, until=(KEY,), seed=6), KEY)
    case = case_of(found)
    assert linears(case) <= 2
    assert case.micro_batches is None
    assert case.divide_factor is not None
    assert not case.divide_factor.force_sum
    assert case.divide_factor != DivideFactor(factor=1.0)
    # One shard there is on a mesh of two dimensions, which takes some lines to make.
    assert_shown_by_its_script(found, lines=LONGER)


def test_sums_that_are_divided_by_too_few(tmp_path: Path) -> None:
    """Whoever asks for sums only, and for no factor, has FSDP2 divide by all ranks itself."""
    injection = f"{INJECTIONS}:fsdp2_replicas_not_counted"
    plain = chain("fsdp2", (3, 4, 2), (0,), 2, (Forward(), Backward(), Step()))
    told = msgspec.structs.replace(
        plain, mesh=Mesh(replicate=2, shard=1), divide_factor=DivideFactor(force_sum=True)
    )
    found = judged(told, injection).findings
    assert KEY in {finding.key for finding in found}
    finding = next(finding for finding in found if finding.key == KEY)
    assert_scripted(told, finding, injection, tmp_path)
    assert judged(told).findings == ()
