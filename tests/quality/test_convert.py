"""Faults that show only where a model goes elsewhere and comes back are found and reduced."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from fsdpfuzz.case import (
    CaseSpec,
    Dense,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Op,
    Sequential,
    features,
)
from fsdpfuzz.case.operations import Convert
from tests.injected.by_hand import ONCE, assert_scripted, judged
from tests.injected.hunting import (
    LONGER,
    assert_shown_by_its_script,
    case_of,
    found_by,
    hunt,
    linears,
)

FAULTS = "benchmarks.faults.injections:"
STALE = FAULTS + "fsdp2_converted_shards_not_taken_over"
WHOLE = FAULTS + "fsdp2_converts_whole_parameters"
EVALUATION = Forward(grad=False)


def case(*program: Op) -> CaseSpec:
    """Of uneven rows, and of a root that stays whole after a forward."""
    return CaseSpec(
        world_size=2,
        model=Sequential(children=(Linear(out=3), Linear(out=3))),
        inputs=Dense(width=3),
        plan=Fsdp2Plan(units=(Fsdp2Unit(path="0"), Fsdp2Unit(path=""))),
        program=program,
    )


@pytest.mark.parametrize("what", ["dtype", "device"])
@pytest.mark.parametrize("place", ["first", "with gradients", "behind an evaluation", "in the end"])
def test_training_goes_on(what: Literal["dtype", "device"], place: str) -> None:
    asked = Convert(what=what)
    programs: dict[str, tuple[Op, ...]] = {
        "first": (asked, *ONCE, *ONCE),
        "with gradients": (*ONCE[:2], asked, *ONCE[2:], *ONCE),
        "behind an evaluation": (*ONCE, EVALUATION, asked, *ONCE),
        "in the end": (*ONCE, asked),
    }
    assert judged(case(*programs[place])).status == "passed"


def test_what_is_not_taken_over_is_found(tmp_path: Path) -> None:
    summary = hunt(STALE, tmp_path, apis=("fsdp2",), number=400, until=(KEY,), seed=1)
    found = found_by(summary, KEY)
    assert linears(case_of(found)) <= 2
    assert features(case_of(found))["converted"] == "dtype"
    assert_shown_by_its_script(found, lines=LONGER)


KEY = "output_parity/mismatch/fsdp2"


def test_what_is_whole_is_not_converted(tmp_path: Path) -> None:
    given = case(*ONCE, EVALUATION, Convert(), *ONCE)
    assert judged(case(*ONCE, Convert(), *ONCE), WHOLE).status == "passed"
    found = judged(given, WHOLE).findings[0]
    assert_scripted(given, found, WHOLE, tmp_path)
