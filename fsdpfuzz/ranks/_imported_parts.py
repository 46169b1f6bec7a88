"""A model of your own as parts of a case, and how its tensors are compared."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fsdpfuzz.case.modules import ImportedModule, ImportedParameter
from fsdpfuzz.ranks._imported_watch import module_names

_BASES: Mapping[Literal["ModuleList", "ModuleDict", "MultiheadAttention"], type[nn.Module]] = {
    "ModuleList": nn.ModuleList,
    "ModuleDict": nn.ModuleDict,
    "MultiheadAttention": nn.MultiheadAttention,
}
CLOSE = 1e-5
"""How far two runs of the same may differ, relative to their largest element."""


def modules_of(
    model: nn.Module,
    used: set[str],
    trained: dict[str, bool],
    alone: set[str],
    changed: set[str],
    odd: set[str],
    asked: set[str],
    hidden: set[str],
) -> tuple[ImportedModule, ...]:
    """The modules of a model as parts of a case; ``trained`` tells what its own code freezes.

    ``odd`` names those that a recomputation changes, ``asked`` those whose dtype is asked for,
    ``hidden`` those that return tensors in what is no pytree.
    """
    every = dict(model.named_parameters(remove_duplicate=False))
    first: dict[int, str] = {}
    for name, p in every.items():
        first.setdefault(id(p), name)
    names_of_modules = {names[0]: names[1:] for names in module_names(model)}
    made = []
    for path, module in model.named_modules():
        start = f"{path}." if path else ""
        # Not named_parameters(recurse=False), which leaves out the second name of one that is tied.
        own = [name for name, p in module._parameters.items() if p is not None]
        names = {name: first[id(every[start + name])] for name in own}
        parameters = tuple(
            ImportedParameter(
                name=name,
                shape=tuple(every[source].shape),
                used=source in used,
                frozen=not trained[source],
                tied="" if source == start + name else source,
                order=_order(every[source]),
            )
            for name, source in names.items()
        )
        buffers = tuple(name for name, _ in module.named_buffers(recurse=False))
        made.append(
            ImportedModule(
                path=path,
                repeats=path not in odd,
                cls=type(module).__name__[:128],
                alone=not path or path in alone,
                parameters=parameters,
                buffers=buffers,
                changed=tuple(name for name in buffers if start + name in changed),
                dtype_asked=path in asked,
                base=next((name for name, c in _BASES.items() if isinstance(module, c)), ""),
                returns_dataclass=path in hidden,
                again=tuple(names_of_modules[path]),
            )
        )
    return tuple(made)


def equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are the same in all."""
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)


def close(a: Tensor | None, b: Tensor | None, most: float, noise: float = 0.0) -> bool:
    """Whether the largest difference is at most that part of the largest element, and ``noise``."""
    if a is None or b is None:
        return a is b
    if a.shape != b.shape or not a.numel():
        return a.shape == b.shape
    # In float64: a difference in float16 would be rounded itself.
    left, right = a.detach().double(), b.detach().double()
    return bool((left - right).abs().max() <= noise + most * (1e-6 + right.abs().max()))


def close_all(
    a: dict[str, Tensor | None],
    b: dict[str, Tensor | None],
    most: float = CLOSE,
    noise: float = 0.0,
) -> bool:
    """The same of tensors by name, of which none lacks on one side."""
    return a.keys() == b.keys() and all(close(g, b[name], most, noise) for name, g in a.items())


def fingerprint_of(tensors: Iterable[Any]) -> str:
    """16 hexadecimal digits that hang on every element."""
    found = hashlib.sha256()
    for t in tensors:
        if isinstance(t, Tensor):
            found.update(f"{t.dtype} {tuple(t.shape)}".encode())
            # As bytes: NumPy knows no bfloat16.
            found.update(t.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def kind(value: object) -> str:
    """What a value is, for who returned it."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)} and {value.dtype}"
    return f"a {type(value).__name__}"


def where(error: BaseException, file: str) -> str:
    """The line of the target at which it failed."""
    # The last one in the user's own file: the innermost frame is mostly torch's.
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.endswith(file)]
    if isinstance(error, SyntaxError) and error.filename and error.filename.endswith(file):
        return f" [{file}:{error.lineno}]"
    return f" [{file}:{frames[-1].lineno}]" if frames else ""


def _order(parameter: nn.Parameter) -> tuple[int, ...]:
    """The dimensions from the outermost in memory; none where that is their own order.

    Nor where elements do not lie side by side, of which no order is the one in memory.
    """
    if parameter.is_contiguous():
        return ()
    strides = parameter.stride()
    order = tuple(sorted(range(len(strides)), key=lambda dim: (-strides[dim], dim)))
    return order if parameter.permute(*order).is_contiguous() else ()
