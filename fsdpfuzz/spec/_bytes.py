"""How many bytes of parameters and gradients a rank must hold: arithmetic on the case.

fsdp2 cuts each parameter along its first dimension into equal chunks, the last ones short or
empty, and keeps every chunk in storage of the full chunk's size. fsdp1 lays the parameters of
a unit out in one flat parameter and cuts that; with ``use_orig_params`` each parameter starts
at a multiple of 16 bytes and the end is padded to a multiple of the world size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from fsdpfuzz.spec._case import CaseSpec
from fsdpfuzz.spec._plan import Fsdp1Unit, Plan
from fsdpfuzz.spec._program import Backward, Flip, Forward, RequiresGrad, Step, ZeroGrad
from fsdpfuzz.spec._tree import Parameter, case_places
from fsdpfuzz.spec._units import frozen_names, owners_among, unit_of

ITEM = 4
"""Bytes of an element: parameters and reduced gradients are float32."""
ALIGNED = 16
"""Bytes to which fsdp1 aligns parameters under ``use_orig_params``."""

_WIDTHS = {"float16": 2, "bfloat16": 2, "float32": 4, None: 4}


def shard_bytes(case: CaseSpec, plan: Plan | None = None) -> int:
    """Bytes of parameters that each rank holds while every unit is sharded."""
    plan = plan or case.plan
    total = 0
    for owner, parameters in _by_unit(case, plan):
        if owner is None:
            total += sum(parameter.numel for parameter in parameters)
        elif isinstance(unit := unit_of(plan, owner), Fsdp1Unit):
            total += _flat_shard(unit, parameters, case.world_size)
        else:
            total += sum(_chunk(parameter, case.world_size) for parameter in parameters)
    return ITEM * total


def managed_bytes(case: CaseSpec) -> int:
    """As `shard_bytes`, without the parameters that no unit manages."""
    groups = _by_unit(case, case.plan)
    loose = sum(p.numel for owner, parameters in groups if owner is None for p in parameters)
    return shard_bytes(case) - ITEM * loose


def grad_bytes(case: CaseSpec, rank: int, plan: Plan | None = None) -> int:
    """Bytes of gradients on ``rank`` when every trainable parameter has one, reduced."""
    plan = plan or case.plan
    frozen = frozen_names(case)
    total = 0
    for owner, parameters in _by_unit(case, plan):
        trained = [p for p in parameters if p.fqn not in frozen]
        unit = None if owner is None else unit_of(plan, owner)
        if unit is None:
            total += sum(p.numel for p in trained)
        elif not isinstance(unit, Fsdp1Unit):
            total += sum(_rows(p, rank, case.world_size) for p in trained)
        elif unit.use_orig_params:
            total += _orig_shard(unit, parameters, {p.fqn for p in trained}, rank, case.world_size)
        elif trained:
            total += _flat_shard(unit, parameters, case.world_size)
    return ITEM * total


def unit_numel(case: CaseSpec) -> int:
    """Elements of the parameters of the largest unit, whole."""
    return max(
        (
            sum(p.numel for p in parameters)
            for owner, parameters in _by_unit(case, case.plan)
            if owner is not None
        ),
        default=0,
    )


def settled(case: CaseSpec) -> bool:
    """Whether the program ends with every unit sharded and every gradient reduced.

    A forward without backward leaves some units whole on purpose, and a backward that does
    not synchronise leaves gradients whole. Ranks that take different paths, and a parameter
    in two units, are beyond the arithmetic.
    """
    owners = owners_among(case_places(case), case.plan)
    if any(owners[tie.source] != owners[tie.target] for tie in case.ties):
        return False
    sharded = True
    for op in case.program:
        if isinstance(op, Forward):
            sharded = False
            synchronised = op.sync and op.grad
        elif isinstance(op, Backward):
            sharded = synchronised
        elif isinstance(op, Flip | RequiresGrad):
            return False
    return sharded


def grads_known(case: CaseSpec) -> bool:
    """Whether every trainable parameter has a gradient at the end of the program."""
    if frozen_names(case) or not settled(case):
        return False
    found = case_places(case)
    if any(place.kind == "switch" for place in found):
        return False
    if any(not p.used for place in found for p in place.parameters):
        return False
    held = False
    for op in case.program:
        if isinstance(op, Forward) and op.target:
            return False
        if isinstance(op, Backward):
            held = True
        elif isinstance(op, ZeroGrad) and op.set_to_none:
            held = False
    return held


def steps_after_backward(case: CaseSpec) -> int:
    """Number of optimizer steps with a backward before them."""
    trained, steps = False, 0
    for op in case.program:
        if isinstance(op, Backward):
            trained = True
        elif isinstance(op, Step) and trained:
            steps += 1
    return steps


def _by_unit(case: CaseSpec, plan: Plan) -> Iterator[tuple[str | None, list[Parameter]]]:
    """Units with the parameters they manage, in the order of the model; each tied one once."""
    found = case_places(case)
    owners = owners_among(found, plan)
    targets = {tie.target for tie in case.ties}
    groups: dict[str | None, list[Parameter]] = {}
    for place in found:
        for parameter in place.parameters:
            if parameter.fqn not in targets:
                groups.setdefault(owners[parameter.fqn], []).append(parameter)
    yield from groups.items()


def _chunk(parameter: Parameter, ranks: int) -> int:
    """Elements of a full chunk of dimension 0."""
    return -(-parameter.shape[0] // ranks) * prod(parameter.shape[1:])


def _rows(parameter: Parameter, rank: int, ranks: int) -> int:
    """Elements of dimension 0's chunk that ``rank`` really has."""
    rows = -(-parameter.shape[0] // ranks)
    mine = min(max(parameter.shape[0] - rank * rows, 0), rows)
    return mine * prod(parameter.shape[1:])


def _layout(
    unit: Fsdp1Unit, parameters: Sequence[Parameter], ranks: int
) -> tuple[list[tuple[str, int, int]], int]:
    """Where each parameter starts and ends in the flat parameter, and the total length."""
    align = ALIGNED // _WIDTHS[unit.precision.param if unit.precision else None]
    spans, total = [], 0
    for parameter in parameters:
        if unit.use_orig_params:
            total += -total % align
        spans.append((parameter.fqn, total, total + parameter.numel))
        total += parameter.numel
    if unit.use_orig_params:
        total += -total % ranks
    return spans, total


def _flat_shard(unit: Fsdp1Unit, parameters: Sequence[Parameter], ranks: int) -> int:
    total = _layout(unit, parameters, ranks)[1]
    return total if unit.sharding == "NO_SHARD" else -(-total // ranks)


def _orig_shard(
    unit: Fsdp1Unit, parameters: Sequence[Parameter], trained: set[str], rank: int, ranks: int
) -> int:
    spans, total = _layout(unit, parameters, ranks)
    low, high = 0, total
    if unit.sharding != "NO_SHARD":
        chunk = -(-total // ranks)
        low, high = rank * chunk, (rank + 1) * chunk
    return sum(
        max(0, min(end, high) - max(start, low)) for fqn, start, end in spans if fqn in trained
    )
