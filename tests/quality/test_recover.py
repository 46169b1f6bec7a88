"""What goes wrong only after a program has started over is found and reduced; what is right passes.

Every exception comes on all ranks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from fsdpfuzz.case import Backward, Forward, Step, ZeroGrad, chain, check, features
from fsdpfuzz.case.operations.recover import Recover
from tests.fitting import skip_unless_it_fits
from tests.injected.by_hand import judged
from tests.injected.hunting import (
    LONGER,
    assert_shown_by_its_script,
    case_of,
    found_by,
    hunt,
    linears,
)

WITHOUT_CALLBACK = "fsdp2_reset_without_callback"
LEFT_WHOLE = "fsdp2_reset_leaves_units_whole"
FAULTS = "benchmarks.faults.injections:"
ITERATION = (Forward(), Backward(), Step(), ZeroGrad())


def test_a_backward_that_is_not_finished_after_a_reset(tmp_path: Path) -> None:
    skip_unless_it_fits(WITHOUT_CALLBACK)
    summary = hunt(FAULTS + WITHOUT_CALLBACK, tmp_path, number=400, until=("grad_parity",), seed=1)
    found = found_by(summary, "grad_parity")
    case = case_of(found)
    assert linears(case) <= 2
    assert features(case)["recovered"] != "no"
    # It has to say how a backward raises, and where that is caught.
    assert_shown_by_its_script(found, lines=LONGER + 25)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("when", ["begin", "end", "gradient"])
@pytest.mark.parametrize("module", ["", "1"])
def test_units_are_trained_on_after_a_reset(
    module: str, when: Literal["begin", "end", "gradient"], ranks: int
) -> None:
    skip_unless_it_fits(LEFT_WHOLE)
    op = Recover(module=module, when=when)
    program = (op, *ITERATION, op, *ITERATION)
    case = chain("fsdp2", (3, 5, 4, 2), (0, 1, 2), ranks, program)
    check(case)
    assert judged(case).status == "passed"


def test_units_that_a_reset_leaves_whole() -> None:
    skip_unless_it_fits(LEFT_WHOLE)
    op = Recover(module="1", when="begin")
    case = chain("fsdp2", (3, 5, 4, 2), (0, 1, 2), 2, (*ITERATION, op, *ITERATION, *ITERATION))
    assert judged(case).status == "passed"
    verdict = judged(case, FAULTS + LEFT_WHOLE)
    assert {found.invariant for found in verdict.findings} == {"collectives"}
