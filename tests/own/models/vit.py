"""A vision transformer of transformers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from transformers import ViTConfig, ViTForImageClassification

CLASSES = 3


def model() -> nn.Module:
    """Four patches, two layers."""
    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=24,
        image_size=8,
        patch_size=4,
        num_labels=CLASSES,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    made: nn.Module = ViTForImageClassification(config)
    return made


def batch(step: int, rank: int) -> dict[str, Tensor]:
    """Noise."""
    return {"pixel_values": torch.randn(2, 3, 8, 8), "labels": torch.randint(0, CLASSES, (2,))}


def shard(model: nn.Module, mesh: DeviceMesh) -> None:
    """A unit for each layer."""
    for module in list(model.modules()):
        if type(module).__name__ == "ViTLayer":
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
