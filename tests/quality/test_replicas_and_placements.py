"""A fault of replicas, or of a placement, is found, shrunk, and shown by a script."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpfuzz.case import features
from fsdpfuzz.loop import Api
from tests.injected.hunting import assert_shown_by_its_script, case_of, found_by, hunt, linears

INJECTIONS = "tests.injected.replicas"


@pytest.mark.parametrize("fault", ["replicas_not_reduced", "replicas_divided_twice"])
@pytest.mark.parametrize(("api", "ranks"), [("fsdp2", 2), ("fsdp1", 4)])
def test_a_fault_of_replicas(fault: str, api: Api, ranks: int, tmp_path: Path) -> None:
    # FSDP1 does not reduce over replicas of one rank anyway, which is known.
    key = f"grad_parity/mismatch/{api}"
    summary = hunt(
        f"{INJECTIONS}:{fault}",
        tmp_path,
        number=60,
        apis=(api,),
        world_sizes=(ranks,),
        until=(key,),
    )
    found = found_by(summary, key)
    case = case_of(found)
    assert linears(case) <= 2
    assert features(case)["mesh"] in ("both", "one shard")
    assert case.world_size == ranks
    assert_shown_by_its_script(found)


def test_a_gradient_that_is_cut_along_another_dimension(tmp_path: Path) -> None:
    # One case in about fifty places a parameter so.
    key = "grad_parity/mismatch/fsdp2"
    found = found_by(
        hunt(f"{INJECTIONS}:gradient_along_rows", tmp_path, number=200, until=(key,), seed=3), key
    )
    case = case_of(found)
    assert linears(case) <= 2
    placed = [placement for unit in case.plan.units for placement in unit.shard_placement]  # type: ignore[union-attr]
    assert len(placed) == 1
    assert placed[0].dim in (1, -1)
    assert_shown_by_its_script(found)
