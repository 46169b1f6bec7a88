"""Cases written by hand, under an injected fault and without it, and what their scripts show."""

from __future__ import annotations

from pathlib import Path

from fsdpfuzz.case import Backward, CaseSpec, Forward, Op, Step, ZeroGrad
from fsdpfuzz.invariants import judge
from fsdpfuzz.loop import injection_launcher
from fsdpfuzz.pool import Pool
from fsdpfuzz.repro import Context, render
from fsdpfuzz.verdict import Finding, Verdict
from tests.injected.forked import verify_forked

ONCE: tuple[Op, ...] = (Forward(), Backward(), Step(), ZeroGrad())


def judged(case: CaseSpec, injection: str | None = None) -> Verdict:
    """What ranks of its own show of a case, with torch as it is or with a fault in it."""
    with Pool(case.world_size, "gloo", injection=injection) as pool:
        return judge(case, pool.run(case))


def assert_scripted(
    case: CaseSpec, finding: Finding, injection: str, folder: Path, usual: str = "not reproduced"
) -> None:
    """The script shows the finding under the fault, and only there: without it comes ``usual``."""
    script = folder / "script.py"
    script.write_text(render(case, finding, Context(torch="", backend="gloo", environment=())))
    ranks, launcher = case.world_size, injection_launcher(injection)
    shown = verify_forked(script, ranks, "gloo", finding, launcher=launcher)
    assert shown.reproduced, shown.output
    sound = verify_forked(script, ranks, "gloo", finding)
    assert sound.outcome == usual, sound
