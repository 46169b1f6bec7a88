"""Which options a finding needs: each is set back to its default alone, and the case run again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from fsdpfuzz.errors import CaseError
from fsdpfuzz.repro._context import Ablation
from fsdpfuzz.spec import (
    Backward,
    CaseSpec,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Mode,
    Step,
    ZeroGrad,
    check,
    digest,
    planned_units,
)
from fsdpfuzz.verdict import Verdict

MAX_RUNS = 40
replace = msgspec.structs.replace


@dataclass(frozen=True, slots=True)
class Variation:
    """The case with one thing changed.

    ``option`` says in words what the case has and the variation lacks. A ``surrounding`` is
    no option of the case but where it runs, and says what the variation has.
    """

    words: str
    case: CaseSpec
    kind: Literal["option", "surrounding"] = "option"


def ablate(
    case: CaseSpec,
    key: str,
    examine: Callable[[CaseSpec], Verdict | None],
    *,
    max_runs: int = MAX_RUNS,
    max_ranks: int = 4,
) -> Ablation:
    """Changes one option of ``case`` at a time and asks ``examine`` whether ``key`` still shows.

    A change that FSDP refuses, or that leaves nothing to check, says nothing and is passed
    over. At most ``max_runs`` cases are run, none on more than ``max_ranks`` ranks; it also
    ends where ``examine`` has had enough and gives None.
    """
    needed, absent, present = list[str](), list[str](), list[str]()
    runs, complete = 0, True
    seen = {digest(case)}
    for variation in variations(case, max_ranks=max_ranks):
        if digest(variation.case) in seen or not _is_sound(variation.case):
            continue
        seen.add(digest(variation.case))
        if runs >= max_runs:
            complete = False
            break
        verdict = examine(variation.case)
        if verdict is None:
            complete = False
            break
        runs += 1
        if verdict.status in ("rejected", "vacuous"):
            continue
        shows = any(_is_same(key, found.key, case, variation.case) for found in verdict.findings)
        if variation.kind == "surrounding":
            (present if shows else absent).append(variation.words)
        elif not shows:
            needed.append(variation.words)
    return Ablation(
        needed=tuple(needed),
        absent=tuple(absent),
        present=tuple(present),
        runs=runs,
        complete=complete,
    )


def variations(case: CaseSpec, *, max_ranks: int = 4) -> Iterator[Variation]:
    """All changes that are tried, the likeliest to matter first."""
    yield from _surroundings(case, max_ranks)
    yield from _plan(case)
    yield from _checkpoints(case)
    yield from _model(case)
    yield from _program(case)


def _is_sound(case: CaseSpec) -> bool:
    try:
        check(case)
    except CaseError:
        return False
    return True


def _is_same(key: str, other: str, case: CaseSpec, changed: CaseSpec) -> bool:
    """Whether two keys name the same defect; that of the other API has its name in the key."""
    if case.api != changed.api:
        key = key.replace(f"/{case.api}", f"/{changed.api}", 1)
    return key == other


def _surroundings(case: CaseSpec, max_ranks: int) -> Iterator[Variation]:
    other = _other_api(case)
    if other is not None:
        yield Variation(f"with {other.api.upper()}", other, "surrounding")
    highest = max(
        (max(op.ranks, default=0) for op in case.program if hasattr(op, "ranks")), default=0
    )
    for size in (1, 2, 3, 4):
        if size != case.world_size and highest < size <= max_ranks:
            changed = replace(case, world_size=size)
            yield Variation(f"at world size {size}", changed, "surrounding")


def _other_api(case: CaseSpec) -> CaseSpec | None:
    """The case under the other API with as much alike as that has; the options are its defaults."""
    if case.twins or case.probes:
        return None
    paths = planned_units(case)
    if isinstance(case.plan, Fsdp2Plan):
        first = tuple(Fsdp1Unit(path=path, use_orig_params=True) for path in paths)
        return replace(case, plan=Fsdp1Plan(units=first))
    ignored = {unit.path: unit.ignored for unit in case.plan.units}
    second = tuple(Fsdp2Unit(path=path, ignored=ignored.get(path, ())) for path in paths)
    return replace(case, plan=Fsdp2Plan(units=second))


_UNIT_OPTIONS: tuple[tuple[str, str], ...] = (
    ("use_orig_params", "use_orig_params={}"),
    ("sharding", "{}"),
    ("backward_prefetch", "backward_prefetch={}"),
    ("forward_prefetch", "forward_prefetch={}"),
    ("limit_all_gathers", "limit_all_gathers={}"),
    ("reshard_after_forward", "reshard_after_forward={}"),
    ("cpu_offload", "CPU offload"),
    ("precision", "mixed precision"),
    ("ignored", "ignored modules"),
)


def _plan(case: CaseSpec) -> Iterator[Variation]:
    plan = case.plan
    for field, words in _UNIT_OPTIONS:
        values = [getattr(unit, field) for unit in plan.units if hasattr(unit, field)]
        default = getattr(type(plan.units[0])(path=""), field, None)
        special = [value for value in values if value != default]
        if special:
            units = tuple(replace(unit, **{field: default}) for unit in plan.units)
            yield Variation(words.format(special[0]), _with_units(case, units))
    if isinstance(plan, Fsdp1Plan) and plan.wrap != "nested":
        names = {unit.path: unit for unit in plan.units}
        root = names[""]
        nested = tuple(names.get(p, replace(root, path=p, ignored=())) for p in planned_units(case))
        words = {"custom_policy": "CustomPolicy", "module_classes": "ModuleWrapPolicy"}[plan.wrap]
        yield Variation(words, replace(case, plan=Fsdp1Plan(units=nested)))
    paths = [unit.path for unit in plan.units]
    if len(paths) > 1 and "" in paths:
        root_only = tuple(unit for unit in plan.units if not unit.path)
        yield Variation("nested units", _with_units(case, root_only))


def _with_units(case: CaseSpec, units: tuple[Any, ...]) -> CaseSpec:
    plan = case.plan
    if isinstance(plan, Fsdp1Plan) and plan.wrap == "custom_policy" and len(units) == 1:
        return replace(case, plan=Fsdp1Plan(units=units))
    return replace(case, plan=replace(plan, units=units))


def _checkpoints(case: CaseSpec) -> Iterator[Variation]:
    checkpoints = case.checkpoints
    if not checkpoints:
        return
    kinds = sorted({c.kind for c in checkpoints})
    names = {
        "wrapper": "checkpoint_wrapper",
        "function": "torch.utils.checkpoint",
        "composable": "composable checkpoint",
        "offload": "activation offload",
        "function_offload": "checkpoint under save_on_cpu",
    }
    yield Variation(" and ".join(names[kind] for kind in kinds), replace(case, checkpoints=()))
    if any(c.reentrant for c in checkpoints):
        calm = tuple(replace(c, reentrant=False) for c in checkpoints)
        yield Variation("reentrant checkpointing", replace(case, checkpoints=calm))
    units = set(planned_units(case))
    for side, other in (("around", "inside"), ("inside", "around")):
        if any(c.side == side and c.path in units for c in checkpoints):
            moved = tuple(replace(c, side=other) for c in checkpoints)
            yield Variation(f"the checkpoint {side} the unit", replace(case, checkpoints=moved))


def _model(case: CaseSpec) -> Iterator[Variation]:
    if case.frozen:
        yield Variation("frozen parameters", replace(case, frozen=()))
    if case.ties:
        yield Variation("tied parameters", replace(case, ties=()))
    if isinstance(case.inputs, Dense) and case.inputs.requires_grad:
        inputs = replace(case.inputs, requires_grad=False)
        yield Variation("inputs that require grad", replace(case, inputs=inputs))
    if case.held_out:
        yield Variation("parameters kept from the optimizer", replace(case, held_out=()))


def _program(case: CaseSpec) -> Iterator[Variation]:
    program = case.program
    if case.optimizer is not None and case.optimizer.name != "sgd":
        name = {"adam": "Adam", "adamw": "AdamW"}[case.optimizer.name]
        sgd = replace(case.optimizer, name="sgd")
        yield Variation(name, replace(case, optimizer=sgd))
    if case.optimizer is not None and case.optimizer.foreach is not None:
        any_way = replace(case.optimizer, foreach=None)
        words = f"foreach={case.optimizer.foreach}"
        yield Variation(words, replace(case, optimizer=any_way))
    if any(isinstance(op, Forward) and not op.sync for op in program):
        synced = tuple(replace(op, sync=True) if isinstance(op, Forward) else op for op in program)
        yield Variation("no_sync", replace(case, program=synced))
    single = _one_backward_each(case)
    if single != program:
        yield Variation("gradient accumulation", replace(case, program=single))
    if any(isinstance(op, ZeroGrad) and not op.set_to_none for op in program):
        none = tuple(ZeroGrad() if isinstance(op, ZeroGrad) else op for op in program)
        yield Variation("zero_grad(set_to_none=False)", replace(case, program=none))
    if any(isinstance(op, Mode) for op in program):
        left = tuple(op for op in program if not isinstance(op, Mode))
        yield Variation("a switch between train and eval", replace(case, program=left))
    if any(isinstance(op, Forward) and op.target for op in program):
        root = tuple(replace(op, target="") if isinstance(op, Forward) else op for op in program)
        yield Variation("a forward of another module than the root", replace(case, program=root))
    if case.loss == "sum":
        yield Variation("output.sum() as the loss", replace(case, loss="projection"))


def _one_backward_each(case: CaseSpec) -> tuple[Any, ...]:
    """The program without the forwards and backwards that only accumulate."""
    kept: list[Any] = []
    for op in case.program:
        if isinstance(op, Step | ZeroGrad):
            kept.append(op)
            continue
        if isinstance(op, Backward) and len(kept) > 2 and isinstance(kept[-2], Backward):
            kept = [*kept[:-3], kept[-1]] if isinstance(kept[-3], Forward) else kept
        kept.append(op)
    return tuple(kept)
