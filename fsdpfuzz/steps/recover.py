"""An exception in backward, which the program catches."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from fsdpfuzz.steps.interrupt import Unfit


@contextmanager
def failing(module: nn.Module) -> Iterator[None]:
    """A gradient that comes to what ``module`` returns raises, or else the end; caught here."""

    def refuse(_: Tensor) -> None:
        raise Unfit

    def watch(_module: nn.Module, _inputs: Any, output: Any) -> None:
        for tensor in tree_leaves(output):
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                tensor.register_hook(refuse)

    handle = module.register_forward_hook(watch)
    try:
        yield
        raise Unfit  # no gradient came by, as where all before it is frozen
    except Unfit as unfit:
        traceback.clear_frames(unfit.__traceback__)
    finally:
        handle.remove()
