"""How many bytes of parameters and gradients a rank must hold: arithmetic on the case.

fsdp2 cuts each parameter along one dimension, as a rule the first, into equal chunks, the last
ones short or empty, and keeps every chunk in storage of the full chunk's size. fsdp1 lays the
parameters of a unit out in one flat parameter and cuts that; with ``use_orig_params`` each
parameter starts at a multiple of 16 bytes and the end is padded to a multiple of the number of
shards.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod

from fsdpfuzz.case import (
    WIDTHS,
    Anatomy,
    Forward,
    Fsdp1Unit,
    Parameter,
    called_units,
)
from fsdpfuzz.case.extensions import extensions, sent_in
from fsdpfuzz.case.lacking import may_lack_grads
from fsdpfuzz.case.stored_low import gathered_as
from fsdpfuzz.case.tensor_parallel import cut_by_reduction, local, locally, place_of
from fsdpfuzz.case.units.precision import keeps_low_grads, reduced_in, stored_low
from fsdpfuzz.case.units.shard_placement import sharded_dims
from fsdpfuzz.case.units.use_orig_params import alignment, flat_layout, flat_parts

ITEM = 4
"""Bytes of an element: reduced gradients are float32, and so are most parameters."""
LOW = WIDTHS["bfloat16"]
"""The same of parameters that are stored in bfloat16."""
SENT = {**WIDTHS, "float64": 8}
"""The same of what is gathered."""


def shard_bytes(a: Anatomy) -> int:
    """Bytes of parameters that each rank holds while every unit is sharded."""
    bare, low = a.managed.get(None, ()), stored_low(a)
    return managed_bytes(a) + sum((LOW if p.fqn in low else ITEM) * p.numel for p in bare)


def managed_bytes(a: Anatomy) -> int:
    """As `shard_bytes`, without the parameters that no unit manages."""
    low, total = stored_low(a), 0
    for owner in a.managed:
        if owner is not None:
            total += ITEM * shard_numel(a, owner)
            total -= (ITEM - LOW) * shard_numel(a, owner, low) if low else 0
    return total


def set_bytes(a: Anatomy) -> int:
    """The most that lies beside the shards as long as data that the user set is not written back.

    fsdp1 does that where it next uses the unit (``FlatParamHandle._writeback_orig_params``).
    """
    return shard_bytes(a) if any(op.sets_data for op in a.case.program) else 0


def shard_numel(a: Anatomy, owner: str, names: Collection[str] | None = None) -> int:
    """Elements of a unit's shard with what pads it; ``names`` picks parameters of fsdp2.

    Of a flat parameter they pick all of it or none.
    """
    parameters, ranks, unit = a.managed[owner], a.shards(owner), a.options[owner]
    if isinstance(unit, Fsdp1Unit):
        picked = names is None or any(p.fqn in names for p in parameters)
        return _flat_shard(a, owner, parameters, ranks) if picked else 0
    dims = sharded_dims(a)
    return sum(
        _chunk(local(a, p), dims.get(p.fqn, 0), ranks)
        for p in parameters
        if names is None or p.fqn in names
    )


def gathered_in(a: Anatomy, owner: str) -> tuple[str, int]:
    """The dtype in which a unit is gathered, and how many elements of it a rank hands in.

    Where parameters compute in different dtypes, fsdp2 gathers the bytes of all of them.
    """
    by_dtype: dict[str, list[str]] = {}
    for p in a.managed[owner]:
        for name in sent_in(a, owner, p.fqn):
            by_dtype.setdefault(name, []).append(p.fqn)
    if len(by_dtype) == 1:
        return next(iter(by_dtype)), shard_numel(a, owner)
    numel = {name: shard_numel(a, owner, names) for name, names in by_dtype.items()}
    # fsdp2 concatenates parameters of several dtypes as bytes, where those of one have no element,
    # too (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py,
    # ``_get_all_gather_input_metadatas``).
    return "uint8", sum(SENT[name] * numel[name] for name in numel)


def whole_bytes(a: Anatomy, owners: Collection[str]) -> int:
    """The most bytes that units add to their shards while they are whole.

    Gathered are padded shards of every rank. fsdp2 gathers along the first dimension, so that
    parameters cut along another one are then laid out anew, beside what was gathered, and so are
    those that are gathered in another form.
    """
    total, dims, told = 0, sharded_dims(a), extensions(a)
    beside = 0
    for owner, parameters in a.managed.items():
        if owner is None or owner not in owners:
            continue
        ranks = a.shards(owner)
        if isinstance(a.options[owner], Fsdp1Unit):
            total += ranks * _flat_shard(a, owner, parameters, ranks)
            continue
        for p in locally(a, parameters):
            dim = dims.get(p.fqn, 0)
            # The second term is what ``foreach_all_gather_copy_out``
            # chunks and joins along the other dimension.
            total += ranks * _chunk(p, dim, ranks) + (p.numel if dim else 0)
            if p.fqn in told:
                width = sum(SENT[name] for name in sent_in(a, owner, p.fqn))
                beside += width * ranks * _chunk(p, dim, ranks)
    return ITEM * total + beside


def kept_bytes(a: Anatomy) -> int:
    """The least that units add for good which keep the memory of whole parameters."""
    total, called = 0, called_units(a)
    if a.optional or a.case.ties or any(op.renews for op in a.case.program):
        called = frozenset()  # nothing is certain
    for owner in called:
        for p in locally(a, a.owned[owner]):
            total += WIDTHS[gathered_as(a, owner, p.fqn)] * p.numel
    return total


def grad_bytes(a: Anatomy, rank: int, owners: Collection[str] | None = None) -> int:
    """Bytes of gradients on ``rank`` when every trainable parameter has one, reduced.

    Of these units where ``owners`` names any, else of all that there is.
    """
    total, dims = 0, sharded_dims(a)
    for owner, parameters in a.managed.items():
        if owners is not None and owner not in owners:
            continue
        ranks = a.shards(owner)
        # Shards lie on neighbouring ranks, so the place in a replica is what is left of the rank.
        at = place_of(a.case, rank) % ranks
        trained = [p for p in parameters if p.fqn not in a.frozen]
        if owner is None:
            total += sum(p.numel for p in trained)
        elif not isinstance(unit := a.options[owner], Fsdp1Unit):
            total += sum(_part(p, dims.get(p.fqn, 0), at, ranks) for p in locally(a, trained))
        elif unit.use_orig_params:
            total += _orig_shard(a, owner, parameters, {p.fqn for p in trained}, at, ranks)
        elif trained:
            total += _flat_shard(a, owner, parameters, ranks)
    return ITEM * total


def unit_numel(a: Anatomy) -> int:
    """Elements of the parameters of the largest unit, whole."""
    sizes = (
        sum(p.numel for p in locally(a, owned))
        for owner, owned in a.managed.items()
        if owner is not None
    )
    return max(sizes, default=0)


def settled(a: Anatomy) -> bool:
    """Whether the program ends with every unit sharded and every gradient reduced.

    A forward without backward, or one with nothing to go back through, leaves some units whole,
    and a backward that does not synchronise leaves gradients whole. Ranks that take different
    paths, and a parameter in two units, are beyond the arithmetic.
    """
    if any(a.owners[tie.source] != a.owners[tie.target] for tie in a.case.ties):
        return False
    if a.imported is not None and a.imported.wrapped:
        return False  # of what wraps it not all is known
    sharded = True
    used = [a.canonical(p.fqn) for p in a.parameters if p.used]
    for _, op, now in a.situations(0):
        if isinstance(op, Forward):
            sharded = False
            synchronised = op.sync and op.grad
        elif op.gives_gradients:
            goes_back = a.case.inputs.needs_grad() or not now.given.isdisjoint(used)
            sharded = synchronised and goes_back
        elif op.changes_trained:
            return False
        elif op.renews:
            sharded = True
    return sharded


def grads_known(a: Anatomy) -> bool:
    """Whether every trainable parameter has a gradient at the end of the program, in float32."""
    if may_lack_grads(a) or not settled(a):
        return False
    if keeps_low_grads(a.case.plan.units):
        return False  # in param_dtype or, under NO_SHARD, in reduce_dtype
    held = False
    for op in a.case.program:
        if op.gives_gradients:
            held = True
        elif op.frees_gradients:
            held = False
    return held


def steps_after_backward(a: Anatomy) -> int:
    """Number of optimizer steps with a backward before them."""
    trained, steps = False, 0
    for op in a.case.program:
        if op.gives_gradients:
            trained = True
        elif op.steps_optimizer and trained:
            steps += 1
    return steps


def _chunk(parameter: Parameter, dim: int, ranks: int) -> int:
    """Elements of a full chunk along a dimension."""
    return -(-parameter.shape[dim] // ranks) * _across(parameter, dim)


def _part(parameter: Parameter, dim: int, rank: int, ranks: int) -> int:
    """Elements of a dimension's chunk that ``rank`` really has."""
    size = -(-parameter.shape[dim] // ranks)
    mine = min(max(parameter.shape[dim] - rank * size, 0), size)
    return mine * _across(parameter, dim)


def _across(parameter: Parameter, dim: int) -> int:
    return prod(parameter.shape[:dim] + parameter.shape[dim + 1 :])


def _flat_shard(a: Anatomy, owner: str, parameters: Sequence[Parameter], ranks: int) -> int:
    total = flat_layout(parameters, ranks, alignment(a, owner))[1]
    # Rounded up: FSDP pads the end to equal shards.
    return total if a.fsdp1_options[owner].sharding == "NO_SHARD" else -(-total // ranks)


def _orig_shard(
    a: Anatomy,
    owner: str,
    parameters: Sequence[Parameter],
    trained: set[str],
    rank: int,
    ranks: int,
) -> int:
    if a.fsdp1_options[owner].sharding == "NO_SHARD":
        return sum(p.numel for p in parameters if p.fqn in trained)
    parts = flat_parts(parameters, rank, ranks, alignment(a, owner))
    return sum(numel for fqn, numel in parts.items() if fqn in trained)


def waiting_bytes(a: Anatomy, op: int, rank: int, *, own: bool = False) -> int | None:
    """Bytes of gradients of fsdp2, waiting and reduced, after the backward ``op``.

    It adds up whole gradients in ``reduce_dtype``, without one in the dtype that a unit computes
    in, or with ``own`` in the parameters' own. None where it depends on more than the case which
    gradients there are, and where they are reduced over the shards already. Only some units may
    have theirs wait.
    """
    told = a.case.micro_batches
    if a.imported is not None and a.imported.wrapped:
        return None
    if a.fsdp1 or not _all_there(a) or (told is not None and told.all_reduce_only):
        return None
    # On one mesh DTensor's rules for each operation say whether a gradient is cut before then.
    if a.case.spmd_mesh is not None and a.case.tensor_parallel is not None:
        return None
    now, total = a.at(op), 0
    waits = now.units if told is None or not told.units else told.units
    for owner, parameters in now.managed.items():
        if owner is None:
            return None
        if owner in waits:
            name = reduced_in(now.options[owner], own=own)
            whole = cut_by_reduction(a)
            parts = (p if p.fqn in whole else local(a, p) for p in parameters)
            total += WIDTHS[name or "float32"] * sum(p.numel for p in parts)
    reduced = now.units if _reduced_before(a, op) else set(now.units).difference(waits)
    return total + grad_bytes(now, rank, reduced)


def _all_there(a: Anatomy) -> bool:
    """Whether a backward leaves a gradient of every parameter, and steps clear all of them."""
    return not (a.case.held_out or a.split_ties or may_lack_grads(a))


def _reduced_before(a: Anatomy, last: int) -> bool:
    """Whether reduced gradients of an earlier backward are still there."""
    reduced, synchronised = False, True
    for op in a.case.program[:last]:
        if isinstance(op, Forward) and op.waits:
            synchronised = op.sync
        elif op.gives_gradients:
            reduced = reduced or synchronised
        elif op.frees_gradients:
            reduced = False
    return reduced
