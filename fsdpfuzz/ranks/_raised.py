"""An exception as bounded text, whatever the exception does."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import TracebackType

import torch

from fsdpfuzz.observations import MAX_MESSAGE, MAX_TRACEBACK, Raised
from fsdpfuzz.wire import bounded

_DOCUMENTED = (ValueError, NotImplementedError)
_TORCH = f"{Path(torch.__file__).parent}/"


def describe(error: BaseException, stage: str) -> Raised:
    """What is worth knowing of ``error``; never raises."""
    return Raised(
        type=type(error).__name__,
        message=_message(error),
        stage=stage,
        frame=_innermost_torch_frame(error.__traceback__),
        documented=type(error) in _DOCUMENTED,
        traceback=_traceback(error),
    )


def _message(error: BaseException) -> str:
    try:
        return bounded(str(error), MAX_MESSAGE)
    except BaseException as second:
        return f"(no message: str() of it raised {type(second).__name__})"


def _traceback(error: BaseException) -> str:
    try:
        return bounded("".join(traceback.format_exception(error, limit=200)), MAX_TRACEBACK)
    except BaseException:
        pass
    try:
        return bounded("".join(traceback.format_tb(error.__traceback__, 100)), MAX_TRACEBACK)
    except BaseException as second:
        return f"(no traceback: formatting it raised {type(second).__name__})"


def _innermost_torch_frame(trace: TracebackType | None) -> str:
    found = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename.startswith(_TORCH):
            found = f"torch/{code.co_filename.removeprefix(_TORCH)}:{code.co_name}"
        trace = trace.tb_next
    return found
