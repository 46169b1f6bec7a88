"""Runs scripts inside of ranks that are there already, and compares their losses with the ranks'.

Planted in place of `run_case`: first the case is run as ever, then its script, whose losses
must be the same bit for bit. Importing this module does not import torch.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings
from typing import TYPE_CHECKING
from unittest import mock

from fsdpfuzz.observations import RankReport
from fsdpfuzz.repro import Context, render
from fsdpfuzz.spec import CaseSpec

STAGE = "script"

if TYPE_CHECKING:
    from fsdpfuzz.ranks._env import RankEnv


def compare_losses(env: RankEnv) -> None:
    """The plant."""
    from fsdpfuzz.ranks import _worker

    train = _worker.run_case

    def run_case(case: CaseSpec, env: RankEnv) -> RankReport:
        report = train(case, env)
        env.flight.stage(f"{STAGE}:forward[0]")
        if "mem_tracker" in case.probes:
            return report  # the ranks train what the tracker tracks, and look at nothing else
        losses = printed_losses(render(case, None, Context(), print_losses=True), env)
        expected = [loss.hex() for loss in report.subjects[0].losses]
        assert losses == expected, f"script: {losses}, ranks: {expected}"
        return report

    _worker.run_case = run_case


def check_parity(env: RankEnv) -> None:
    """The plant of a `run_case` that also runs the script that checks parity."""
    from fsdpfuzz.ranks import _worker

    train = _worker.run_case

    def run_case(case: CaseSpec, env: RankEnv) -> RankReport:
        report = train(case, env)
        env.flight.stage(f"{STAGE}:forward[0]")
        said = run_script(render(case, None, Context()), env)
        assert said == (f"rank {env.rank}: not reproduced\n", 0), said
        return report

    _worker.run_case = run_case


def printed_losses(script: str, env: RankEnv) -> list[str]:
    """What a script with ``print_losses`` prints on this rank."""
    name, rank, *losses = run_script(script, env)[0].split()
    assert (name, rank) == ("loss", str(env.rank))
    return losses


def run_script(script: str, env: RankEnv) -> tuple[str, int]:
    """What a script prints on this rank, and its exit code; its process group is the rank's own."""
    import torch.distributed as dist

    out, code = io.StringIO(), 0
    place = {"RANK": str(env.rank), "WORLD_SIZE": str(env.world_size)}
    with (
        mock.patch.dict(os.environ, place),
        mock.patch.object(dist, "init_process_group"),
        mock.patch.object(dist, "destroy_process_group"),
        mock.patch.object(os, "_exit", sys.exit),
        contextlib.redirect_stdout(out),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        try:
            exec(compile(script, "repro.py", "exec"), {"__name__": "__main__"})
        except SystemExit as end:
            code = int(end.code or 0)
    return out.getvalue(), code
