"""The reference: the same training without FSDP.

Two replicas run on every rank. One is in float64 and says what is right; the other is in
float32 under ``DistributedDataParallel`` and says how much rounding is normal for this very
case. Both recompute activations where the case does, because a buffer that forward updates
counts recomputations, and because reentrant checkpointing gives no gradient unless an
input requires one.

``DistributedDataParallel`` documents what it cannot do: reentrant checkpointing together
with unused or repeated parameters, ``requires_grad`` changed after construction, several
forwards before a backward, a graph that differs between ranks. There the float32 replica
averages gradients by itself, with one all-reduce after each synchronised backward.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fsdpfuzz.errors import ContractError
from fsdpfuzz.ranks._activation import place
from fsdpfuzz.ranks._build import build
from fsdpfuzz.ranks._env import RankEnv
from fsdpfuzz.ranks._names import clean
from fsdpfuzz.ranks._program import make_optimizer
from fsdpfuzz.ranks._trace import Values
from fsdpfuzz.spec import (
    Backward,
    CaseSpec,
    Flip,
    Forward,
    Fsdp1Unit,
    RequiresGrad,
    StateDict,
    case_places,
    unit_of,
    unit_owner,
)


class Replica:
    """A whole copy of the model on every rank, its gradients averaged over the ranks."""

    def __init__(self, case: CaseSpec, env: RankEnv, dtype: torch.dtype) -> None:
        self.name = f"reference-{str(dtype).removeprefix('torch.')}"
        self.dtype = dtype
        self._env = env
        self._alias = {tie.target: tie.source for tie in case.ties}
        model = build(case).to(device=env.device, dtype=dtype)
        for checkpoint in case.checkpoints:
            if checkpoint.kind != "offload":
                model = place(model, checkpoint, inside_unit=False)
        self._parameters = {
            self._name(name): parameter for name, parameter in model.named_parameters()
        }
        self.parameter_names = tuple(self._parameters)
        held_out = set(case.held_out)
        self.optimizer = make_optimizer(
            case.optimizer,
            [p for name, p in self._parameters.items() if name not in held_out],
        )
        owners = unit_owner(case)
        self._alone = {self._name(fqn) for fqn, owner in owners.items() if owner is None}
        """Parameters that no unit manages: nobody averages their gradients."""
        self._replaced = {self._name(fqn) for fqn in _offloaded(case)}
        """Parameters whose gradients fsdp1 replaces: it documents that it does not accumulate
        reduced gradients under CPU offload (``FullyShardedDataParallel``, "Limitations")."""
        self._flips = any(isinstance(op, Flip) for op in case.program)
        self.averages = dtype == torch.float64 or needs_averaging(case, model)
        self.model = model if self.averages else _ddp(case, model, env)
        self._reduced: dict[str, Tensor] = {}

    @contextmanager
    def synchronised(self, enabled: bool) -> Iterator[None]:
        """``no_sync`` of DDP; an averaging replica reduces in `after_backward`."""
        with ExitStack() as stack:
            if not enabled and isinstance(self.model, DistributedDataParallel):
                stack.enter_context(self.model.no_sync())
            yield

    def after_backward(self, synchronised: bool) -> None:
        """Averages the gradients over the ranks, for a replica that does so itself."""
        if not (self.averages and synchronised):
            return
        for name in self._alone:
            self._accumulate(name, self._parameters[name].grad)
        names = [
            name
            for name, p in self._parameters.items()
            # After a flip ranks may train different parameters, and all must average the same.
            if (p.requires_grad or self._flips) and name not in self._alone
        ]
        if not names:
            return
        parts, present = [], []
        for name in names:
            grad = self._parameters[name].grad
            present.append(grad is not None)
            parts.append(torch.zeros_like(self._parameters[name]) if grad is None else grad)
        flat = torch.cat([part.reshape(-1) for part in parts])
        flat = torch.cat([flat, torch.tensor(present, dtype=flat.dtype, device=flat.device)])
        dist.all_reduce(flat)
        flat /= self._env.world_size
        mask = flat[-len(names) :].tolist()
        sizes = [part.numel() for part in parts]
        for name, mean, some in zip(
            names, torch.split(flat[: -len(names)], sizes), mask, strict=True
        ):
            self._accumulate(name, mean.view_as(self._parameters[name]) if some else None)

    def _accumulate(self, name: str, grad: Tensor | None) -> None:
        """Adds to what the optimizer will see, and clears the local gradient."""
        self._parameters[name].grad = None
        if grad is not None:
            before = None if name in self._replaced else self._reduced.get(name)
            self._reduced[name] = grad if before is None else before + grad

    def before_step(self) -> None:
        """Hands the averaged gradients to the optimizer."""
        if self.averages:
            for name, parameter in self._parameters.items():
                parameter.grad = self._reduced.get(name)

    def zero_grad(self, set_to_none: bool) -> None:
        """Drops or zeroes all gradients."""
        for name, parameter in self._parameters.items():
            if set_to_none:
                parameter.grad = None
                self._reduced.pop(name, None)
            elif parameter.grad is not None or name in self._reduced:
                parameter.grad = None if self.averages else torch.zeros_like(parameter)
                if self.averages:
                    self._reduced[name] = torch.zeros_like(parameter)

    def require_grad(self, parameters: frozenset[str], value: bool) -> None:
        """Freezes or unfreezes parameters."""
        for name in parameters:
            self._parameters[self._name(name)].requires_grad_(value)

    def state_dict(self, op: int, request: StateDict) -> None:
        """A replica's state is its parameters; there is nothing to take or load."""

    def grads(self) -> Values:
        """Synchronised gradients by FQN, each ``parameter.shape``."""
        if self.averages:
            return {name: self._reduced.get(name) for name in self._parameters}
        return {name: p.grad for name, p in self._parameters.items()}

    def values(self) -> dict[str, Tensor]:
        """Parameters by FQN."""
        return {name: p.detach() for name, p in self._parameters.items()}

    def buffers(self) -> dict[str, Tensor]:
        """Buffers by FQN."""
        return {clean(name): buffer for name, buffer in self.model.named_buffers()}

    def _name(self, fqn: str) -> str:
        fqn = clean(fqn)
        return self._alias.get(fqn, fqn)


def needs_averaging(case: CaseSpec, model: nn.Module) -> bool:
    """Whether ``DistributedDataParallel`` documents that it cannot run this case."""
    return (
        not any(parameter.requires_grad for parameter in model.parameters())
        or any(c.reentrant or not c.path for c in case.checkpoints if c.kind != "offload")
        or any(isinstance(op, RequiresGrad | Flip) for op in case.program)
        or any(isinstance(op, Forward) and op.target for op in case.program)
        or any(place_.kind == "switch" for place_ in case_places(case))
        or None in unit_owner(case).values()
        or any(_offloaded(case))
        or any(isinstance(op, Forward) and op.drop for op in case.program)
        or _repeated_forwards(case)
    )


def _offloaded(case: CaseSpec) -> Iterator[str]:
    """FQNs of the parameters in units of fsdp1 that offload them to the CPU."""
    for fqn, owner in unit_owner(case).items():
        unit = None if owner is None else unit_of(case.plan, owner)
        if isinstance(unit, Fsdp1Unit) and unit.cpu_offload:
            yield fqn


def _repeated_forwards(case: CaseSpec) -> bool:
    pending = 0
    for op in case.program:
        if isinstance(op, Forward) and op.grad and not op.drop:
            pending += 1
        elif isinstance(op, Backward):
            pending = 0
        if pending > 1:
            return True
    return False


def _ddp(case: CaseSpec, model: nn.Module, env: RankEnv) -> nn.Module:
    if hasattr(model, "recompute"):
        raise ContractError("a recomputed root needs the averaging replica")
    unused = any(not p.used for place_ in case_places(case) for p in place_.parameters)
    return DistributedDataParallel(
        model,
        device_ids=[env.device] if env.device.type == "cuda" else None,
        find_unused_parameters=unused,
        **_NO_BUFFER_SYNC,
    )


_NO_BUFFER_SYNC: dict[str, Any] = {
    "forward_sync_buffers"
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else "broadcast_buffers": False
}
"""FSDP never synchronises buffers; DDP's option for the same has a new name since torch 2.13."""
