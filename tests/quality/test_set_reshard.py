"""A unit that does not do what the program sets its option to is found by its collectives."""

from __future__ import annotations

from pathlib import Path

from fsdpfuzz.case import CaseSpec, Dense, Fsdp2Plan, Fsdp2Unit, Linear, Sequential
from fsdpfuzz.case.operations import SetReshard
from tests.injected.by_hand import ONCE, assert_scripted, judged


def test_units_below_are_not_told(tmp_path: Path) -> None:
    case = CaseSpec(
        world_size=2,
        model=Sequential(children=(Linear(out=4), Linear(out=3))),
        inputs=Dense(width=3),
        plan=Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="0"))),
        program=(*ONCE, SetReshard(unit="", reshard=False), *ONCE),
    )
    assert judged(case).status == "passed"
    injection = "benchmarks.faults.injections:fsdp2_reshard_set_for_one_alone"
    found = judged(case, injection).findings[0]
    assert (found.invariant, found.unit, found.op) == ("collectives", "0", 6)
    assert_scripted(case, found, injection, tmp_path)
