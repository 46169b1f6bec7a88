"""State dicts out and in: what was saved, and whether loading it restores the same state.

The saved state dict is held to the plain model: the same keys, shapes and dtypes, and the
reference's values. Then it is loaded into a model that is built and wrapped alike but
differs in every element, and what this rank holds of that one must be what it holds of the
saved one, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fsdpfuzz.observations import Comparison
from fsdpfuzz.ranks import _state_fsdp1, _state_fsdp2
from fsdpfuzz.ranks._build import build
from fsdpfuzz.ranks._compare import Batch, Yardstick
from fsdpfuzz.ranks._env import RankEnv
from fsdpfuzz.ranks._names import clean
from fsdpfuzz.ranks._shard import Sharded, dtype_of
from fsdpfuzz.ranks._sharding import shard
from fsdpfuzz.spec import (
    CaseSpec,
    Fsdp1Plan,
    Fsdp1Unit,
    Plan,
    StateDict,
    Step,
    case_places,
    owners_among,
    unit_of,
)

Form = tuple[tuple[int, ...], torch.dtype]


@dataclass(frozen=True, slots=True)
class Layout:
    """The state dict of the plain model: shape and dtype by key, and which are parameters."""

    forms: Mapping[str, Form]
    parameters: frozenset[str]
    """Names of parameters, those of tied ones included."""


@dataclass(frozen=True, slots=True)
class Taken:
    """One state dict as this rank saw it."""

    values: Mapping[str, Tensor] | None
    """Whole tensors by key; None where this rank gets none."""
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    misshapen: tuple[str, ...]
    reloaded: tuple[Comparison, ...]


class References(Protocol):
    """What the state is compared with."""

    def value(self, fqn: str, op: int, *, exact: bool) -> Tensor | None:
        """The reference's parameter or buffer at ``op``."""

    def floor(self, quantity: str, op: int) -> float:
        """The largest parameter at ``op``."""

    def sticks(self, quantity: str, op: int) -> dict[str, Yardstick]:
        """The yardstick of each parameter at ``op``."""


def layout_of(model: nn.Module) -> Layout:
    """The layout of a model that nothing has wrapped."""
    forms = {key: (tuple(value.shape), value.dtype) for key, value in model.state_dict().items()}
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return Layout(forms, frozenset(names))


def take(
    case: CaseSpec, sharded: Sharded, layout: Layout, op: int, request: StateDict, env: RankEnv
) -> Taken:
    """Saves, compares keys and shapes, loads. Raises whatever FSDP raises.

    Runs collectives: every rank must call it.
    """
    first = isinstance(case.plan, Fsdp1Plan)
    api: ModuleType = _state_fsdp1 if first else _state_fsdp2
    state: dict[str, Any] = api.save(sharded.model, request)
    rank0_only = request.rank0_only if first else _state_fsdp2.on_rank0_only(request)
    absent = rank0_only and env.rank != 0
    expected = _expected(case, layout, request, absent=absent)
    values = None if absent else _gathered(api, sharded.model, state, rank0_only)
    missing = sorted(expected - state.keys())
    unexpected = sorted(state.keys() - expected - _optional(case, layout, absent=absent))
    misshapen = () if values is None else tuple(_misshapen(values, layout))
    reloaded: tuple[Comparison, ...] = ()
    if not _anywhere(bool(missing or unexpected or misshapen), env):
        if rank0_only and first:
            state = _broadcast(state, env)
        blank = shard(_blank(case).to(env.device), case.plan, case.checkpoints, env)
        api.load(blank.model, request, state)
        reloaded = _same(sharded, blank, layout, op)
    return Taken(
        values=values,
        missing=tuple(missing),
        unexpected=tuple(unexpected),
        misshapen=misshapen,
        reloaded=reloaded,
    )


def compare(
    case: CaseSpec,
    taken: Taken,
    layout: Layout,
    op: int,
    references: References,
    canonical: Callable[[str], str],
    eps: float,
) -> tuple[Comparison, ...]:
    """The saved values against the reference's.

    Without an optimizer step before it the state must equal the plain model's bit for bit;
    afterwards parameters may round as they may in training. Buffers are always exact,
    unless the plan keeps them in a lower precision.
    """
    if taken.values is None:
        return ()
    trained = any(isinstance(earlier, Step) for earlier in case.program[:op])
    coarse = _buffer_eps(case.plan)
    params = Batch(
        "state_dict",
        op,
        eps,
        references.floor("param", op),
        exact=not trained,
        sticks=lambda: references.sticks("param", op),
    )
    buffers = Batch("state_dict", op, coarse, 1.0, exact=coarse == 0.0)
    for key, (shape, _) in layout.forms.items():
        value = taken.values.get(key)
        if value is None or tuple(value.shape) != shape:
            continue
        parameter = key in layout.parameters
        name = canonical(key) if parameter else key
        right = references.value(name, op, exact=not (parameter and trained))
        if right is None:
            continue
        batch = params if parameter else buffers
        batch.add(name, value.to(right.device), right, None if parameter else Yardstick(0.0, 1.0))
    return (*params.finish(), *buffers.finish())


def _gathered(
    api: ModuleType, model: nn.Module, state: dict[str, Any], rank0_only: bool
) -> dict[str, Tensor]:
    """Whole tensors; no collective where only rank 0 has a state dict."""
    if rank0_only:
        return {key: value for key, value in state.items() if isinstance(value, Tensor)}
    whole: dict[str, Tensor] = api.gather(model, state)
    return whole


def _expected(case: CaseSpec, layout: Layout, request: StateDict, *, absent: bool) -> set[str]:
    """Keys that this rank's state dict must have."""
    if absent:
        return set()
    if request.form != "local":
        return set(layout.forms)
    keys = set(layout.forms)
    found = case_places(case)
    owners = owners_among(found, case.plan)
    for fqn, owner in owners.items():
        if owner is not None and _cut(case, owner):
            keys.discard(fqn)
            keys.add(f"{owner}.{_state_fsdp1.FLAT}" if owner else _state_fsdp1.FLAT)
    flat_targets = {t.target for t in case.ties if owners.get(t.target) is not None}
    return keys - {target for target in flat_targets if _cut(case, owners[target] or "")}


def _optional(case: CaseSpec, layout: Layout, *, absent: bool) -> set[str]:
    """Keys that may be there on ranks that get no state dict.

    That is what no unit manages, and units under ``NO_SHARD``, of which fsdp1 says that it
    returns the full state dict whatever was asked for.
    """
    if not absent:
        return set()
    owners = owners_among(case_places(case), case.plan)
    return {
        key for key in layout.forms if (owner := owners.get(key)) is None or not _cut(case, owner)
    }


def _cut(case: CaseSpec, owner: str) -> bool:
    """Whether a unit is sharded; with fsdp1 it is then one flat parameter in a local state dict."""
    unit = unit_of(case.plan, owner)
    whole = isinstance(unit, Fsdp1Unit) and unit.sharding == "NO_SHARD"
    return not whole and case.world_size > 1


def _misshapen(values: Mapping[str, Tensor], layout: Layout) -> list[str]:
    texts = []
    for key, (shape, dtype) in layout.forms.items():
        value = values.get(key)
        if value is not None and (tuple(value.shape), value.dtype) != (shape, dtype):
            texts.append(
                f"{key}: {value.dtype} {list(value.shape)}, but should be {dtype} {list(shape)}"
            )
    return texts


def _blank(case: CaseSpec) -> nn.Module:
    """The case's model with every element changed: zero, or -1 where it was zero already."""
    model = build(case)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.copy_(torch.where(tensor == 0, -1, 0))
    return model


def _anywhere(mine: bool, env: RankEnv) -> bool:
    """Whether it is so on any rank. A load that must fail would hide what is wrong."""
    flag = torch.tensor([float(mine)], device=env.device)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())


def _broadcast(state: dict[str, Any], env: RankEnv) -> dict[str, Tensor]:
    """Rank 0's full state dict on every rank, on the rank's own device."""
    forms = [(key, tuple(value.shape), value.dtype) for key, value in state.items()]
    holder: list[Any] = [forms if env.rank == 0 else None]
    dist.broadcast_object_list(holder, src=0, device=env.device)
    out = {}
    for key, shape, dtype in holder[0]:
        if env.rank == 0:
            tensor = state[key].detach().to(env.device).contiguous()
        else:
            tensor = torch.empty(shape, dtype=dtype, device=env.device)
        dist.broadcast(tensor, src=0)
        out[key] = tensor
    return out


def _same(saved: Sharded, loaded: Sharded, layout: Layout, op: int) -> tuple[Comparison, ...]:
    """What this rank holds of both models, which must be equal bit for bit."""
    batch = Batch("reloaded", op, 0.0, 0.0, exact=True)
    unit = Yardstick(0.0, 1.0)
    held = {piece.fqn: piece.value() for piece in saved.pieces}
    for piece in loaded.pieces:
        right, value = held.get(piece.fqn), piece.value()
        if right is not None and right.numel() != value.numel():
            right = None
        batch.add(piece.fqn, value, right, unit)
    buffers = {clean(name): buffer for name, buffer in saved.model.named_buffers()}
    for name, buffer in loaded.model.named_buffers():
        if clean(name) in layout.forms:
            batch.add(clean(name), buffer, buffers.get(clean(name)), unit)
    return batch.finish()


def _buffer_eps(plan: Plan) -> float:
    dtypes = [
        dtype
        for unit in plan.units
        if unit.precision is not None and (dtype := dtype_of(unit.precision.buffer)) is not None
    ]
    return max((torch.finfo(dtype).eps for dtype in dtypes), default=0.0)
