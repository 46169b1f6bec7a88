"""A speech model of transformers: convolutions over a wave, weight norm, and the CTC loss."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

LETTERS = 7


def model() -> nn.Module:
    """Two convolutions, two layers; nothing is dropped or masked at random."""
    config = Wav2Vec2Config(
        vocab_size=LETTERS,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=24,
        conv_dim=[8, 8],
        conv_kernel=[4, 3],
        conv_stride=[4, 2],
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        feat_proj_dropout=0.0,
        final_dropout=0.0,
        layerdrop=0.0,
        apply_spec_augment=False,
        ctc_loss_reduction="mean",
        pad_token_id=0,
    )
    made: nn.Module = Wav2Vec2ForCTC(config)
    return made


def batch(step: int, rank: int) -> dict[str, Tensor]:
    """Noise, and letters."""
    return {"input_values": torch.randn(2, 160), "labels": torch.randint(1, LETTERS, (2, 3))}


def shard(model: nn.Module, mesh: DeviceMesh) -> None:
    """A unit for each layer."""
    for layer in model.get_submodule("wav2vec2.encoder.layers").children():
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
