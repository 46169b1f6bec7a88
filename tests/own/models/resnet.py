"""A convolutional net of transformers, with batch norm."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from transformers import ResNetConfig, ResNetForImageClassification

CLASSES = 3


def model() -> nn.Module:
    """Two stages; running means are kept on each rank."""
    config = ResNetConfig(
        embedding_size=4,
        hidden_sizes=[4, 8],
        depths=[1, 2],
        layer_type="basic",
        num_labels=CLASSES,
    )
    made: nn.Module = ResNetForImageClassification(config)
    return made


def batch(step: int, rank: int) -> dict[str, Tensor]:
    """Noise."""
    return {"pixel_values": torch.randn(4, 3, 16, 16), "labels": torch.randint(0, CLASSES, (4,))}


def shard(model: nn.Module, mesh: DeviceMesh) -> None:
    """A unit for each stage."""
    for module in list(model.modules()):
        if type(module).__name__ == "ResNetStage":
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
