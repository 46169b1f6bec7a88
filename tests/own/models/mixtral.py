"""A mixture of experts of transformers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from transformers import MixtralConfig, MixtralForCausalLM

TOKENS = 19


def model() -> nn.Module:
    """Four experts, two for each token."""
    config = MixtralConfig(
        vocab_size=TOKENS,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        experts_implementation="eager",
        use_cache=False,
    )
    made: nn.Module = MixtralForCausalLM(config)
    return made


def batch(step: int, rank: int) -> dict[str, Tensor]:
    """Tokens."""
    ids = torch.randint(0, TOKENS, (2, 8))
    return {"input_ids": ids, "labels": ids}


def shard(model: nn.Module, mesh: DeviceMesh) -> None:
    """A unit for each layer."""
    for layer in model.get_submodule("model.layers").children():
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
