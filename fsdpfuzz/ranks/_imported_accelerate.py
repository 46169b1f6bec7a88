"""Which modules of somebody's model accelerate makes units of, by its own code."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from typing import Any

from torch import nn
from torch.distributed.fsdp.wrap import _recursive_wrap

from fsdpfuzz.wire import Accelerated

_PREFIX = "FSDP_"
_RENAMED = {"FSDP_TRANSFORMER_LAYER_CLS_TO_WRAP": "FSDP_TRANSFORMER_CLS_TO_WRAP"}
"""Of the environment, where that has another name than the configuration: ``prepare_multi_gpu_env``
in accelerate/utils/launch.py."""
OF_UNITS = (
    "fsdp_version",
    "fsdp_auto_wrap_policy",
    "fsdp_transformer_layer_cls_to_wrap",
    "fsdp_min_num_params",
)
"""What decides on units: of the rest some is refused where there is no GPU."""


class _Unit(nn.Module):
    """Stands where FSDP would wrap."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def accelerated(model: nn.Module, configuration: Mapping[str, str]) -> Accelerated | None:
    """What accelerate makes of a configuration; None without one, or where it is not installed.

    The model is of no use afterwards.
    """
    try:
        package = import_module("accelerate") if configuration else None
    except ImportError:
        package = None
    if package is None:
        return None
    found = version("accelerate")
    try:
        return Accelerated(version=found, units=units_of(model, configuration))
    # Of what it refuses accelerate raises all kinds.
    except Exception as error:
        return Accelerated(version=found, refused=f"{type(error).__name__}: {error}")


def units_of(model: nn.Module, configuration: Mapping[str, str]) -> tuple[str, ...]:
    """FQNs of the units but the root, in the model's order."""
    with _environment(configuration):
        plugin = import_module("accelerate").FullyShardedDataParallelPlugin()
    plugin.set_auto_wrap_policy(model)
    names = {id(module): name for name, module in model.named_modules()}
    found = _of_fsdp2(model, plugin) if plugin.fsdp_version == 2 else _of_fsdp1(model, plugin)
    chosen = {names[id(module)] for module in found} - {""}
    return tuple(name for name in names.values() if name in chosen)


def _of_fsdp1(model: nn.Module, plugin: Any) -> list[nn.Module]:
    """As ``FullyShardedDataParallel`` applies a policy that is a function (``_auto_wrap``)."""
    found: list[nn.Module] = []

    def unit(module: nn.Module) -> nn.Module:
        found.append(module)
        return _Unit(module)

    if plugin.auto_wrap_policy is not None:
        _recursive_wrap(model, plugin.auto_wrap_policy, unit, set(), set(), only_wrap_children=True)
    return found


def _of_fsdp2(model: nn.Module, plugin: Any) -> list[nn.Module]:
    """As ``fsdp2_prepare_model`` in accelerate/utils/fsdp_utils.py goes through a model."""
    utils = import_module("accelerate.utils.fsdp_utils")
    policy: Callable[[nn.Module], bool] | None = utils.fsdp2_prepare_auto_wrap_policy(plugin, model)
    return [m for m in model.modules() if m is not model and policy is not None and policy(m)]


@contextmanager
def _environment(configuration: Mapping[str, str]) -> Iterator[None]:
    """What ``accelerate launch`` sets for the processes that it starts."""
    asked = {
        f"{_PREFIX}{name.removeprefix('fsdp_').upper()}": value
        for name, value in configuration.items()
        if name in OF_UNITS and value
    }
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith(_PREFIX)]:
        del os.environ[name]
    os.environ.update({_RENAMED.get(name, name): value for name, value in asked.items()})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
