"""What a forward of a model of your own does: which modules it calls, what they put out and use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fsdpfuzz.case import within

_AS_A_WHOLE = (
    nn.MultiheadAttention,
    nn.RNNBase,
    nn.TransformerDecoderLayer,
    nn.TransformerEncoderLayer,
)
"""Modules of torch that read parameters of those in them, on some of their ways at least."""


_AUTOGRAD: Any = torch.autograd
_DTYPE: Any = Tensor.dtype.__get__  # type: ignore[attr-defined]
_LIKE = (Tensor.to, Tensor.type_as)


class Asked(TorchFunctionMode):
    """Tells of each tensor whose dtype is asked for, to cast others to it."""

    def __init__(self, tell: Callable[[Tensor], None]) -> None:
        super().__init__()
        self._tell = tell

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Not ``is``: each look at a property's getter makes another object.
        if func == _DTYPE:
            self._tell(args[0])
        elif func in _LIKE:
            for value in (*args[1:], *(kwargs or {}).values()):
                if isinstance(value, Tensor):
                    self._tell(value)
        return func(*args, **(kwargs or {}))


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows forwards: calls in order, and inside which calls each parameter is used."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[str] = []
        self.times: Counter[str] = Counter()
        self.odd: set[str] = set()
        """Modules that FSDP cannot wrap: they return their input, change it, or give no tensor."""
        self.hidden: set[str] = set()
        """Modules that return tensors in what is no pytree: a dataclass, a subclass of dict."""
        self.uses: dict[str, set[frozenset[str]]] = {}
        """For each parameter the calls that were under way when it was used."""
        self.asked: dict[str, set[frozenset[str]]] = {}
        """The same for when its dtype was asked for."""
        self.backwards = 0
        """Backwards that forwards run by themselves."""
        # By identity, with the model held beside: an id may be given again to another object.
        self._names = {id(p): name for name, p in model.named_parameters()}
        self._model = model
        self._open: list[tuple[str, list[tuple[Tensor, int]]]] = []

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follows what is called meanwhile."""
        handles = []
        for name, module in self._model.named_modules():
            handles.append(module.register_forward_pre_hook(self._enter(name), with_kwargs=True))
            handles.append(module.register_forward_hook(self._leave))
        usual = _AUTOGRAD._engine_run_backward

        def backward(*args: Any, **kwargs: Any) -> Any:
            self.backwards += 1
            return usual(*args, **kwargs)

        _AUTOGRAD._engine_run_backward = backward  # both grad() and backward() call it
        try:
            with Asked(self._ask), self:
                yield
        finally:
            _AUTOGRAD._engine_run_backward = usual
            for handle in handles:
                handle.remove()

    def _enter(self, name: str) -> Any:
        def enter(_: nn.Module, args: Any, kwargs: Any) -> None:
            given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
            self.calls.append(name)
            self.times[name] += 1
            # torch counts changes in place in ``_version``; no other trace of them stays.
            self._open.append((name, [(t, t._version) for t in given]))

        return enter

    def _leave(self, module: nn.Module, _: Any, output: Any) -> None:
        name, given = self._open.pop()
        leaves = tree_leaves(output)
        made = [t for t in leaves if isinstance(t, Tensor)]
        if any(_tensors_in(leaf) for leaf in leaves):
            self.hidden.add(name)
        same = any(t is g for t in made for g, _ in given)
        changed = any(g.requires_grad and g._version != version for g, version in given)
        # FSDP hangs its backward hooks on what comes in and goes out: on an
        # input that is returned, or changed, they meet each other.
        if same or changed or not any(t.requires_grad for t in made):
            self.odd.add(name)

    def _ask(self, tensor: Tensor) -> None:
        name = self._names.get(id(tensor))
        if name is not None and self._open:
            self.asked.setdefault(name, set()).add(frozenset(n for n, _ in self._open))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Below autograd, where every use of a tensor arrives, whatever Python function it came by.
        for leaf in tree_leaves((args, kwargs or {})):
            name = self._names.get(id(leaf))
            if name is not None:
                self.uses.setdefault(name, set()).add(frozenset(n for n, _ in self._open))
        return func(*args, **(kwargs or {}))


# What ``collect_grad_tensors`` in torch/distributed/fsdp/_common_utils.py looks into since 2.12.
def _tensors_in(leaf: Any) -> list[Tensor]:
    """Those in a dataclass or in a subclass of dict, list or tuple, or in pytrees there."""
    held: list[Any] = []
    if isinstance(leaf, dict):
        held = list(leaf.values())
    elif isinstance(leaf, (list, tuple)):
        held = list(leaf)
    elif is_dataclass(leaf):
        held = list(vars(leaf).values())
    return [t for t in tree_leaves(held) if isinstance(t, Tensor)]


def standing_alone(model: nn.Module, watches: list[Watch]) -> set[str]:
    """The modules that a unit of FSDP can be made of; the first watch was in train mode.

    A tied parameter is used under each of its names: by which, the module tells that is called.
    """
    first = watches[0]
    every = dict(model.named_modules())
    several = [names for names in module_names(model) if len(names) > 1]
    # What is wrapped first takes such a module, under whichever of its names: FSDP1 leaves the
    # others to the bare one.
    shared = {n for n in every for names in several if n in names or _parts(n, names)}
    whole = [name for name, module in model.named_modules() if isinstance(module, _AS_A_WHOLE)]
    called = {
        n
        for n in every
        if first.times[n]
        and n not in first.odd
        and n not in shared
        # FSDP2 refuses these, before torch 2.12 those with a forward of their own, too.
        and not isinstance(every[n], (nn.ModuleDict, nn.ModuleList))
        and not any(n != path and within(n, path) for path in whole)
    }
    for names in names_of(model):
        uses: set[frozenset[str]] = set()
        for watch in watches:
            uses.update(*(watch.uses.get(name, set()) for name in names))
        for path in list(called):
            inside = [n for n in names if within(n, path)]
            others = {n.rpartition(".")[0] for n in names if n not in inside}
            if inside and any(path not in open_ and not others & open_ for open_ in uses):
                called.discard(path)
    return called


def _parts(path: str, names: list[str]) -> bool:
    """Whether some of the names of a module lie in the one at ``path``, and others do not."""
    return len({within(name, path) for name in names}) > 1


def module_names(model: nn.Module) -> Iterable[list[str]]:
    """All names of each module; first the one by which `torch.nn.Module.named_modules` goes."""
    held: dict[int, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        held.setdefault(id(module), []).append(name)
    return held.values()


def names_of(model: nn.Module) -> Iterable[list[str]]:
    """All names of each parameter; which comes first is so in each model that is built alike."""
    held: dict[int, list[str]] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        held.setdefault(id(p), []).append(name)
    return held.values()


def asked_outside(model: nn.Module, watches: list[Watch]) -> set[str]:
    """The modules with a parameter whose dtype is asked for while they are not called."""
    found: set[str] = set()
    for names in names_of(model):
        asked = set().union(*(watch.asked.get(names[0], ()) for watch in watches))
        for name in names:
            parts = name.split(".")
            paths = [".".join(parts[:i]) for i in range(1, len(parts))]
            found.update(path for path in paths if any(path not in open_ for open_ in asked))
    return found


def used_outside(watches: list[Watch]) -> str:
    """A parameter that is used while the model itself is not called; empty if there is none."""
    for watch in watches:
        for name, uses in watch.uses.items():
            if any("" not in open_ for open_ in uses):
                return name
    return ""
