"""Whether a target is what ``fsdpfuzz check`` can look at at all; what is not, in words."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from fsdpfuzz.case.modules.imported import FUNCTIONS, depends_on_data
from fsdpfuzz.steps.modules import imported as steps

MAX_MODULES = 512
_OTHERS = (torch.bfloat16, torch.float16, torch.float64)
_NAME = re.compile(r"^[A-Za-z0-9_.]*$")
_FUNCTIONS = {
    "model": ((), "model() makes your nn.Module"),
    "batch": ((0, 0), "batch(step, rank) gives what the model is called with"),
}
_OPTIONAL: dict[str, tuple[tuple[Any, ...], str]] = {
    "loss": ((None, None), "(model, batch)"),
    "freeze": ((None,), "(model)"),
    "shard": ((None, None), "(model, mesh)"),
    "optimizer": ((None,), "(parameters)"),
    "clip": ((None,), "(model)"),
    "load": ((None, None), "(model, state)"),
    "program": ((), "()"),
}


class Trouble(Exception):  # noqa: N818 (what the user is told is no error of ours)
    """Something about the target that keeps it from being checked, in words."""


@dataclass(frozen=True, slots=True)
class Functions:
    """What a target defines, by name: the functions, and how a case names each."""

    made: dict[str, Any]
    paths: tuple[str, ...]


def functions_of(title: str, module: ModuleType, part: str = "") -> Functions:
    """The functions of a target; :class:`Trouble` where one lacks or takes other arguments.

    Those of its class ``part`` come first; what that lacks the file's own stand in for.
    """
    holder = _holder(title, module, part) if part else None
    made: dict[str, Any] = {}
    paths = []
    for own in FUNCTIONS:
        # None in the class says that it goes without the file's.
        there = hasattr(holder, own)
        function = getattr(holder if there else module, own, None)
        if callable(function):
            made[own] = function
            paths.append(f"{part}.{own}" if there else own)
    for own, (args, words) in _FUNCTIONS.items():
        if own not in made:
            others = _holders(module)
            hint = "`fsdpfuzz check --init FILE` writes an example"
            if others and not part:
                hint = f"say of which class in it: {title}:{others[0]}"
            raise Trouble(f"there is no function {own}() in {title}: {words}. {hint}")
        _takes(title, own, made[own], args)
    for own, (given, _) in _OPTIONAL.items():
        if own in made:
            _takes(title, own, made[own], given)
    return Functions(made, tuple(paths))


def _holders(module: ModuleType) -> list[str]:
    """The classes of a target that hold any of its functions."""
    return [
        name
        for name, value in vars(module).items()
        if isinstance(value, type)
        and not issubclass(value, nn.Module)
        and any(callable(getattr(value, own, None)) for own in _FUNCTIONS)
    ]


def _holder(title: str, module: ModuleType, part: str) -> type:
    found = getattr(module, part, None)
    if isinstance(found, type):
        return found
    name = title.removesuffix(f":{part}")
    what = "has no class" if found is None else "has no class, but something else, named"
    there = ", ".join(_holders(module))
    hint = f"those in it: {there}" if there else f"write `class {part}:` with model() in it"
    raise Trouble(f"{name} {what} {part!r}: {hint}")


def _takes(name: str, own: str, function: Any, args: tuple[Any, ...]) -> None:
    try:
        # Called in thought, not counted: defaults and *args are as good as names.
        inspect.signature(function).bind(*args)
    except TypeError as error:
        wanted = {"model": "()", "batch": "(step, rank)"}
        form = wanted.get(own) or _OPTIONAL[own][1]
        raise Trouble(f"{own}() in {name} must be {own}{form}: {error}") from None
    except ValueError:
        pass  # nothing is known of its signature


def check_steady(grads: Sequence[Mapping[str, Tensor | None]]) -> None:
    """Which parameters get a gradient must not depend on the data."""
    lacking = [{name for name, grad in found.items() if grad is None} for found in grads]
    for step, names in enumerate(lacking):
        if names != lacking[0]:
            raise Trouble(depends_on_data(min(names ^ lacking[0]), f"step {step}"))


def in_float32(model: nn.Module) -> str:
    """Makes a model of another floating-point dtype one of float32; what is to be said of it.

    Ranks do the same to what a target makes. Empty where nothing was to be done.
    """
    other = {name: p.dtype for name, p in model.named_parameters() if p.dtype in _OTHERS}
    if not other:
        return ""
    steps.cast(model, torch.device("cpu"), torch.float32)
    name, dtype = next(iter(other.items()))
    return (
        f"parameter {name!r} is of {dtype}: your model is checked in float32, and in lower dtypes "
        "as units with mixed precision, where it runs in them"
    )


def check_model(model: nn.Module) -> None:
    """:class:`Trouble` for a model that is no plain one in float32 on the CPU."""
    if isinstance(model, torch.jit.ScriptModule):
        raise Trouble("model() returned what torch.jit made: return the model that it was made of")
    parameters = dict(model.named_parameters(remove_duplicate=False))
    if not parameters:
        raise Trouble("model() returned a module without parameters: there is nothing to shard")
    for name, p in parameters.items():
        # Before anything that asks for its shape, which it has none of yet.
        if isinstance(p, nn.parameter.UninitializedParameter):
            raise Trouble(f"parameter {name!r} is lazy: call the model once in model()")
        # FlatParameter itself goes by this mark (torch/distributed/fsdp/_flat_param.py,
        # ``_FlatParameterMeta``): it is a plain nn.Parameter otherwise.
        if type(p).__name__ == "DTensor" or hasattr(p, "_is_flat_param"):
            raise Trouble(f"parameter {name!r} is sharded already: return the model without FSDP")
        if p.device.type != "cpu":
            raise Trouble(f"parameter {name!r} lies on {p.device}: return the model on the CPU")
        if p.dtype != torch.float32:
            raise Trouble(
                f"parameter {name!r} is of {p.dtype}, of which there is nothing in float32 to "
                "compare with: return a model of floating-point parameters"
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
