"""An encoder and a decoder of transformers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from transformers import T5Config, T5ForConditionalGeneration
from transformers.models.t5.modeling_t5 import T5Block

TOKENS = 19


def model() -> nn.Module:
    """Two layers each; embeddings are shared by both."""
    config = T5Config(
        vocab_size=TOKENS,
        d_model=16,
        d_kv=4,
        d_ff=24,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        decoder_start_token_id=0,
        use_cache=False,
    )
    made: nn.Module = T5ForConditionalGeneration(config)
    return made


def batch(step: int, rank: int) -> dict[str, Tensor]:
    """Tokens in, others out."""
    given, wanted = torch.randint(2, TOKENS, (2, 6)), torch.randint(2, TOKENS, (2, 4))
    return {"input_ids": given, "labels": wanted}


def shard(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """A unit for each block, in bfloat16."""
    return FullyShardedDataParallel(
        model,
        process_group=mesh.get_group(),
        auto_wrap_policy=ModuleWrapPolicy({T5Block}),
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        use_orig_params=True,
        device_id=torch.device(mesh.device_type),
    )
