"""What a script's run amounts to, told by its exit code and what it printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpfuzz.repro import verify
from fsdpfuzz.repro.verify import judged
from fsdpfuzz.verdict import Finding
from tests.unit.repro.examples import counted, finding

GRAD = finding("grad_parity")
HANG = counted("no_hang", "backward", "hang")
DEATH = counted("no_rank_death", ":7", "rank_death")
ORDER = counted("order_error", "hang", api="fsdp1")
DUMP = "Timeout (0:00:20)!\nThread 0x7f (most recent call first):"
TORCHRUN = "ChildFailedError: \n  exitcode  : {} (pid: 12)"


@pytest.mark.parametrize(
    ("code", "text", "found", "outcome"),
    [
        (1, "rank 0: reproduced: weight is off by 1", GRAD, "reproduced"),
        (1, "rank 0: not reproduced\nrank 1: reproduced: b is off", GRAD, "reproduced"),
        (1, "rank 0: reproduced: arank 1: not reproduced", GRAD, "reproduced"),
        (0, "rank 0: not reproduced", GRAD, "not reproduced"),
        (0, "rank 1:rank 0:  not reproducednot reproduced", GRAD, "not reproduced"),
        (1, "rank 1:rank 0: reproduced: areproduced: b", GRAD, "reproduced"),
        (0, "", GRAD, "failed otherwise"),
        (1, "KeyError: 'x'\n" + TORCHRUN.format(1), GRAD, "failed otherwise"),
        (1, "ModuleNotFoundError: No module named 'torch'", GRAD, "could not run"),
        (None, "rank 0: not reproduced", GRAD, "failed otherwise"),
        (1, DUMP, HANG, "reproduced"),
        (1, DUMP, GRAD, "failed otherwise"),
        (1, DUMP, ORDER, "reproduced"),
        (1, TORCHRUN.format(7), DEATH, "reproduced"),
        (1, TORCHRUN.format(-9), DEATH, "reproduced"),
        (1, TORCHRUN.format(1), DEATH, "failed otherwise"),
        (1, TORCHRUN.format(-9), GRAD, "failed otherwise"),
        (1, TORCHRUN.format(7), None, "failed otherwise"),
    ],
)
def test_outcomes(code: int | None, text: str, found: Finding | None, outcome: str) -> None:
    assert judged(code, text, found, 20.0)[0] == outcome


def test_the_reason_is_the_line_that_shows_it_or_the_last_error() -> None:
    shown = "warning: x\nrank 1: reproduced: weight is off by 1\nmore"
    assert judged(1, shown, GRAD, 20.0)[1] == "rank 1: reproduced: weight is off by 1"
    failed = "[rank0]: ValueError: first\n[rank0]: KeyError: 'x'\n" + TORCHRUN.format(1)
    assert judged(1, failed, GRAD, 20.0)[1] == "KeyError: 'x'"


def test_a_script_that_does_not_end_is_ended(tmp_path: Path) -> None:
    script = tmp_path / "endless.py"
    script.write_text("import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    seen = verify(script, 2, "gloo", HANG, timeout=6.0)
    assert (seen.outcome, seen.exit_code) == ("failed otherwise", None)
    assert seen.reason == "no end within 6 s"
    assert seen.seconds < 60


def test_a_script_is_tried_until_it_reproduces(tmp_path: Path) -> None:
    script = tmp_path / "third.py"
    script.write_text(
        "import pathlib\n"
        "count = pathlib.Path(__file__).with_suffix('.count')\n"
        "times = len(count.read_text()) if count.exists() else 0\n"
        "count.write_text('x' * (times + 1))\n"
        "print('rank 0: reproduced: third time' if times == 2 else 'rank 0: not reproduced')\n"
        "raise SystemExit(times == 2)\n"
    )
    assert verify(script, 1, "gloo", GRAD, attempts=2).outcome == "not reproduced"
    assert verify(script, 1, "gloo", GRAD, attempts=2).reproduced
