"""Runs scripts inside of ranks that are there already, and compares their losses with the ranks'.

Injected in place of `run_case`: first the case is run as ever, then its script, whose losses
must be the same bit for bit. Importing this module does not import torch.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING
from unittest import mock

from msgspec.structs import replace

from fsdpfuzz.case import CaseSpec
from fsdpfuzz.observations import RankReport
from fsdpfuzz.repro import Context, render

STAGE = "script"

if TYPE_CHECKING:
    from fsdpfuzz.ranks._env import RankEnv


def compare_losses(env: RankEnv) -> None:
    """The injection."""
    _after_each_case(env, _same_losses)


def compare_losses_of_another_seed(env: RankEnv) -> None:
    """The same with the script of a case that starts from other weights."""
    _after_each_case(
        env, lambda case, report, env: _same_losses(replace(case, seed=case.seed + 1), report, env)
    )


def check_parity(env: RankEnv) -> None:
    """The injection of a `run_case` that also runs the script that checks parity."""
    _after_each_case(env, _nothing_wrong)


def check_parity_with_a_wrong_reference(env: RankEnv) -> None:
    """The same with a plain model whose gradients no rank averages."""

    def check(case: CaseSpec, report: RankReport, env: RankEnv) -> None:
        import torch.distributed as dist

        with mock.patch.object(dist, "all_reduce"):
            _nothing_wrong(case, report, env)

    _after_each_case(env, check)


def _after_each_case(env: RankEnv, check: Callable[[CaseSpec, RankReport, RankEnv], None]) -> None:
    from fsdpfuzz.ranks import _worker

    train = _worker.run_case

    def run_case(case: CaseSpec, env: RankEnv) -> RankReport:
        report = train(case, env)
        env.flight.stage(f"{STAGE}:forward[0]")
        check(case, report, env)
        return report

    _worker.run_case = run_case


def _same_losses(case: CaseSpec, report: RankReport, env: RankEnv) -> None:
    if "mem_tracker" in case.probes:
        return  # the ranks train what the tracker tracks, and look at nothing else
    losses = printed_losses(render(case, None, Context(), print_losses=True), env)
    expected = [loss.hex() for loss in report.subjects[0].losses]
    assert losses == expected, f"script: {losses}, ranks: {expected}"


def _nothing_wrong(case: CaseSpec, report: RankReport, env: RankEnv) -> None:
    said = run_script(render(case, None, Context()), env)
    assert said == (f"rank {env.rank}: not reproduced\n", 0), said


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
