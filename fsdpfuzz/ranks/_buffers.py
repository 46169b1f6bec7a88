"""What a model holds beside its parameters."""

from __future__ import annotations

from torch import Tensor, nn
from torch.distributed.fsdp._common_utils import clean_tensor_name

from fsdpfuzz.steps.extra_state import held


def buffers_of(model: nn.Module) -> dict[str, Tensor]:
    """Buffers by FQN, and extra state by the keys of its entries in a state dict."""
    named = model.named_buffers()
    return {clean_tensor_name(name): buffer.detach() for name, buffer in named} | held(model)
