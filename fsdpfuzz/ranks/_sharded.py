"""A model that FSDP has wrapped, and what this rank can say of it."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.distributed.fsdp._common_utils import clean_tensor_name
from torch.distributed.tensor import DTensor

from fsdpfuzz.case import FLAT, Anatomy, innermost, join
from fsdpfuzz.case.strides import orders
from fsdpfuzz.steps import shards as plain
from fsdpfuzz.steps.fsdp1 import memory as memory1
from fsdpfuzz.steps.fsdp1 import shards as shards1
from fsdpfuzz.steps.fsdp1 import units as units1
from fsdpfuzz.steps.fsdp2 import memory as memory2
from fsdpfuzz.steps.fsdp2 import shards as shards2
from fsdpfuzz.steps.fsdp2 import units as units2
from fsdpfuzz.steps.shards import gradient_bytes


@dataclass(frozen=True, slots=True)
class Shard:
    """This rank's part of one parameter."""

    name: str
    held: nn.Parameter
    """What the optimizer holds: the part itself, or a flat parameter that it lies in."""
    values: Callable[[], Tensor]
    """The part, with any shape."""
    gradients: Callable[[bool], Tensor]
    """The same of the gradient; takes whether zeros stand for none."""
    same_part: Callable[[Tensor], Tensor]
    """The same part of a whole tensor."""

    def gradient(self) -> Tensor | None:
        """The part's gradient, or None."""
        return None if self.held.grad is None else self.gradients(False)


class Sharded:
    """What stands in the way of a second implementation is here: the steps of the two APIs."""

    def __init__(self, a: Anatomy, model: nn.Module, named: Mapping[str, nn.Parameter]) -> None:
        """``named`` are the parameters as they were registered right after the wrapping."""
        self.model = model
        self._a = a
        # fsdp2 tells a unit that is whole by parameters that are no DTensors; these never are.
        self._orders = orders(a)
        self._unmanaged = frozenset(fqn for fqn, owner in a.owners.items() if owner is None)
        self._modules: dict[str, Any]
        if a.fsdp1:
            self._modules = dict(units1.units(model))
            self.shards = tuple(self._first(named))
            for unit in self._modules.values():
                if unit._handle is not None and not unit._handle._use_orig_params:
                    # Bound to the unit, not to the flat parameter, which a view keeps alive. At the
                    # exit of the process nothing needs to be freed.
                    weakref.finalize(unit, _forget_views, unit._handle.flat_param).atexit = False
        else:
            self._modules = dict(units2.units(model))
            self.shards = tuple(self._second(named))
        self.units = tuple(self._modules)

    def unsharded(self) -> tuple[str, ...]:
        """Units whose parameters are whole on this rank although the plan shards them."""
        if self._a.fsdp1:
            return tuple(units1.unsharded(self.model))
        return self._units_of(units2.unsharded(self.model, self._unmanaged))

    def _units_of(self, names: Iterable[str]) -> tuple[str, ...]:
        """The units (fsdp2) that manage these parameters."""
        units = self._a.unit_at
        found = (innermost(name.rpartition(".")[0], units) for name in names)
        return tuple(dict.fromkeys(units[module] for module in found if module is not None))

    def resharded(self, modules: Sequence[object]) -> dict[str, int]:
        """How often each unit occurs among ``modules``, which fsdp1's own hook resharded."""
        paths = {id(unit): path for path, unit in self._modules.items()}
        return dict(Counter(paths.get(id(module), "(unknown)") for module in modules))

    def unfreed(self) -> tuple[str, ...]:
        """Units (fsdp2) that are sharded, but keep the memory of whole parameters."""
        return () if self._a.fsdp1 else self._units_of(memory2.unfreed(self.model))

    def held_bytes(self) -> int:
        """Bytes of parameters on this rank: shards, and whatever is whole just now."""
        if self._a.fsdp1:
            return memory1.held_bytes(self.model)
        return memory2.held_bytes(self.model)

    def grad_bytes(self) -> int:
        """Bytes of gradients on this rank, reduced ones and others."""
        if not self._a.fsdp1:
            return memory2.gradient_bytes(self.model)
        held = {id(shard.held): shard.held for shard in self.shards}
        return gradient_bytes(held.values())

    def _first(self, named: Mapping[str, nn.Parameter]) -> Iterator[Shard]:
        managed: set[int] = set()
        for path, unit in self._modules.items():
            handle = unit._handle
            if handle is None:
                continue
            flat, orig = handle.flat_param, handle._use_orig_params
            for i, fqn in enumerate(flat._fqns):
                info = flat._shard_param_infos[i]
                # ``_params`` is None without use_orig_params (``FlatParameter._init_metadata``).
                held = flat._params[i] if orig else flat
                # By identity: a tied parameter has one entry here, and several names.
                managed.add(id(held))
                name = clean_tensor_name(join(path, fqn))
                order = self._orders.get(name, ())
                yield Shard(
                    name,
                    held,
                    partial(shards1.value, held, info, orig, order=order),
                    partial(shards1.gradient, held, info, orig, order=order),
                    partial(shards1.same_part, info=info, order=order),
                )
        for name, p in named.items():
            # The flat parameter is registered as well, under a name of its own.
            if id(p) not in managed and name.rpartition(".")[2] != FLAT:
                yield _whole(name, p)

    def _second(self, named: Mapping[str, nn.Parameter]) -> Iterator[Shard]:
        for name, p in named.items():
            # What no unit manages is no DTensor, and this rank holds all of it.
            if isinstance(p, DTensor):
                yield Shard(
                    name,
                    p,
                    partial(shards2.value, p),
                    partial(shards2.gradient, p),
                    partial(_same_place, p),
                )
            else:
                yield _whole(name, p)


def _same_place(p: Any, whole: Tensor) -> Tensor:
    return shards2.same_part(whole, p)


def _whole(name: str, p: nn.Parameter) -> Shard:
    """A parameter that no unit manages: this rank holds all of it."""
    return Shard(name, p, partial(plain.value, p), partial(plain.gradient, p), lambda whole: whole)


def _forget_views(flat: Any) -> None:
    """Takes the views of a flat parameter, whose unit is gone, off the modules.

    A view holds the flat parameter, which holds the modules, which hold the view; the first
    link is in C++, where Python's collector does not see it, and nothing of it would be freed.
    """
    for info in (*flat._param_infos, *flat._shared_param_infos):
        # A view is no parameter: FSDP sets it as a plain attribute
        # (``FlatParamHandle._use_unsharded_views``).
        info.module.__dict__.pop(info.param_name, None)
