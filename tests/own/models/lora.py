"""A decoder of transformers that peft adapts: all but the adapters is frozen."""

from __future__ import annotations

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from transformers import Qwen2Config, Qwen2ForCausalLM

TOKENS = 19


def model() -> nn.Module:
    """Adapters at queries and values; none is zero, as they are at first."""
    config = Qwen2Config(
        vocab_size=TOKENS,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
    )
    adapters = LoraConfig(
        r=3,
        lora_alpha=6,
        target_modules=["q_proj", "v_proj"],
        init_lora_weights=False,
        task_type="CAUSAL_LM",
    )
    made: nn.Module = get_peft_model(Qwen2ForCausalLM(config), adapters)
    return made


def batch(step: int, rank: int) -> dict[str, Tensor]:
    """Tokens."""
    ids = torch.randint(0, TOKENS, (2, 6))
    return {"input_ids": ids, "labels": ids}


def shard(model: nn.Module, mesh: DeviceMesh) -> None:
    """A unit for each layer."""
    for layer in model.get_submodule("base_model.model.model.layers").children():
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
