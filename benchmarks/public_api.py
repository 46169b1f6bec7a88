"""What a torch offers to whoever uses FSDP: the parameters of its public functions and classes.

    python benchmarks/public_api.py

prints them as JSON, ``["FSDPModule.reshard()", "fully_shard(mesh)", ...]``. It imports torch alone,
so that the Python of any environment can run it.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any

REPLICATE = "torch.distributed._composable.replicate_with_fsdp"
"""Not public, but the one way in which FSDP's own code replicates."""


def offered() -> list[str]:
    """Every parameter as ``function(parameter)``, and every function as ``function()``."""
    from torch.distributed import fsdp
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    found: set[str] = set()
    for name in ("fully_shard", "register_fsdp_forward_method", "share_comm_ctx"):
        with suppress(AttributeError):
            found.update((f"{name}()", *_parameters(name, getattr(fsdp, name))))
    for kind in (
        fsdp.FSDPModule,
        fsdp.FullyShardedDataParallel,
        fsdp.MixedPrecision,
        fsdp.MixedPrecisionPolicy,
        fsdp.CPUOffload,
        fsdp.CPUOffloadPolicy,
        fsdp.OffloadPolicy,
        StateDictOptions,
    ):
        found.update(_members(kind))
    with suppress(ImportError):
        module = import_module(REPLICATE)
        found.update(_parameters(f"{REPLICATE}.replicate", module.replicate))
    return sorted(found)


def _members(kind: type[Any]) -> Iterator[str]:
    yield f"{kind.__name__}()"
    for name, value in vars(kind).items():
        function = getattr(value, "__func__", value)
        if name == "__init__":
            yield from _parameters(kind.__name__, function)
        elif not name.startswith("_") and inspect.isfunction(function):
            yield f"{kind.__name__}.{name}()"
            yield from _parameters(f"{kind.__name__}.{name}", function)


def _parameters(name: str, function: Callable[..., Any]) -> Iterator[str]:
    for parameter in inspect.signature(function).parameters.values():
        named = parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if named and parameter.name not in ("self", "cls"):
            yield f"{name}({parameter.name})"


if __name__ == "__main__":
    print(json.dumps(offered(), indent=1))
