"""A decoder of transformers: queries share keys and values, embeddings are tied."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

TOKENS = 19


def model() -> nn.Module:
    """Two layers, two heads of queries for each of keys and values."""
    config = LlamaConfig(
        vocab_size=TOKENS,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        use_cache=False,
    )
    made: nn.Module = LlamaForCausalLM(config)
    return made


def batch(step: int, rank: int) -> dict[str, Tensor]:
    """Tokens, of which the last is padding."""
    ids = torch.randint(0, TOKENS, (2, 6))
    mask = torch.ones_like(ids)
    mask[:, -1] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids}


def shard(model: nn.Module, mesh: DeviceMesh) -> None:
    """A unit for each layer, as everybody has it."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.get_submodule("model.layers").children():
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
