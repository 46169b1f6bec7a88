"""Injected in the ranks of a benchmark: how long each part of a case takes there."""

from __future__ import annotations

import gc
import importlib
import time
from collections.abc import Callable
from typing import Any

import msgspec
from torch.distributed import checkpoint, distributed_c10d

from fsdpfuzz.observations import RankReport
from fsdpfuzz.ranks import _train, _worker
from fsdpfuzz.ranks._env import RankEnv
from fsdpfuzz.ranks._groups import MAKERS as GROUP_MAKERS

INNER = ("reference", "groups", "saved", "dropped", "collected")
"""Parts that lie in others: the replicas without FSDP, process groups that are made or asked for,
``torch.distributed.checkpoint``, all in ``work``; groups that are destroyed and Python's collector,
between cases."""


def install(env: RankEnv) -> None:
    """Has each report say what the parts of its case took, in `RankReport.timings`."""
    spent: dict[str, float] = {}
    for name in ("_receive", "run_case"):
        setattr(_worker, name, _timed(getattr(_worker, name), name, spent))
    _install_inner(env, spent)
    finish = _worker._with_usage

    def with_usage(report: RankReport) -> RankReport:
        started = time.perf_counter()
        report = finish(report)
        timings = {
            "agree": spent.get("_receive", 0.0),
            "compare": spent.get("run_case", 0.0) - report.work_seconds,
            "report": time.perf_counter() - started,
            **{name: spent.get(name, 0.0) for name in INNER},
        }
        spent.clear()
        return msgspec.structs.replace(report, timings=timings)

    _worker._with_usage = with_usage


def _install_inner(env: RankEnv, spent: dict[str, float]) -> None:
    for name, modules in GROUP_MAKERS.items():
        original = getattr(distributed_c10d, name, None)
        timed = None if original is None else _timed(original, "groups", spent)
        for module in map(importlib.import_module, modules):
            if original is not None and getattr(module, name, None) is original:
                setattr(module, name, timed)
    env.groups.next_case = _timed(env.groups.next_case, "dropped", spent)  # type: ignore[method-assign]
    gc.collect = _timed(gc.collect, "collected", spent)
    for module, name, part in (
        (_train, "references", "reference"),
        (checkpoint, "save", "saved"),
        (checkpoint, "load", "saved"),
    ):
        setattr(module, name, _timed(getattr(module, name), part, spent))


def _timed(function: Callable[..., Any], name: str, spent: dict[str, float]) -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            spent[name] = spent.get(name, 0.0) + time.perf_counter() - started

    return timed
