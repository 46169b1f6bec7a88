"""Mistakes in code of your own that show when it runs, each said by its name."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import Store
from torch.nn.utils import clip_grad
from torch.optim import Optimizer
from torch.utils import checkpoint
from torch.utils._pytree import tree_leaves

from fsdpfuzz.case import within
from fsdpfuzz.ranks._imported_parts import CLOSE, close
from fsdpfuzz.ranks._sharded import Shard
from fsdpfuzz.steps.fsdp1 import units as units1

PATIENCE = 10.0
"""Seconds that a rank which has loaded waits for the others."""
_TICK = 0.05


def stale(optimizer: Optimizer, model: nn.Module, plain: Mapping[int, str]) -> Iterator[str]:
    """An optimizer that was made before the parameters which it should step.

    ``plain`` names the parameters of the model before it was sharded by their ids.
    """
    held = [p for group in optimizer.param_groups for p in group["params"]]
    # By identity: tensors compare by elements.
    own = {id(p) for p in model.parameters()}
    gone = [p for p in held if id(p) not in own]
    if gone:
        name = next((plain[id(p)] for p in gone if id(p) in plain), "")
        such = f", as {name!r} before it was sharded" if name else ""
        yield (
            "the optimizer was made before the model was sharded: "
            f"{len(gone)} of its {len(held)} parameters are no parameters of the sharded model"
            f"{such}, so its step() does not train that. Make the optimizer after the last "
            "fully_shard(...) or FullyShardedDataParallel(...)"
        )


def own_backward() -> str:
    """A forward that runs a backward."""
    return (
        "the forward runs a backward of its own, as torch.autograd.grad does: FSDP documents that "
        "it does not work with double backwards. Units that are resharded after their forward "
        "lack the parameters for it"
    )


def changed_in_forward(name: str) -> str:
    """A parameter that a forward changes."""
    return (
        f"the forward changes parameter {name!r}: FSDP gathers parameters for a forward, and "
        "throws away what was changed in them. Make it a buffer, or change it after the step, "
        "as a sharded parameter"
    )


@dataclass(slots=True)
class Recomputed:
    """Modules that reentrant checkpointing recomputes although no input of theirs needs grad.

    ``torch.utils.checkpoint`` then computes no gradients in them.
    """

    model: nn.Module
    lost: dict[str, list[str]] = field(default_factory=dict)
    """For each such module the parameters in it that are trained, but get no gradient."""
    _entered: dict[str, None] = field(default_factory=dict)
    _running: int = 0
    """Reentrant checkpoints that are in their forward."""
    _quiet: list[str | None] = field(default_factory=list)
    _trained: dict[int, tuple[str, list[str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for path, module in self.model.named_modules():
            own = module.named_parameters(path, recurse=False)
            # Names before the sharding: FSDP registers other parameters under other names.
            self._trained[id(module)] = path, [name for name, p in own if p.requires_grad]
            # These go with the model, which is thrown away.
            module.register_forward_pre_hook(self._enter)

    def forget(self, frozen: Iterable[str]) -> None:
        """These are not trained, whatever they were before."""
        left = set(frozen)
        self._trained = {
            number: (path, [name for name in names if name not in left])
            for number, (path, names) in self._trained.items()
        }

    @contextmanager
    def following(self) -> Iterator[None]:
        """Looks at the checkpoints of all forwards meanwhile."""
        function: Any = checkpoint.CheckpointFunction
        usual: Callable[..., Any] = function.forward

        def forward(ctx: Any, run: Any, preserve: Any, *args: Any) -> Any:
            asked = any(t.requires_grad for t in tree_leaves(args) if isinstance(t, Tensor))
            # The condition of ``check_backward_validity`` in
            # torch/utils/checkpoint.py, which only warns.
            if not asked:
                self._quiet.append(None)
            self._running += 1
            try:
                return usual(ctx, run, preserve, *args)
            finally:
                self._running -= 1
                if not asked:
                    self._quiet.pop()

        # On the class, where ``apply`` looks it up. A hook on the
        # module would not tell which checkpoint calls it.
        function.forward = staticmethod(forward)
        try:
            yield
        finally:
            function.forward = staticmethod(usual)

    def recomputed(self) -> tuple[str, ...]:
        """The outermost modules that were called in reentrant checkpoints."""
        every = self._entered
        return tuple(p for p in every if not any(p != o and within(p, o) for o in every))

    def _enter(self, module: nn.Module, _: Any) -> None:
        path, trained = self._trained[id(module)]
        if self._running:
            self._entered[path] = None
        if not self._quiet:
            return
        outer = self._quiet[-1]
        if outer is None:
            outer = self._quiet[-1] = path
        self.lost.setdefault(outer, []).extend(trained)

    def mistakes(self) -> Iterator[str]:
        """The first that loses a gradient, and how many do."""
        found = {path: list(dict.fromkeys(names)) for path, names in self.lost.items() if names}
        if not found:
            return
        path, names = next(iter(found.items()))
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        such = f"; so do {len(found) - 1} other modules" if len(found) > 1 else ""
        yield (
            f"{path!r} is recomputed by reentrant checkpointing, but no input of it requires grad, "
            f"as what comes before it is frozen or data: {names[0]!r}{others} get no gradient and "
            f"are not trained{such}. Give use_reentrant=False (checkpoint_wrapper: NO_REENTRANT), "
            "or have the inputs require grad (transformers: model.enable_input_require_grads())"
        )


def clipped_as_plain(model: nn.Module, clip: Callable[[nn.Module], Any]) -> Iterator[str]:
    """Calls ``clip(model)``, and looks whether torch's utility clips what fsdp1 has sharded."""
    sharded = [
        path or "the root"
        for path, unit in units1.units(model)
        if unit._handle is not None and unit._handle.uses_sharded_strategy
    ]
    called = False

    def look(frame: FrameType, event: str, _: Any) -> None:
        nonlocal called
        if event == "call" and frame.f_code.co_filename == clip_grad.__file__:
            called = True

    # A profile and no patch: the target may have imported the function by
    # name. It is torch's own code that is looked for, in its file.
    before = sys.getprofile()
    sys.setprofile(look)
    try:
        clip(model)
    finally:
        sys.setprofile(before)
    if called and sharded:
        yield (
            "clip(model) uses torch.nn.utils.clip_grad_norm_ on a model that "
            "FullyShardedDataParallel has sharded: each rank takes the norm of its own shards for "
            "that of all gradients and scales them otherwise than the other ranks. Call the "
            "model's own, model.clip_grad_norm_(max_norm)"
        )


@dataclass(frozen=True, slots=True)
class Ranks:
    """What the ranks of a look tell each other, without a collective."""

    store: Store
    rank: int
    size: int

    def tell(self, what: str, value: str = "yes") -> None:
        """Says something to all ranks."""
        # No collective: the very question is whether ranks still take part in the same ones.
        self.store.set(f"{what}/{self.rank}", value)

    def heard(self, what: str, patience: float = PATIENCE) -> dict[int, str]:
        """What each rank said, of those that say it in time."""
        end = time.monotonic() + patience
        # Asked for, not waited for: a ``get`` of what never comes
        # would block for the timeout of the store.
        left = set(range(self.size))
        while left and time.monotonic() < end:
            left = {rank for rank in left if not self.store.check([f"{what}/{rank}"])}
            if left:
                time.sleep(_TICK)
        there = set(range(self.size)) - left
        return {rank: self.store.get(f"{what}/{rank}").decode() for rank in sorted(there)}


BROADCAST = (
    "Load on every rank, and have what rank 0 alone has read sent to the others: "
    "StateDictOptions(full_state_dict=True, broadcast_from_rank0=True) for set_model_state_dict, "
    "sync_module_states=True for FullyShardedDataParallel"
)


def waits_for_ever(ranks: Ranks) -> str:
    """The mistake where some ranks came to the end of ``load`` and others do not; else nothing."""
    done = ranks.heard("loaded")
    waiting = [rank for rank in range(ranks.size) if rank not in done]
    # Where none has come to the end it is slow, or hangs for another reason.
    if not waiting or not done:
        return ""
    return (
        f"load(model, state) loads on {_ranks(waiting)} only, without broadcasting: "
        f"{_ranks(waiting)} waits for ever for {_ranks(done)}, which did not take part. {BROADCAST}"
    )


def loaded_apart(
    ranks: Ranks, shards: Iterable[Shard], right: Mapping[str, Tensor], *, loads: bool
) -> str:
    """The mistake where ranks hold shards of different models; else nothing.

    ``right`` holds what each parameter has to be, whole, by FQN: what ``load`` was given, or
    without it what ``model()`` made.
    """
    wrong = next((s.name for s in shards if not _same(s.values(), s.same_part(right[s.name]))), "")
    # Also an empty name: the others wait for an answer of each rank.
    ranks.tell("wrong", wrong)
    found = ranks.heard("wrong")
    wrongs = {rank: name for rank, name in found.items() if name}
    if not wrongs:
        return ""
    name = next(iter(wrongs.values()))
    fine = [rank for rank in found if rank not in wrongs]
    if not fine and loads:
        return (
            "load(model, state) leaves other values in the model than those of state, as in "
            f"{name!r}"
        )
    if not fine:
        return (
            f"shard(model, mesh) gives parameters, as {name!r}, other values than model() did, so "
            "both cannot be compared: load what was trained before in model(), or in "
            "load(model, state)"
        )
    where = "load(model, state)" if loads else "shard(model, mesh)"
    there, left = (fine, [*wrongs]) if loads else ([*wrongs], fine)
    return (
        f"{where} loads on {_ranks(there)} only, without broadcasting: {_ranks(left)} keeps other "
        f"values in its shards, as of {name!r}. {BROADCAST}"
    )


def _same(mine: Tensor, right: Tensor) -> bool:
    return close(mine.reshape(-1), right.reshape(-1), CLOSE)


def _ranks(numbers: Iterable[int]) -> str:
    found = [str(number) for number in numbers]
    return f"rank{'s' if len(found) > 1 else ''} {' and '.join(found)}"


def not_elementwise(make: Callable[[list[nn.Parameter]], Optimizer]) -> bool:
    """Whether an optimizer steps the halves of a parameter otherwise than the whole."""
    torch.manual_seed(0)
    # Three steps, as some optimizers do nothing of their own in the first.
    start, grads = torch.randn(4, 6), [torch.randn(4, 6) for _ in range(3)]
    whole = [nn.Parameter(start.clone())]
    halves = [nn.Parameter(part.clone()) for part in start.chunk(2)]
    try:
        first, second = make(whole), make(halves)
        for grad in grads:
            whole[0].grad = grad.clone()
            for half, part in zip(halves, grad.chunk(2), strict=True):
                half.grad = part.clone()
            first.step()
            second.step()
    except Exception:  # it wants to know the model's own parameters
        return False
    return not close(torch.cat([half.detach() for half in halves]), whole[0], CLOSE)


def sorts_by_shape(make: Callable[[list[nn.Parameter]], Optimizer]) -> bool:
    """Whether an optimizer has other groups where all parameters have one dimension."""
    torch.manual_seed(0)
    whole = [nn.Parameter(torch.randn(shape)) for shape in ((4, 6), (6,), (1, 4))]
    flat = [nn.Parameter(p.detach().flatten()) for p in whole]

    def groups(given: list[nn.Parameter]) -> list[list[int]]:
        number = {id(p): i for i, p in enumerate(given)}
        return [[number[id(p)] for p in group["params"]] for group in make(given).param_groups]

    try:
        return groups(whole) != groups(flat)
    except Exception:  # it wants to know the model's own parameters
        return False
