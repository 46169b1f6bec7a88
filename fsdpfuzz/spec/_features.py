"""A case in short texts: which value each option takes.

Known findings are recognised by these names, the report counts their pairs, and ablation
says which of them a finding needs. Names and values therefore stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from fsdpfuzz.spec._case import CaseSpec
from fsdpfuzz.spec._contract import mixed_units, split_ties
from fsdpfuzz.spec._delicate import changes_after_lone_forward, delicate
from fsdpfuzz.spec._model import Branches, Buffered, Norm, Repeat, Transformer
from fsdpfuzz.spec._plan import Fsdp1Plan, Fsdp1Unit, Fsdp2Unit
from fsdpfuzz.spec._program import (
    Backward,
    Dense,
    Flip,
    Forward,
    RequiresGrad,
    StateDict,
    Step,
    ZeroGrad,
)
from fsdpfuzz.spec._tree import Place, case_places
from fsdpfuzz.spec._units import (
    frozen_names,
    owners_among,
    unit_of,
    units_among,
    within,
)

FEATURES: dict[str, str] = {
    "api": "fsdp1, fsdp2",
    "world_size": "number of ranks",
    "wrap": "nested, custom_policy, module_classes (fsdp1 only)",
    "units": "number of units: 1, 2, 3+",
    "root": "wrapped; open when the root is no unit",
    "nesting": "flat: no unit inside another; root: only inside the root's; deep: further",
    "bare_unit": "on when a unit manages no parameter",
    "sharding": "FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, mixed (fsdp1 only)",
    "use_orig_params": "on, off, mixed (fsdp1 only)",
    "backward_prefetch": "BACKWARD_PRE, BACKWARD_POST, off, mixed (fsdp1 only)",
    "forward_prefetch": "on, off, mixed (fsdp1 only)",
    "limit_all_gathers": "on, off, mixed (fsdp1 only)",
    "reshard_after_forward": "default, on, off, int, mixed (fsdp2 only)",
    "precision": "on when any unit has a precision policy",
    "cpu_offload": "on when any unit offloads parameters",
    "ignored": "on when any unit ignores modules",
    "freeze": "none, all, alternate (every other parameter), adapters (all but them), some",
    "frozen_unit": "on when all parameters of a unit are frozen",
    "mixed_unit": "on when a unit manages frozen and trainable parameters",
    "tied": "no, within unit, across units, nested (units of which one contains the other)",
    "reused": "no, grad (called several times), no_grad (also without gradient)",
    "unused": "on when a parameter is never used",
    "one_element": "on when a parameter has a single element",
    "scalar": "on when a parameter has no dimension",
    "empty_shard": "on when dim 0 of a parameter is smaller than the world size",
    "uneven": "on when dim 0 of a parameter is not a multiple of the world size",
    "buffers": "no, persistent, non-persistent, updating",
    "checkpoint": "none, KIND-SIDE or KIND-reentrant-SIDE, several (different ones); SIDE is "
    "inside, around, or within for a module that is no unit",
    "recomputed_unit": "on when a unit lies in, or at, a recomputed module",
    "input_grad": "on when the inputs require grad",
    "inputs": "dense, sequence (dense with a length), tokens",
    "optimizer": "sgd, adam, adamw, none",
    "accumulation": "off, sync, no_sync",
    "debug_level": "OFF, INFO, DETAIL",
    "flips": "no, all, some (of the ranks, at one time or another)",
    "refrozen": "no, yes (requires_grad changes during the program), after lone forward (and at "
    "that time a forward lies back that no backward followed)",
    "steps": "number of optimizer steps",
    "state_dict": "no, full, sharded, local, several (different forms)",
    "state_offload": "on when a state dict is offloaded to the CPU",
    "state_rank0": "on when a state dict is for rank 0 only",
    "non_root_forward": "on when a module other than the root is called by itself",
    "zero_grad": "none (set_to_none), zero, mixed, never",
    "loss": "projection, sum",
    "merge": "no, concat, sum, stack, several",
    "side_input": "on when branches get an unused second input",
    "norm": "no, layer, rms, several",
    "embedding": "on when the model embeds tokens",
    "lora": "on when there is an adapter",
    "residual": "on when there is a residual connection",
    "own_parameter": "on when a container has a parameter of its own",
    "single_element_unit": "on when a unit manages one element in all",
    "quiet_unit": "on when no parameter of a unit gets a gradient: all frozen or unused",
    "kept_quiet_unit": "on when such a unit is not resharded after forward (fsdp1 only)",
    "identity_unit": "on when a unit's module returns its very input",
    "reentrant": "no, whole, part (of what a unit manages), nested, repeated (called again)",
    "kinds": "the other kinds of module, joined by +: dropout, switch, positions, ...",
}
"""Every feature with its values. Features of the other API are left out of a case's."""

_OTHER_KINDS = frozenset({"dropout", "switch", "positions", "encoder_layer", "transformer"})


def features(case: CaseSpec) -> dict[str, str]:
    """Option names and values of ``case``, in the order of `FEATURES`."""
    found = case_places(case)
    values = dict(_plan(case, found))
    values.update(_parameters(case, found))
    values.update(_modules(found))
    values.update(_checkpoints(case, found))
    values.update(_program(case))
    values.update(delicate(case, found))
    return {name: values[name] for name in FEATURES if name in values}


def _plan(case: CaseSpec, found: Sequence[Place]) -> Iterator[tuple[str, str]]:
    plan = case.plan
    paths = units_among(found, plan)
    owned = set(owners_among(found, plan).values())
    yield "api", case.api
    yield "world_size", str(case.world_size)
    yield "units", "3+" if len(paths) > 2 else str(len(paths))
    yield "root", "wrapped" if "" in paths else "open"
    inner = [p for p in paths if any(within(p, u) for u in paths if u not in ("", p))]
    nested = "root" if "" in paths and len(paths) > 1 else "flat"
    yield "nesting", "deep" if inner else nested
    yield "bare_unit", _on(any(path not in owned for path in paths))
    options: list[Fsdp1Unit | Fsdp2Unit] = [unit_of(plan, path) for path in paths]
    yield "precision", _on(any(unit.precision is not None for unit in options))
    yield "cpu_offload", _on(any(unit.cpu_offload for unit in options))
    yield "ignored", _on(any(unit.ignored for unit in options))
    if isinstance(plan, Fsdp1Plan):
        yield "wrap", plan.wrap
        first = [unit for unit in options if isinstance(unit, Fsdp1Unit)]
        yield "sharding", _one(unit.sharding for unit in first)
        yield "use_orig_params", _one(_on(unit.use_orig_params) for unit in first)
        yield "backward_prefetch", _one(unit.backward_prefetch or "off" for unit in first)
        yield "forward_prefetch", _one(_on(unit.forward_prefetch) for unit in first)
        yield "limit_all_gathers", _one(_on(unit.limit_all_gathers) for unit in first)
    else:
        second = [unit.reshard_after_forward for unit in plan.units]
        yield "reshard_after_forward", _one(_reshard(value) for value in second)


def _parameters(case: CaseSpec, found: Sequence[Place]) -> Iterator[tuple[str, str]]:
    targets = {tie.target for tie in case.ties}
    real = [p for place in found for p in place.parameters if p.fqn not in targets]
    frozen = frozen_names(case)
    states: dict[str, set[bool]] = {}
    for fqn, owner in owners_among(found, case.plan).items():
        if owner is not None:
            states.setdefault(owner, set()).add(fqn in frozen)
    names = [p.fqn for p in real]
    yield "freeze", _freeze(names, frozen, found)
    yield "frozen_unit", _on({True} in states.values())
    yield "mixed_unit", _on(bool(mixed_units(case)))
    yield "tied", _tied(case)
    yield "unused", _on(any(not p.used for p in real))
    yield "one_element", _on(any(p.numel == 1 and p.shape for p in real))
    yield "scalar", _on(any(not p.shape for p in real))
    yield "empty_shard", _on(any(p.shape and p.shape[0] < case.world_size for p in real))
    yield "uneven", _on(any(p.shape and p.shape[0] % case.world_size for p in real))


def _freeze(names: Sequence[str], frozen: frozenset[str], found: Sequence[Place]) -> str:
    held = frozen.intersection(names)
    if not held:
        return "none"
    if len(held) == len(names):
        return "all"
    adapters = adapter_names(found)
    if adapters and held == set(names) - adapters:
        return "adapters"
    return "alternate" if held in (set(names[::2]), set(names[1::2])) else "some"


def adapter_names(found: Sequence[Place]) -> frozenset[str]:
    """FQNs of the low-rank parameters that fine-tuning with adapters trains."""
    bases = {place.path for place in found if place.kind == "lora"}
    return frozenset(
        parameter.fqn
        for place in found
        if place.path.endswith(("down", "up")) and place.path.rpartition(".")[0] in bases
        for parameter in place.parameters
    )


def _tied(case: CaseSpec) -> str:
    if not case.ties and not any(isinstance(p.node, Transformer) for p in case_places(case)):
        return "no"
    pairs = split_ties(case)
    if not pairs:
        return "within unit"
    nested = any(within(a, b) or within(b, a) for a, b in pairs)
    return "nested" if nested else "across units"


def _modules(found: Sequence[Place]) -> Iterator[tuple[str, str]]:
    nodes = [place.node for place in found if place.node is not None]
    kinds = {place.kind for place in found}
    repeats = [node for node in nodes if isinstance(node, Repeat)]
    grad = "grad" if any(node.times > 1 for node in repeats) else "no"
    yield "reused", "no_grad" if any(node.no_grad != "off" for node in repeats) else grad
    yield "buffers", _buffers(found)
    branches = [node for node in nodes if isinstance(node, Branches)]
    yield "merge", _one((node.merge for node in branches), none="no", several="several")
    yield "side_input", _on(any(node.side for node in branches))
    norms = (node.variant for node in nodes if isinstance(node, Norm))
    yield "norm", _one(norms, none="no", several="several")
    yield "embedding", _on("embedding" in kinds or "transformer" in kinds)
    yield "lora", _on("lora" in kinds)
    yield "residual", _on("residual" in kinds)
    yield "own_parameter", _on("matrix" in kinds)
    yield "kinds", "+".join(sorted(kinds & _OTHER_KINDS)) or "no"


def _buffers(found: Sequence[Place]) -> str:
    held = [place.node for place in found if place.buffers]
    if not held:
        return "no"
    plain = [node for node in held if isinstance(node, Buffered)]
    if any(node.updates for node in plain):
        return "updating"
    return "non-persistent" if any(not node.persistent for node in plain) else "persistent"


def _checkpoints(case: CaseSpec, found: Sequence[Place]) -> Iterator[tuple[str, str]]:
    units = frozenset(units_among(found, case.plan))
    texts = []
    for checkpoint in case.checkpoints:
        side = checkpoint.side if checkpoint.path in units else "within"
        reentrant = "-reentrant" if checkpoint.reentrant else ""
        texts.append(f"{checkpoint.kind}{reentrant}-{side}")
    yield "checkpoint", _one(texts, none="none", several="several")
    recomputed = [c.path for c in case.checkpoints if c.kind != "offload"]
    inside = any(within(unit, path) for unit in units for path in recomputed)
    yield "recomputed_unit", _on(inside)


def _program(case: CaseSpec) -> Iterator[tuple[str, str]]:
    dense = isinstance(case.inputs, Dense)
    yield "input_grad", _on(isinstance(case.inputs, Dense) and case.inputs.requires_grad)
    sequence = "dense" if dense and getattr(case.inputs, "length", None) is None else "sequence"
    yield "inputs", sequence if dense else "tokens"
    yield "optimizer", case.optimizer.name if case.optimizer else "none"
    yield "accumulation", _accumulation(case)
    yield "debug_level", case.debug_level
    flips = [op for op in case.program if isinstance(op, Flip)]
    everyone = all(len(set(op.ranks)) == case.world_size for op in flips)
    yield "flips", ("all" if everyone else "some") if flips else "no"
    changes = any(isinstance(op, Flip | RequiresGrad) for op in case.program)
    lone = changes and changes_after_lone_forward(case)
    yield "refrozen", ("after lone forward" if lone else "yes") if changes else "no"
    yield "steps", str(sum(isinstance(op, Step) for op in case.program))
    resets = [op.set_to_none for op in case.program if isinstance(op, ZeroGrad)]
    yield "zero_grad", _one(("none" if r else "zero" for r in resets), none="never")
    yield "loss", case.loss
    taken = [op for op in case.program if isinstance(op, StateDict)]
    yield "state_dict", _one((op.form for op in taken), several="several")
    yield "state_offload", _on(any(op.cpu_offload for op in taken))
    yield "state_rank0", _on(any(op.rank0_only for op in taken))
    calls = [op for op in case.program if isinstance(op, Forward)]
    yield "non_root_forward", _on(any(op.target for op in calls))


def _accumulation(case: CaseSpec) -> str:
    if any(isinstance(op, Forward) and op.grad and not op.sync for op in case.program):
        return "no_sync"
    backwards = 0
    for op in case.program:
        if isinstance(op, Backward):
            backwards += 1
        elif isinstance(op, Step | ZeroGrad):
            backwards = 0
        if backwards > 1:
            return "sync"
    return "off"


def _reshard(value: bool | int | None) -> str:
    if value is None:
        return "default"
    return _on(value) if isinstance(value, bool) else "int"


def _on(value: bool) -> str:
    return "on" if value else "off"


def _one(values: Iterable[str], *, none: str = "no", several: str = "mixed") -> str:
    different = sorted(set(values))
    if not different:
        return none
    return different[0] if len(different) == 1 else several
