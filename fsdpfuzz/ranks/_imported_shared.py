"""Mistakes of ``shard(model, mesh)`` with a module that the model holds under several names."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp._common_utils import clean_tensor_name
from torch.distributed.tensor import DTensor

from fsdpfuzz.case import join
from fsdpfuzz.ranks._imported_watch import module_names
from fsdpfuzz.steps.fsdp1 import units as units1
from fsdpfuzz.steps.fsdp2 import units as units2


def wrapped_once(model: nn.Module) -> Iterator[str]:
    """The first in whose place FSDP1's wrapper stands under some of its names only."""
    # Not ``unit.module``, which looks into a checkpoint wrapper that a unit holds.
    units = {id(unit._fsdp_wrapped_module): path for path, unit in units1.units(model)}
    for name, parent in model.named_modules():
        for own, child in parent._modules.items():
            # Of the parents one is the wrapper itself.
            if id(child) in units and not isinstance(parent, FSDP):
                other = clean_tensor_name(join(name, own))
                yield (
                    f"{units[id(child)]!r} is wrapped by FullyShardedDataParallel, but the model "
                    f"also holds it as {other!r}, where it is not: a call there finds its "
                    "parameters flat and sharded. Make no unit of it"
                )
                return


def sharded_before(model: nn.Module) -> str:
    """What else to say where ``shard`` raises: one that a unit of FSDP2 has sharded already.

    ``fully_shard`` of another module around it takes the parameters, which are of DTensor by then,
    for those of tensor parallelism. Empty where there is none, or it is a unit alone.
    """
    units = {path for path, _ in units2.units(model)}
    for first, *others in module_names(model):
        own = model.get_submodule(first).parameters(recurse=False)
        if others and first not in units and any(isinstance(p, DTensor) for p in own):
            return (
                f". {first!r} is also held as {others[0]!r}, and lies in a unit already: only one "
                "unit can have it. Make one of it alone first, or none of the modules that hold it"
            )
    return ""
