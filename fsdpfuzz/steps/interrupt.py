"""A forward that an exception ends, which the program catches."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


class Unfit(Exception):  # noqa: N818 (no error of the program's)
    """A batch that the model does not take."""


@contextmanager
def interrupted(module: nn.Module, done: bool) -> Iterator[None]:
    """``module`` raises at the end of its forward if ``done``, else as that begins; caught here."""
    # What FSDP1 or a checkpoint puts around a module does its own first, as for a user's own code.
    while inner := [m for name, m in module.named_children() if name.endswith("_wrapped_module")]:
        module = inner[0]

    def refuse(*_: Any) -> None:
        raise Unfit

    register = module.register_forward_hook if done else module.register_forward_pre_hook
    handle = register(refuse)
    try:
        yield
    except Unfit as unfit:
        # Up to torch 2.12 a checkpoint's hooks stay on until its generator is collected, which the
        # frames of the traceback hold (``checkpoint`` in torch/utils/checkpoint.py).
        traceback.clear_frames(unfit.__traceback__)
        return
    finally:
        handle.remove()
    raise RuntimeError("no module raised")
