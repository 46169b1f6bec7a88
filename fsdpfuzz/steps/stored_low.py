"""Frozen layers that are stored in bfloat16 beside others in float32."""

from __future__ import annotations

from types import MethodType

import torch
from torch import Tensor, nn


# As a base model in bfloat16 does under adapters in float32, it casts for itself: FSDP casts the
# inputs of a whole unit, or none.
def store(module: nn.Linear, dtype: torch.dtype) -> None:
    """Stores a layer of a model in float32 in bfloat16; it computes in its weight's dtype.

    In a model in another dtype it has the same values.
    """
    for p in module.parameters():
        p.data = p.data.to(torch.bfloat16).to(torch.bfloat16 if dtype == torch.float32 else dtype)

    def cast(self: nn.Linear, input: Tensor) -> Tensor:
        return nn.Linear.forward(self, input.to(self.weight.dtype)).to(input.dtype)

    # A method: a deep copy of the model has to compute with its own weight.
    module.forward = MethodType(cast, module)  # type: ignore[method-assign]
