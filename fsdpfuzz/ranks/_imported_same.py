"""Whether the parameters are those of the model after ``shard(model, mesh)``, but for their cut."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from fsdpfuzz.case import Anatomy
from fsdpfuzz.ranks._imported_checks import Trouble
from fsdpfuzz.ranks._sharded import Shard

_COMPILED = "_orig_mod."


def check_same(a: Anatomy, shards: Iterable[Shard]) -> None:
    """:class:`Trouble` where one has another name, or another dtype: neither can be compared."""
    for shard in shards:
        if shard.name not in a.by_fqn:
            hint = (
                "compile it in place, by model.compile(), which keeps them"
                if _COMPILED in shard.name
                else "return the model itself, with nothing but FSDP around it"
            )
            raise Trouble(
                f"shard(model, mesh) returns a model whose parameters have other names, as "
                f"{shard.name!r}: {hint}"
            )
        if shard.held.dtype != torch.float32:
            raise Trouble(
                f"shard(model, mesh) makes {shard.name!r} one of {shard.held.dtype}, which cannot "
                "be compared with float32: leave that out, and have units compute in it by "
                "MixedPrecisionPolicy(param_dtype=...), or MixedPrecision for "
                "FullyShardedDataParallel"
            )
