"""The sooner way to run a script says what torchrun says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpfuzz.loop import injection_launcher
from fsdpfuzz.verdict import Finding
from tests.injected.forked import verify_forked
from tests.unit.repro.test_verify import GRAD, HANG

# Rank 0 keeps the store: it may not end before the others have joined.
HEAD = "import os, torch.distributed as dist\ndist.init_process_group('gloo')\ndist.barrier()\n"
RANK = "rank = dist.get_rank()\n"


@pytest.mark.parametrize(
    ("body", "finding", "outcome"),
    [
        ("print('not reproduced')", GRAD, "not reproduced"),
        ("raise SystemExit('reproduced: as it should')", GRAD, "reproduced"),
        ("raise SystemExit(f'reproduced: on {rank}' if rank else 0)", GRAD, "reproduced"),
        ("print('nothing is said')", GRAD, "failed otherwise"),
        ("raise ValueError('another')", GRAD, "failed otherwise"),
        ("os._exit(3 * rank); print('not reproduced')", GRAD, "failed otherwise"),
        ("import no_such_module", GRAD, "could not run"),
        ("import time; time.sleep(60)", GRAD, "failed otherwise"),
        (
            "import faulthandler, time\nfaulthandler.dump_traceback_later(1, exit=True)\n"
            "time.sleep(60)",
            HANG,
            "reproduced",
        ),
    ],
)
def test_what_came_of_a_script(body: str, finding: Finding, outcome: str, tmp_path: Path) -> None:
    script = tmp_path / "repro.py"
    script.write_text(f"{HEAD}{RANK}{body}\n")
    seen = verify_forked(script, 2, "gloo", finding, timeout=8.0)
    assert seen.outcome == outcome, seen


def nothing_is_reduced(_: object) -> None:
    """A fault to inject."""
    import torch.distributed as dist

    vars(dist)["all_reduce"] = id


def test_an_injected_fault_is_under_it(tmp_path: Path) -> None:
    script = tmp_path / "repro.py"
    script.write_text(
        f"{HEAD}import torch\nt = torch.ones(1)\ndist.all_reduce(t)\n"
        "if t != 2:\n    raise SystemExit('reproduced: not reduced')\nprint('not reproduced')\n"
    )
    injected = injection_launcher(f"{__name__}:{nothing_is_reduced.__name__}")
    assert verify_forked(script, 2, "gloo", GRAD, launcher=injected).outcome == "reproduced"
    assert verify_forked(script, 2, "gloo", GRAD).outcome == "not reproduced"
