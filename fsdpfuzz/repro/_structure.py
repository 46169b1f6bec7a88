"""Checks that need no reference, as source: freezing, resharding, units, memory, state dicts."""

from __future__ import annotations

from dataclasses import dataclass, field

from fsdpfuzz.repro._aim import Aim
from fsdpfuzz.repro._layout import Call, listing, statement
from fsdpfuzz.repro._names import FLAT, cleaned
from fsdpfuzz.repro._state import only_on_rank0, taken
from fsdpfuzz.repro._wrap import Lines
from fsdpfuzz.spec import (
    Buffered,
    CaseSpec,
    Fsdp1Plan,
    Fsdp1Unit,
    RequiresGrad,
    case_places,
    frozen_names,
    grad_bytes,
    grads_known,
    planned_units,
    shard_bytes,
    unit_of,
    unit_owner,
)
from fsdpfuzz.verdict import Finding

_FSDP = "torch.distributed.fsdp"
_STORED = '("_local_shard", "_full_param_padded", "_full_prec_full_param_padded", "_mp_shard")'


@dataclass(slots=True)
class CheckText(Lines):
    """``lines`` stand at the end of the script, the others at the end of the training.

    ``right`` is what the reference returns and ``seen`` what FSDP returns, if it is not the
    same; ``lines_before`` comes before both.
    """

    first: list[str] = field(default_factory=list)
    """What comes before the model."""
    sharded: list[str] = field(default_factory=list)
    """What comes right after the sharding."""
    named: bool = False
    """Whether the parameters by name are used, as they are before the training."""
    lines_before: list[str] = field(default_factory=list)
    right: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)


def structure(out: CheckText, aim: Aim, finding: Finding | None) -> None:
    """Fills ``wrong`` for a kind of finding that is judged by FSDP's training alone."""
    case = aim.case
    match aim.kind:
        case "frozen":
            _frozen(out, case, changed=finding is not None and finding.where.endswith("changed"))
        case "units":
            _units(out, case)
        case "unsharded":
            _unsharded(out, case)
        case "bytes" if finding is not None:
            _bytes(out, case, finding)
        case "state_keys":
            _state_keys(out, case)
        case "round_trip":
            _round_trip(out, case)
        case _:
            pass


def _frozen(out: CheckText, case: CaseSpec, *, changed: bool) -> None:
    unfrozen = {n for op in case.program if isinstance(op, RequiresGrad) for n in op.parameters}
    names = [f'"{name}"' for name in sorted(frozen_names(case) - unfrozen)]
    first = isinstance(case.plan, Fsdp1Plan)
    out.lines += statement("frozen = ", listing(*names))
    if first and not changed:
        out.lines += [
            "for p in model.parameters():  # put there, gradients are gathered like parameters",
            "    p.data.copy_(torch.zeros_like(p) if p.grad is None else p.grad)",
        ]
    if first:
        out.lines.append("seen = model.state_dict()")
    else:
        value = "p.detach()" if changed else "torch.zeros_like(p) if p.grad is None else p.grad"
        out.lines += [
            "seen = {",
            f"    {cleaned(case)}: {value}",
            "    for name, p in model.named_parameters()",
            "}",
            "for name, value in seen.items():",
            '    seen[name] = value.full_tensor() if hasattr(value, "full_tensor") else value',
        ]
    if changed:
        out.lines.append("initial = build(torch.float32).state_dict()")
        test, words = "not torch.equal(seen[name], initial[name])", "was changed"
    else:
        test, words = "seen[name].any()", "has a gradient"
    out.lines += [
        "wrong = [",
        f'    f"reproduced: {{name}} is frozen, but {words}"',
        "    for name in frozen",
        f"    if name in seen and {test}",
        "]",
    ]


def _units(out: CheckText, case: CaseSpec) -> None:
    kind = "FSDP" if isinstance(case.plan, Fsdp1Plan) else "FSDPModule"
    if kind == "FSDPModule":
        out.need(_FSDP, kind)
    planned = listing(*(f'"{path}"' for path in sorted(planned_units(case))))
    name = cleaned(case, 'f"{name}."') + '.rstrip(".")'
    out.lines += statement("planned = ", planned)
    out.lines += [
        "units = sorted(",
        f"    {name}",
        "    for name, m in model.named_modules()",
        f"    if isinstance(m, {kind})",
        ")",
        'text = f"reproduced: units {units}, but should be {planned}"',
        "wrong = [] if units == planned else [text]",
    ]


def _unsharded(out: CheckText, case: CaseSpec) -> None:
    if not isinstance(case.plan, Fsdp1Plan):
        out.need("torch.distributed.tensor", "DTensor")
        loose = sorted(name for name, owner in unit_owner(case).items() if owner is None)
        skip = f" and {cleaned(case)} not in {loose}".replace("'", '"') if loose else ""
        out.lines += [
            "wrong = [",
            '    f"reproduced: {name} is not sharded"',
            "    for name, p in model.named_parameters()",
            f"    if not isinstance(p, DTensor){skip}",
            "]",
        ]
        return
    out.lines += [
        "wrong = []",
        "for name, unit in model.named_modules():",
        "    handle = unit._handle if isinstance(unit, FSDP) else None",
        "    if handle is not None and handle.uses_sharded_strategy:",
        "        flat = handle.flat_param",
        "        whole = flat._full_param_padded.untyped_storage().size()",
        "        if whole or flat.data.shape != flat._local_shard.shape:",
        '            wrong.append(f"reproduced: unit {name!r} holds {whole} whole bytes")',
    ]


def _bytes(out: CheckText, case: CaseSpec, finding: Finding) -> None:
    """What a rank holds after the program; the right number depends on the rank for gradients."""
    first = isinstance(case.plan, Fsdp1Plan)
    if finding.invariant == "grad_bytes":
        per_rank = [str(grad_bytes(case, rank)) for rank in range(case.world_size)]
        right = f"{per_rank}[rank]".replace("'", "")
        relation = "!=" if grads_known(case) else ">"
        out.lines += [
            "grads = [p.grad for p in model.parameters() if p.grad is not None]",
            'grads = [getattr(grad, "_local_tensor", grad) for grad in grads]',
            "held = sum(grad.numel() * grad.element_size() for grad in grads)",
        ]
    else:
        right, relation = str(shard_bytes(case)), "!="
        out.lines.append("tensors = list(model.parameters())")
        if first:
            out.lines += [
                "for unit in FSDP.fsdp_modules(model):",
                "    if unit._handle is not None:",
                "        flat = unit._handle.flat_param",
                f"        names = {_STORED}",
                "        tensors += [flat, *(getattr(flat, name, None) for name in names)]",
            ]
        out.lines += [
            "storages = {}",
            "for tensor in tensors:",
            "    if tensor is not None:",
            '        storage = getattr(tensor, "_local_tensor", tensor).untyped_storage()',
            "        storages[storage._cdata] = storage.nbytes()",
            "held = sum(storages.values())",
        ]
    out.lines += [
        f"right = {right}",
        "wrong = []",
        f"if held {relation} right:",
        '    wrong.append(f"reproduced: {held} bytes, but should be {right}")',
    ]


def _state_keys(out: CheckText, case: CaseSpec) -> None:
    op = taken(case)[0]
    out.lines.append("plain, state = build(torch.float32).state_dict(), kept[0]")
    keys = "plain.keys()"
    if op.form == "local":
        keys = "keys"
        names = (f'"{key}"' for key in _local_keys(case))
        out.lines += statement("keys = ", Call("", tuple(names), "{}"))
    out.lines += [
        f'wrong = [f"reproduced: {{key}} is missing" for key in sorted({keys} - state.keys())]',
        f'wrong += [f"reproduced: {{key}} is unexpected" for key in sorted(state.keys() - {keys})]',
        "for key in sorted(plain.keys() & state.keys()):",
        "    form, right = [(v.size(), v.dtype) for v in (state[key], plain[key])]",
        "    if form != right:",
        '        wrong.append(f"reproduced: {key} is {form}, but should be {right}")',
    ]
    if only_on_rank0(case, op):
        out.lines += ["if rank > 0:  # only rank 0 gets the state dict", "    wrong = []"]


def _local_keys(case: CaseSpec) -> list[str]:
    keys = []
    for fqn, owner in unit_owner(case).items():
        unit = None if owner is None else unit_of(case.plan, owner)
        if not isinstance(unit, Fsdp1Unit) or unit.sharding == "NO_SHARD":
            keys.append(fqn)
        else:
            keys.append(f"{owner}.{FLAT}" if owner else FLAT)
    return sorted(set(keys))


def _round_trip(out: CheckText, case: CaseSpec) -> None:
    fleeting = [
        f'"{name}"'
        for place in case_places(case)
        if isinstance(place.node, Buffered) and not place.node.persistent
        for name in place.buffers
    ]
    skip = f" and name not in [{', '.join(fleeting)}]" if fleeting else ""
    out.lines += [
        "wrong = []",
        "saved = [*model.named_parameters(), *model.named_buffers()]",
        "loaded = [*kept[-1].named_parameters(), *kept[-1].named_buffers()]",
        "for (name, a), (_, b) in zip(saved, loaded, strict=True):",
        '    a, b = getattr(a, "_local_tensor", a), getattr(b, "_local_tensor", b)',
        f"    if not torch.equal(a, b){skip}:",
        '        wrong.append(f"reproduced: {name}: {a} was saved, {b} loaded")',
    ]
