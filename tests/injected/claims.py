"""Faults under which ranks run the script of a case in place of the case.

A rank reports the script's exit code where it says which dtype's range a reference left.
"""

from __future__ import annotations

from collections.abc import Callable

from fsdpfuzz.case import CaseSpec, digest
from fsdpfuzz.observations import RankReport
from fsdpfuzz.ranks import _worker
from fsdpfuzz.ranks._env import RankEnv
from fsdpfuzz.repro import Context, render
from tests.scripts_in_ranks import run_script


def __getattr__(name: str) -> Callable[[RankEnv], None]:
    from benchmarks.faults import FAULTS, inject

    if name not in FAULTS:
        raise AttributeError(name)

    def install(_: RankEnv) -> None:
        inject(FAULTS[name])
        _worker.run_case = scripted

    return install


def scripted(case: CaseSpec, env: RankEnv) -> RankReport:
    """Runs the script that checks parity."""
    _, code = run_script(render(case, None, Context()), env)
    return RankReport(rank=env.rank, digest=digest(case), subjects=(), beyond=f"exit {code}")
