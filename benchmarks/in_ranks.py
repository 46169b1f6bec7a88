"""Planted in the ranks of a benchmark: how long each part of a case takes there."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from fsdpfuzz.observations import RankReport
from fsdpfuzz.ranks import _worker
from fsdpfuzz.ranks._env import RankEnv


def install(_: RankEnv) -> None:
    """Has each report say what the parts of its case took, in `RankReport.timings`."""
    spent: dict[str, float] = {}
    for name in ("_receive", "run_case"):
        setattr(_worker, name, _timed(getattr(_worker, name), name, spent))
    finish = _worker._with_usage

    def with_usage(report: RankReport) -> RankReport:
        started = time.perf_counter()
        report = finish(report)
        timings = {
            "agree": spent.get("_receive", 0.0),
            "compare": spent.get("run_case", 0.0) - report.work_seconds,
            "report": time.perf_counter() - started,
        }
        spent.clear()
        return msgspec.structs.replace(report, timings=timings)

    _worker._with_usage = with_usage


def _timed(function: Callable[..., Any], name: str, spent: dict[str, float]) -> Callable[..., Any]:
    def timed(*args: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*args)
        finally:
            spent[name] = time.perf_counter() - started

    return timed
