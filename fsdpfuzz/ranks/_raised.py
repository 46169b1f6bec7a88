"""An exception as bounded text, whatever the exception does."""

from __future__ import annotations

import errno
import traceback
from pathlib import Path
from types import CodeType, TracebackType

import torch

from fsdpfuzz.errors import FsdpFuzzError
from fsdpfuzz.observations import MAX_MESSAGE, MAX_TRACEBACK, Raised
from fsdpfuzz.wire import bounded

_DOCUMENTED = (ValueError, NotImplementedError)
_TORCH = f"{Path(torch.__file__).parent}/"
_OURS = Path(__file__).parents[1]
# Scripts quote the steps, and a recipe's call may be of a function in C, which has no frame:
# what is raised there is what the training raises.
_TRAINING = ("steps", ("ranks/_execute.py", "_call"))
_NO_FUNCTIONS = ("<locals>", "<listcomp>", "<dictcomp>", "<setcomp>")
_EXHAUSTED = frozenset({errno.ENOMEM, errno.ENOSPC, errno.EMFILE, errno.ENFILE})
_DEVICE = "CUDA error:"
"""How the message of an exception begins that a kernel caused. Kernels run behind the program, so
it is raised wherever the device is asked next: what that is says nothing of the cause."""
_NO_MEMORY = (
    "can't allocate memory",
    "not enough memory: you tried to allocate",
    "CUDA error: out of memory",
)


def describe(error: BaseException, stage: str) -> Raised:
    """What is worth knowing of ``error``; never raises."""
    return Raised(
        type=type(error).__name__,
        message=_message(error),
        stage=stage,
        frame="" if _of_a_kernel(error) else _innermost_torch_frame(error.__traceback__),
        # Not isinstance: UnicodeDecodeError is a ValueError, and no word of FSDP's on a misuse.
        documented=type(error) in _DOCUMENTED,
        traceback=_traceback(error),
        ours=is_ours(error),
    )


def is_ours(error: BaseException) -> bool:
    """Whether an exception is fsdpfuzz's or the machine's fault, and says nothing of FSDP.

    It is ours where its innermost frame is: the recording and comparing around a training, not
    the steps of the training nor what they call in torch. What a kernel did is the training's.
    """
    if isinstance(error, FsdpFuzzError | MemoryError | torch.OutOfMemoryError):
        return True
    # Not every one: a file that is missing may be a checkpoint that FSDP did not write.
    if isinstance(error, OSError):
        return error.errno in _EXHAUSTED
    if isinstance(error, RuntimeError) and any(words in _message(error) for words in _NO_MEMORY):
        return True
    if _of_a_kernel(error):
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    code = trace.tb_frame.f_code
    file = Path(code.co_filename)
    if not file.is_relative_to(_OURS):
        return False
    place = file.relative_to(_OURS)
    # A step raises what the training raises, although the line is one of ours.
    return place.parts[0] != _TRAINING[0] and (place.as_posix(), code.co_name) != _TRAINING[1]


def _of_a_kernel(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and _message(error).startswith(_DEVICE)


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
            found = f"torch/{code.co_filename.removeprefix(_TORCH)}:{_function(code)}"
        trace = trace.tb_next
    return found


def _function(code: CodeType) -> str:
    """The name of a function; of a comprehension, that of the function that it is in."""
    # Up to Python 3.11 a comprehension has a frame of its own (PEP 709).
    names = [name for name in code.co_qualname.split(".") if name not in _NO_FUNCTIONS]
    return names[-1] if names else "<module>"
