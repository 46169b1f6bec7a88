"""Saving a state dict and loading it into another model, as source."""

from __future__ import annotations

from fsdpfuzz.repro._layout import Call, Expression, call, indented, statement
from fsdpfuzz.repro._wrap import Lines
from fsdpfuzz.spec import CaseSpec, Fsdp1Plan, StateDict

_TYPES = {"full": "FULL", "sharded": "SHARDED", "local": "LOCAL"}
_CONFIGS = {"full": "FullStateDict", "sharded": "ShardedStateDict", "local": "LocalStateDict"}
_FSDP1 = "torch.distributed.fsdp"
_FSDP2 = "torch.distributed.checkpoint.state_dict"


def taken(case: CaseSpec) -> list[StateDict]:
    """The different state dicts that the program takes."""
    found: list[StateDict] = []
    for op in case.program:
        if isinstance(op, StateDict) and op not in found:
            found.append(op)
    return found


def names(case: CaseSpec, op: StateDict) -> tuple[str, str]:
    """The names of the functions that save and load a state dict."""
    several = len(taken(case)) > 1
    number = str(taken(case).index(op) + 1) if several else ""
    return f"save{number}", f"restored{number}"


def only_on_rank0(case: CaseSpec, op: StateDict) -> bool:
    """Whether the other ranks get nothing."""
    if isinstance(case.plan, Fsdp1Plan):
        return op.rank0_only
    return op.form == "full" and (op.rank0_only or op.cpu_offload)


def saving(out: Lines, case: CaseSpec, op: StateDict, depth: int) -> list[str]:
    """Statements that save what ``op`` asks for as ``state``."""
    if isinstance(case.plan, Fsdp1Plan):
        return [*_context(out, op, depth, saving=True), "    state = model.state_dict()"]
    return _save2(out, op, "state = ", depth)


def functions(case: CaseSpec, used: str, *, values: bool) -> Lines:
    """``save(model)`` and ``restored(state)`` for each state dict, if ``used`` calls them.

    ``values`` says whether it matters what is loaded, and not only that it can be.
    """
    out = Lines()
    first = isinstance(case.plan, Fsdp1Plan)
    other = (*_BUILD, *(_EMPTY if values else ()), _SHARD)
    for op in taken(case):
        save, restored = names(case, op)
        if f"{save}(" in used:
            body = _save1(out, op) if first else _save2(out, op, "return ", 1)
            out.lines += ["", "", f"def {save}(model):", *indented(body)]
        if f"{restored}(" in used:
            body = _load1(out, op) if first else _load2(out, case, op)
            out.lines += ["", "", f"def {restored}(state):", *indented([*other, *body])]
            out.lines.append("    return model")
    return out


_BUILD = ("model = build(torch.float32)",)
_EMPTY = (
    "for tensor in model.state_dict().values():  # differs in every element from what was saved",
    "    tensor.copy_(torch.where(tensor == 0, -1, 0))",
)
_SHARD = "model = shard(model)"


def _save1(out: Lines, op: StateDict) -> list[str]:
    return [*_context(out, op, 1, saving=True), "    return model.state_dict()"]


def _load1(out: Lines, op: StateDict) -> list[str]:
    lines = []
    if op.rank0_only:
        lines += [
            "holder = [state]",
            "dist.broadcast_object_list(holder, src=0, device=device)",
            "state = holder[0]",
        ]
    return [
        *lines,
        *_context(out, op, 1, saving=False),
        "    model.load_state_dict(dict(state))",
    ]


def _context(out: Lines, op: StateDict, depth: int, *, saving: bool) -> list[str]:
    out.need(_FSDP1, "FullyShardedDataParallel as FSDP", "StateDictType")
    args: list[Expression] = ["model", f"StateDictType.{_TYPES[op.form]}_STATE_DICT"]
    options = []
    if saving and op.cpu_offload:
        options.append("offload_to_cpu=True")
    if saving and op.rank0_only:
        options.append("rank0_only=True")
    if options:
        config = f"{_CONFIGS[op.form]}Config"
        out.need(_FSDP1, config)
        args.append(call(config, *options))
    return statement("with ", call("FSDP.state_dict_type", *args), depth=depth, tail=":")


def _save2(out: Lines, op: StateDict, head: str, depth: int) -> list[str]:
    out.need(_FSDP2, "get_model_state_dict")
    options = ["full_state_dict=True"] if op.form == "full" else []
    if op.cpu_offload or op.rank0_only:
        options.append("cpu_offload=True")
    args: list[Expression] = ["model"]
    if options:
        out.need(_FSDP2, "StateDictOptions")
        args.append(Call("options=StateDictOptions", tuple(options)))
    return statement(head, call("get_model_state_dict", *args), depth=depth)


def _load2(out: Lines, case: CaseSpec, op: StateDict) -> list[str]:
    out.need(_FSDP2, "set_model_state_dict")
    options = ["full_state_dict=True"] if op.form == "full" else []
    if only_on_rank0(case, op):
        options.append("broadcast_from_rank0=True")
    args: list[Expression] = ["model", "dict(state)"]
    if options:
        out.need(_FSDP2, "StateDictOptions")
        args.append(Call("options=StateDictOptions", tuple(options)))
    return statement("", call("set_model_state_dict", *args), depth=1)
