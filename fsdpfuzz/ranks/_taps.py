"""Where a training begins to depart: outputs of modules, and gradients that reach them, tapped.

A case is trained three times: plain in float64, plain in float32, and by FSDP. Of each tensor a
few numbers are kept, by which two of them can be compared: its projections on random directions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp._common_utils import clean_tensor_name
from torch.utils._pytree import tree_leaves

from fsdpfuzz.case import EPSILON, CaseSpec, anatomy, coarsest, digest, lower, right_in
from fsdpfuzz.observations import NOT_FINITE, Departure, RankReport, Tapped
from fsdpfuzz.ranks._env import RankEnv
from fsdpfuzz.ranks._execute import Execution, Role, Variables

DIRECTIONS = 4
ROUNDING = 32.0
"""How many times what float32 is off without FSDP, and how many rounding units of the coarsest
dtype in the plan, are no departure."""

Key = tuple[str, int, Tapped, int]
"""FQN, number of the call, what was tapped, and which tensor of several."""


class Taps:
    """A watcher that taps every module of the model, once that is wrapped."""

    def __init__(self) -> None:
        self.seen: dict[Key, tuple[int, list[float]]] = {}
        """Of each tensor, in the order in which they were there: the operation, and numbers."""
        self._calls: Counter[str] = Counter()
        self._op = -1
        self._forward = False

    def before(self, op: int, name: str) -> None:
        """Only what a forward calls counts: a backward may recompute."""
        # A checkpoint calls forwards again in a backward, with their hooks.
        self._op, self._forward = op, name == "forward"

    def assigned(self, name: str, variables: Variables) -> bool:
        """Taps a model that is there."""
        if name == "named":
            for path, module in _own_modules(variables["model"]):
                # After the wrapping, so that the hook sees what FSDP
                # hands on; the models go with their trainings.
                module.register_forward_hook(self._hook(path))
        return True

    def after(self, op: int, name: str, variables: Variables) -> None:
        """Nothing to do."""

    def _hook(self, path: str) -> Any:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            if not self._forward:
                return
            call = self._calls[path]
            self._calls[path] += 1
            for i, tensor in enumerate(_floating(output)):
                # Numbers at once, not the tensor: what comes after may change it in place.
                self._note((path, call, "output", i), tensor)
                if tensor.requires_grad:
                    tensor.register_hook(self._gradient((path, call, "gradient", i)))  # type: ignore[no-untyped-call]

        return hook

    def _gradient(self, key: Key) -> Any:
        def hook(gradient: Tensor) -> None:
            self._note(key, gradient)

        return hook

    def _note(self, key: Key, tensor: Tensor) -> None:
        self.seen[key] = (self._op, _numbers(tensor))


def _own_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules of the plain model by their FQN there, in whatever they are wrapped."""
    for name, module in model.named_modules():
        wraps = hasattr(module, "_checkpoint_wrapped_module")
        if not isinstance(module, FullyShardedDataParallel) and not wraps:
            yield clean_tensor_name(f"{name}.").rstrip("."), module


def _floating(value: Any) -> list[Tensor]:
    found = vars(value) if hasattr(value, "__dataclass_fields__") else value
    leaves = tree_leaves(found)
    return [t for t in leaves if isinstance(t, Tensor) and t.is_floating_point()]


def _numbers(tensor: Tensor) -> list[float]:
    """The norm, and the projections on directions that are the same for each size."""
    # To the CPU: a GPU's generator draws other numbers for the same seed.
    flat = tensor.detach().reshape(-1).to("cpu", torch.float64)
    source = torch.Generator().manual_seed(flat.numel())
    found = [float(flat.norm())]
    for _ in range(DIRECTIONS):
        direction = torch.randn(flat.numel(), generator=source, dtype=torch.float64)
        found.append(float(flat @ direction))
    return found


def _apart(seen: list[float], right: list[float], floor: float) -> float:
    """How far two tensors are apart, relative to the size of the second."""
    largest = max(abs(a - b) for a, b in zip(seen, right, strict=True))
    size = max(right[0], floor)
    if not largest <= NOT_FINITE:
        return NOT_FINITE
    return largest / size if size else 0.0


def tapped(case: CaseSpec, env: RankEnv) -> RankReport:
    """Trains a case and reports what departs, in the order in which it was there.

    Every rank must call it with the same case. What FSDP raises ends its training, not this.
    """
    a = anatomy(case)
    trainings: tuple[tuple[Role, torch.dtype], ...] = (
        ("plain", getattr(torch, right_in(a, env.backend))),
        ("plain", torch.float32),
        ("fsdp", torch.float32),
    )
    taps = [Taps() for _ in trainings]
    for (role, dtype), tap in zip(trainings, taps, strict=True):
        execution = Execution(
            recipe=lower(a), env=env, role=role, dtype=dtype, label=f"tap-{role}", watcher=tap
        )
        try:
            execution.run()
        # Where the plain model fails there is nothing to depart from.
        except Exception:
            if role == "plain":
                raise
    wide, single, fsdp = (tap.seen for tap in taps)
    # Against the largest of its kind: what cancels to nearly nothing is rounding alone.
    largest: dict[Tapped, float] = {"output": 0.0, "gradient": 0.0}
    for (_, _, what, _), (_, right) in wide.items():
        largest[what] = max(largest[what], right[0])
    eps = EPSILON[coarsest(a)]
    found = []
    for key, (op, right) in wide.items():
        if key not in fsdp or key not in single:
            continue
        path, call, what, _ = key
        floor = 1e-3 * largest[what]
        error = _apart(fsdp[key][1], right, floor)
        allowed = ROUNDING * (_apart(single[key][1], right, floor) + eps)
        if not error <= allowed:
            found.append(
                Departure(name=path, call=call, what=what, op=op, error=error, allowed=allowed)
            )
    lost = dict.fromkeys(key[0] for key in wide if key[2] == "gradient" and key not in fsdp)
    return RankReport(
        rank=env.rank,
        digest=digest(case),
        departures=tuple(found[:MOST]),
        lost=tuple(lost)[:MOST],
        tapped=len(wide),
    )


MOST = 64
"""Departures that a rank reports; the first of them matter."""
