"""Whether a target is what ``fsdpfuzz check`` can look at at all; what is not, in words."""

from __future__ import annotations

import inspect
import re
from types import ModuleType
from typing import Any

import torch
from torch import nn

MAX_MODULES = 512
_NAME = re.compile(r"^[A-Za-z0-9_.]*$")
_FUNCTIONS = {
    "model": ((), "model() makes your nn.Module"),
    "batch": ((0, 0), "batch(step, rank) gives what the model is called with"),
}
_OPTIONAL = {"loss": (None, None), "freeze": (None,), "shard": (None, None)}


class Trouble(Exception):  # noqa: N818 (what the user is told is no error of ours)
    """Something about the target that keeps it from being checked, in words."""


def functions_of(name: str, module: ModuleType) -> dict[str, Any]:
    """The functions of a target; :class:`Trouble` where one lacks or takes other arguments."""
    found = {}
    for own, (args, words) in _FUNCTIONS.items():
        if not callable(getattr(module, own, None)):
            raise Trouble(
                f"there is no function {own}() in {name}: {words}. "
                "`fsdpfuzz check --init FILE` writes an example"
            )
        found[own] = _takes(name, own, getattr(module, own), args)
    for own, given in _OPTIONAL.items():
        if callable(getattr(module, own, None)):
            found[own] = _takes(name, own, getattr(module, own), given)
    return found


def _takes(name: str, own: str, function: Any, args: tuple[Any, ...]) -> Any:
    try:
        inspect.signature(function).bind(*args)
    except TypeError as error:
        wanted = {"model": "()", "batch": "(step, rank)", "loss": "(model, batch)"}
        wanted["shard"] = "(model, mesh)"
        raise Trouble(
            f"{own}() in {name} must be {own}{wanted.get(own, '(model)')}: {error}"
        ) from None
    except ValueError:
        pass  # nothing is known of its signature
    return function


def check_model(model: nn.Module) -> None:
    """:class:`Trouble` for a model that is no plain one in float32 on the CPU."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    if not parameters:
        raise Trouble("model() returned a module without parameters: there is nothing to shard")
    for name, p in parameters.items():
        if isinstance(p, nn.parameter.UninitializedParameter):
            raise Trouble(f"parameter {name!r} is lazy: call the model once in model()")
        if type(p).__name__ == "DTensor" or hasattr(p, "_is_flat_param"):
            raise Trouble(f"parameter {name!r} is sharded already: return the model without FSDP")
        if p.device.type != "cpu":
            raise Trouble(f"parameter {name!r} lies on {p.device}: return the model on the CPU")
        if p.dtype != torch.float32:
            raise Trouble(
                f"parameter {name!r} is of {p.dtype}: return the model in float32; that units "
                "compute in a lower dtype is tried by mixed precision"
            )
        if not _NAME.match(name) or len(name) > 256:
            raise Trouble(f"{name!r}: only names of letters, digits and _ can be checked")
    modules = [name for name, _ in model.named_modules()]
    wrong = next((n for n in modules if not _NAME.match(n) or len(n) > 256), None)
    if wrong is not None:
        raise Trouble(f"{wrong!r}: only names of letters, digits and _ can be checked")
    if len(modules) > MAX_MODULES:
        raise Trouble(
            f"your model has {len(modules)} modules, at most {MAX_MODULES} are accepted: check a "
            "configuration with fewer layers, which has the same kinds of module"
        )
