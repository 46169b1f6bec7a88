"""The one check of a script, as source.

Each check fills ``wrong``, a list of texts on this rank. What the training of the reference
returned is in ``right``, what FSDP's returned in ``seen``, both tensors by name.
"""

from __future__ import annotations

from fsdpfuzz.repro._aim import Aim
from fsdpfuzz.repro._layout import STEP, WIDTH, indented
from fsdpfuzz.repro._names import cleaned
from fsdpfuzz.repro._program import Kept, may_lack_grads
from fsdpfuzz.repro._state import only_on_rank0, taken
from fsdpfuzz.repro._structure import CheckText, structure
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

KEPT: dict[str, Kept] = {
    "losses": "loss.detach()",
    "parity": "loss.detach()",
    "input_grad": "x",
    "state_keys": "state",
    "state_values": "state",
    "round_trip": "loaded",
}
"""What the training keeps for a check."""


def check_text(aim: Aim, finding: Finding | None) -> CheckText:
    """The statements that compare."""
    out = CheckText()
    case = aim.case
    match aim.kind:
        case "loss" | "output":
            out.right.append(f'return {{"{aim.kind}": {aim.kind}}}')
        case "input_grad":
            out.right.append('return {f"input {i}": x.grad for i, x in enumerate(kept)}')
        case "grad":
            missing = finding is not None and finding.where.endswith("-missing")
            _gradients(out, case, may_lack=missing or may_lack_grads(case))
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


def _gradients(out: CheckText, case: CaseSpec, *, may_lack: bool) -> None:
    grad = "torch.zeros_like(p) if p.grad is None else p.grad" if may_lack else "p.grad"
    out.right += _returned(f"{_plain(case)}: {grad} for name, p in {_named(case)}", depth=1)
    if isinstance(case.plan, Fsdp1Plan):
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
    if may_lack_grads(case):
        # A unit that no backward reaches may stay whole, and then has other parameters.
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
    allowed = "allowed = 0.0"
    if not exact:
        out.lines.append("largest = max(value.abs().max() for value in right.values())")
        allowed = f"allowed = {_growth(case, aim)}torch.finfo(torch.{_coarsest(case)}).eps"
        allowed += " * (256 * value.abs().max() + 32 * largest)"
    loop = ["for name, value in right.items():"]
    if tied or stated or not _can_be_saved(case):
        loop = ["for name in seen:", "    value = right[name]"]
    out.lines += [
        "wrong = []",
        *loop,
        "    error = (seen[name].to(value) - value).abs().max()",
        f"    {allowed}",
        "    if not error <= allowed:",
        '        wrong.append(f"reproduced: {name} is off by {error:.3g}, above {allowed:.3g}")',
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
