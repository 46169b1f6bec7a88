"""The one check of a script, as source.

Each check fills ``wrong``, a list of texts on this rank. What the training of the reference
returned is in ``right``, what FSDP's returned in ``seen``, both tensors by name.
"""

from __future__ import annotations

from math import log2

from fsdpfuzz.invariants import ABSOLUTE, LARGE, UNDERFLOW, WOBBLE, adaptive_wobble
from fsdpfuzz.repro._aim import Aim
from fsdpfuzz.repro._layout import STEP, WIDTH, Call, indented, listing, statement
from fsdpfuzz.repro._names import cleaned
from fsdpfuzz.repro._program import Kept
from fsdpfuzz.repro._questions import may_lack_grads
from fsdpfuzz.repro._state import only_on_rank0, taken
from fsdpfuzz.repro._structure import CheckText, structure
from fsdpfuzz.repro._watched import watched
from fsdpfuzz.repro._wrap import recomputes
from fsdpfuzz.spec import (
    Buffered,
    CaseSpec,
    Fsdp1Plan,
    Fsdp1Unit,
    Step,
    case_places,
    planned_units,
    unit_of,
    unit_owner,
    within,
)
from fsdpfuzz.verdict import Finding

_KEPT: dict[str, Kept] = {
    "losses": "loss.detach()",
    "output": "output.detach()",
    "parity": "loss.detach()",
    "input_grad": "x",
    "state_keys": "state",
    "state_values": "state",
    "round_trip": "loaded",
}


def kept(aim: Aim, finding: Finding | None) -> Kept:
    """What the training keeps for a check."""
    if aim.kind == "twins" and finding is not None and finding.where.endswith(":output"):
        return "output.detach()"
    return _KEPT.get(aim.kind, "")


def check_text(aim: Aim, finding: Finding | None) -> CheckText:
    """The statements that compare."""
    out = CheckText()
    case = aim.case
    match aim.kind:
        case "twins":
            _alike(out, aim, finding)
            return out
        case "offloads" | "reshards" | "order_warning" | "tracker":
            watched(out, aim, finding)
            return out
        case "loss":
            out.right.append('return {"loss": loss.detach()}')
        case "output":
            out.right.append('return {"output": kept[-1]}')
        case "input_grad":
            out.right.append('return {f"input {i}": x.grad for i, x in enumerate(kept)}')
        case "grad":
            missing = finding is not None and finding.where.endswith("-missing")
            _gradients(out, case, may_lack=missing or may_lack_grads(case), both=True)
        case "param":
            _parameters(out, case)
        case "parity":
            losses = 'losses = {f"loss {i}": loss for i, loss in enumerate(kept)}'
            out.lines_before.append(losses)
            _parameters(out, case, " | losses")
        case "state_values":
            _state_values(out, case)
        case "buffer":
            out.right += _returned(
                f"{cleaned(case)}: b for name, b in model.named_buffers()", depth=1
            )
        case _:
            structure(out, aim, finding)
            return out
    _compare(out, aim)
    return out


def _alike(out: CheckText, aim: Aim, finding: Finding | None) -> None:
    """What a twin and the case have to agree in; either is trained by FSDP."""
    case, usual = aim.case, aim.usual or aim.case
    quantity = finding.where.rpartition(":")[2] if finding is not None else "param"
    apart: list[str] = []
    match quantity:
        case "loss":
            out.seen.append('return {"loss": loss.detach()}')
        case "output":
            out.seen.append('return {"output": kept[-1]}')
        case "grad":
            _gradients(out, case, may_lack=True, both=False)
            apart = sorted(set(case.frozen) ^ set(usual.frozen))
        case _:
            _parameters(out, case)
    out.right.clear()
    exact = finding is not None and " exactly " in finding.message
    skip = statement("apart = ", listing(*(f'"{name}"' for name in apart))) if apart else []
    out.lines += [
        "usual, seen = train(twin=False), train(twin=True)",
        *skip,
        "wrong = []",
        f"for name in sorted(usual.keys() & seen.keys(){' - set(apart)' if apart else ''}):",
        "    right, value = usual[name], seen[name]",
    ]
    if exact:
        out.lines.append("    if not torch.equal(value, right):")
    else:
        relative = "1.3e-6"
        if _coarsest(case) != "float32":
            relative = "{torch.bfloat16: 1.6e-2, torch.float16: 1e-3}.get(right.dtype, 1.3e-6)"
            out.lines.append(f"    rtol = {relative}")
            relative = "rtol"
        eps = "torch.finfo(right.dtype).eps"
        least = ABSOLUTE + adaptive_wobble(usual, len(usual.program))
        out.lines += [
            f"    atol = {least:.3g} + {WOBBLE:g} * {eps} * max(0, right.abs().max() - {LARGE:g})",
            f"    if not torch.allclose(value, right, rtol={relative}, atol=float(atol)):",
        ]
    out.lines += [
        "        off = (value - right).abs().max()",
        '        wrong.append(f"reproduced: {name} is off by {off:.3g} in the twin")',
    ]


def _gradients(out: CheckText, case: CaseSpec, *, may_lack: bool, both: bool) -> None:
    """``both`` says whether the training of the reference has to return them as well."""
    if _are_alike(case, fsdp=not both):
        _gradients_alike(out, may_lack=may_lack, both=both)
        return
    grad = "torch.zeros_like(p) if p.grad is None else p.grad" if may_lack else "p.grad"
    out.right += _returned(f"{_plain(case)}: {grad} for name, p in {_named(case)}", depth=1)
    if _shows_whole(case):
        # Kept from before: a unit may have other parameters by now.
        out.sharded.append("shown = dict(model.named_parameters())")
        out.seen += _returned(f"{cleaned(case)}: {grad} for name, p in shown.items()")
    elif isinstance(case.plan, Fsdp1Plan):
        out.seen += [
            "for p in model.parameters():  # put there, gradients are gathered like parameters",
            f"    p.data.copy_({grad})",
        ]
        if _can_be_saved(case):
            out.seen.append("return model.state_dict()")
        else:
            _summoned(out, case, "p.detach()")
    else:
        _whole(out, case, f"({grad})" if may_lack else grad)


def _are_alike(case: CaseSpec, *, fsdp: bool) -> bool:
    """Whether all that train have parameters of the same names, and fsdp2 shards them all.

    ``fsdp`` says that there is no reference among them.
    """
    return (
        not isinstance(case.plan, Fsdp1Plan)
        and not case.ties
        and None not in unit_owner(case).values()
        and not any(unit.cpu_offload for unit in case.plan.units)
        and (fsdp or cleaned(case) in ("name", _plain(case)))
    )


def _gradients_alike(out: CheckText, *, may_lack: bool, both: bool) -> None:
    # A unit that no backward reaches, or one too many, may be whole, with other parameters.
    out.named = True
    lines = out.right if both else out.seen
    if not may_lack:
        each = "name: p.grad.full_tensor() if fsdp else p.grad for name, p in named.items()"
        lines.append(f"return {{{each if both else each.replace(' if fsdp else p.grad', '')}}}")
        return
    whole = "grad.full_tensor() if fsdp else grad" if both else "grad.full_tensor()"
    lines += [
        *statement(
            "grads = ",
            Call(
                "",
                (
                    "name: torch.zeros_like(p) if p.grad is None else p.grad "
                    "for name, p in named.items()",
                ),
                "{}",
            ),
            depth=1,
        ),
        f"return {{name: {whole} for name, grad in grads.items()}}",
    ]


def _shows_whole(case: CaseSpec) -> bool:
    """Whether every unit of fsdp1 shows original parameters, none of them cut."""
    plan = case.plan
    return isinstance(plan, Fsdp1Plan) and all(
        unit.use_orig_params and unit.sharding == "NO_SHARD" for unit in plan.units
    )


def _summoned(out: CheckText, case: CaseSpec, value: str, more: str = "") -> None:
    """Whole tensors by name from fsdp1, whose state dicts need units that are sharded."""
    out.seen.append("with FSDP.summon_full_params(model):")
    each = f"{cleaned(case)}: {value}.clone() for name, p in model.named_parameters()"
    out.seen += indented(_returned(each, more, depth=3))


def _can_be_saved(case: CaseSpec) -> bool:
    """Whether a state dict can be taken. Under ``NO_SHARD`` it fails where no backward came."""
    units = (unit_of(case.plan, path) for path in planned_units(case))
    return not any(isinstance(u, Fsdp1Unit) and u.sharding == "NO_SHARD" for u in units)


def _parameters(out: CheckText, case: CaseSpec, more: str = "") -> None:
    out.right += _returned(f"{_plain(case)}: p.detach() for name, p in {_named(case)}", more, 1)
    if not isinstance(case.plan, Fsdp1Plan):
        _whole(out, case, "p.detach()", more)
    elif _can_be_saved(case):
        out.seen.append(f"return model.state_dict(){more}")
    else:
        _summoned(out, case, "p.detach()", more)


def _plain(case: CaseSpec) -> str:
    """A parameter's name in the reference, which only sometimes recomputes."""
    return cleaned(case, fsdp=False) if recomputes(case) else "name"


def _named(case: CaseSpec) -> str:
    return f"model.named_parameters({'remove_duplicate=False' if case.ties else ''})"


def _state_values(out: CheckText, case: CaseSpec) -> None:
    out.right.append("return dict(model.state_dict())")
    op = taken(case)[-1]
    if op.form == "local":
        out.seen.append("return kept[-1].state_dict()")
    elif only_on_rank0(case, op):
        out.seen.append("return kept[-1] if rank == 0 else {}")
    else:
        out.need("torch.distributed._state_dict_utils", "_gather_state_dict")
        out.seen.append("return _gather_state_dict(kept[-1])")


def _whole(out: CheckText, case: CaseSpec, value: str, more: str = "") -> None:
    """Whole tensors by name from fsdp2."""
    if any(unit.cpu_offload for unit in case.plan.units):
        value += ".to(device)"
    source = "model.named_parameters()"
    if may_lack_grads(case) or any(c.reentrant for c in case.checkpoints):
        # A unit that no backward reaches, or one too many, may be whole, with other parameters.
        out.sharded.append("sharded = dict(model.named_parameters())")
        source = "sharded.items()"
    if None in unit_owner(case).values():
        out.need("torch.distributed.tensor", "DTensor")
        out.seen += [
            f"held = {{{cleaned(case)}: {value} for name, p in {source}}}",
            "for name, part in held.items():",
            "    held[name] = part.full_tensor() if isinstance(part, DTensor) else part",
            f"return held{more}",
        ]
        return
    whole = f"{cleaned(case)}: {value}.full_tensor() for name, p in {source}"
    out.seen += _returned(whole, more)


def _returned(comprehension: str, more: str = "", depth: int = 2) -> list[str]:
    """A return of a dict comprehension, in as many lines as it takes so far in."""
    line = f"return {{{comprehension}}}{more}"
    if len(line) + depth * len(STEP) <= WIDTH:
        return [line]
    element, _, rest = comprehension.partition(" for ")
    if len(comprehension) + (depth + 1) * len(STEP) <= WIDTH:
        return ["return {", f"{STEP}{comprehension}", f"}}{more}"]
    return ["return {", f"{STEP}{element}", f"{STEP}for {rest}", f"}}{more}"]


def _compare(out: CheckText, aim: Aim) -> None:
    case = aim.case
    out.lines.append("right, seen = train(fsdp=False), train(fsdp=True)")
    if aim.kind == "buffer":
        out.lines += [
            "wrong = [",
            '    f"reproduced: {name}={seen[name]}, but should be {value}"',
            "    for name, value in right.items()",
            f"    if {_skip(case)}not torch.equal(seen[name].to(value), value)",
            "]",
        ]
        return
    stated = aim.kind == "state_values"
    # Of what goes by two names, or was left by no backward, not every name need be there.
    tied = case.ties and not isinstance(case.plan, Fsdp1Plan)
    exact = stated and not any(isinstance(op, Step) for op in case.program)
    allowed: list[str] = []
    test, bound, begin = "not error <= 0", "0", "wrong = []"
    if not exact:
        begin = "wrong, largest = [], max(value.abs().max() for value in right.values())"
        eps = f"{_growth(case, aim)}torch.finfo(torch.{_coarsest(case)}).eps"
        allowed.append(f"    allowed = {eps} * (256 * value.abs().max() + 32 * largest)")
        if _coarsest(case) == "float16":
            lost = f"{_growth(case, aim)}2**{int(log2(UNDERFLOW))}"
            allowed.append(f"    allowed += {lost}  # what float16 is too coarse for near zero")
        test, bound = "not error <= allowed", "{allowed:.3g}"
    loop = ["for name, value in right.items():"]
    if tied or stated or not _can_be_saved(case):
        loop = ["for name in seen:", "    value = right[name]"]
    out.lines += [
        begin,
        *loop,
        "    error = (seen[name].to(value) - value).abs().max()",
        *allowed,
        f"    if {test}:",
        '        wrong.append(f"reproduced: {name} is off by {error:.3g}, above ' + f'{bound}")',
    ]


def _growth(case: CaseSpec, aim: Aim) -> str:
    """Losses and outputs are sums of that many terms."""
    if aim.kind in ("grad", "param", "state_values"):
        return ""
    terms = case.inputs.batch * max(place.width_out for place in case_places(case))
    terms *= case.inputs.length or 1
    return f"{terms**0.5:.3g} * "


def _skip(case: CaseSpec) -> str:
    """A condition that leaves out counters of recomputed forwards, which are not defined."""
    recomputed = [c.path for c in case.checkpoints if c.kind != "offload"]
    names = [
        buffer
        for place in case_places(case)
        if isinstance(place.node, Buffered) and place.node.updates
        for buffer in place.buffers
        if any(within(place.path, path) for path in recomputed)
    ]
    return f"name not in {names} and ".replace("'", '"') if names else ""


def _coarsest(case: CaseSpec) -> str:
    names = {
        name
        for unit in case.plan.units
        if unit.precision is not None
        for name in (unit.precision.param, unit.precision.reduce, unit.precision.buffer)
    }
    return next((name for name in ("bfloat16", "float16") if name in names), "float32")
