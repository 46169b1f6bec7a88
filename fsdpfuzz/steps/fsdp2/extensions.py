"""Parameters that fsdp2 gathers in another form than they have: all-gather extensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._pytree import tree_map_only


class Extended(Tensor):
    """A tensor that says itself what is gathered of it; what is computed with it is a plain one."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Extended:
        """Of the same shape and place as what it holds, and with as many bytes behind it."""
        size, strides, offset = held.shape, held.stride(), held.storage_offset()
        behind = held.untyped_storage().nbytes()
        return Tensor._make_wrapper_subclass(
            cls, size, strides, offset, dtype=held.dtype, device=held.device, storage_size=behind
        )

    def __init__(self, held: Tensor) -> None:
        """``held`` has the values."""
        self.held = held

    # FSDP and ``nn.Module.to_empty`` make parameters of views and copies.
    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Does it with what is held."""
        args, kwargs = tree_map_only(Extended, lambda t: t.held, (args, kwargs or {}))
        made = func(*args, **kwargs)
        copies = func.overloadpacket.__name__ in ("new_zeros", "empty_like", "clone", "_to_copy")
        return tree_map_only(Tensor, cls, made) if copies or func.is_view else made

    def sent(self, shard: Tensor) -> Sequence[Tensor]:
        """What is gathered in place of a shard."""
        raise NotImplementedError

    def joined(self, outputs: Sequence[Tensor]) -> Tensor:
        """The whole parameter, of what was sent."""
        raise NotImplementedError

    def fsdp_pre_all_gather(
        self,
        mesh: DeviceMesh,
        outer_size: torch.Size,
        outer_stride: Sequence[int],
        module: nn.Module,
        mp_policy: Any,
    ) -> tuple[Sequence[Tensor], Any]:
        """What is gathered, padded to the size of the first rank's, and the whole one's size."""
        lacking = max(0, -(-outer_size[0] // mesh.size()) - len(self.held))
        rows = self.held.new_zeros(lacking, *outer_size[1:])
        return self.sent(torch.cat([self.held, rows]) if lacking else self.held), outer_size

    def fsdp_post_all_gather(
        self,
        outputs: Sequence[Tensor],
        metadata: torch.Size,
        param_dtype: torch.dtype,
        *,
        out: Tensor | None = None,
    ) -> tuple[Tensor, Sequence[Tensor]] | None:
        """The whole parameter, and the memory that is freed with it; ``out`` has it already."""
        whole = self.joined(outputs).to(param_dtype)
        if out is None:
            return whole, (*outputs, whole)
        # Padding comes last. Autograd may hold it, for which it is unchanged.
        with torch.no_grad(), _unsafe_preserve_version_counter(out):
            out.copy_(whole.flatten()[: metadata.numel()].view(metadata))
        return None


class Split(Extended):
    """Gathered in two parts, of two dtypes: what bfloat16 holds of it, and the rest."""

    def sent(self, shard: Tensor) -> Sequence[Tensor]:
        """Neither rounds: of a float32 number the rest has few enough bits."""
        coarse = shard.bfloat16()
        return coarse, shard - coarse

    def joined(self, outputs: Sequence[Tensor]) -> Tensor:
        """Their sum, which is exact."""
        coarse, rest = outputs
        return coarse + rest


class Wider(Extended):
    """Gathered in float64."""

    def sent(self, shard: Tensor) -> Sequence[Tensor]:
        """Nothing is lost, neither there nor back."""
        return (shard.double(),)

    def joined(self, outputs: Sequence[Tensor]) -> Tensor:
        """As it was sent."""
        return outputs[0]


def split(p: nn.Parameter) -> nn.Parameter:
    """A parameter that is gathered in two parts."""
    return nn.Parameter(Split(p.detach()), p.requires_grad)


def wider(p: nn.Parameter) -> nn.Parameter:
    """A parameter that is gathered in float64."""
    return nn.Parameter(Wider(p.detach()), p.requires_grad)
