"""Options, modules and programs in a few words. What is at its default is left out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import msgspec

from fsdpfuzz.spec import (
    CaseSpec,
    Checkpoint,
    Dense,
    Dropout,
    EncoderLayer,
    Flip,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Unit,
    Inputs,
    Lora,
    Mode,
    Op,
    Optimizer,
    Place,
    Plan,
    Precision,
    Repeat,
    RequiresGrad,
    StateDict,
    Step,
    Switch,
    Transformer,
    ZeroGrad,
    planned_units,
    unit_of,
)

MAX_NAMES = 6

_CHECKPOINTS = {
    "wrapper": "checkpoint_wrapper",
    "function": "checkpoint",
    "composable": "composable checkpoint",
    "offload": "offload_wrapper",
    "function_offload": "checkpoint, save_on_cpu",
}


def unit_options(unit: Fsdp1Unit | Fsdp2Unit) -> dict[str, str]:
    """The options of a unit that differ from PyTorch's defaults, each in a word."""
    found = {name: _option(unit, name) for name in unit.__struct_fields__}
    return {name: word for name, word in found.items() if word}


def common_options(case: CaseSpec, plan: Plan | None = None) -> dict[str, str]:
    """The options other than default that all units of a plan have alike, if there are several."""
    plan = plan or case.plan
    options = [unit_options(unit_of(plan, path)) for path in planned_units(case, plan)]
    if len(options) < 2:
        return {}
    return {
        name: word
        for name, word in options[0].items()
        if all(own.get(name) == word for own in options)
    }


def unit_words(unit: Fsdp1Unit | Fsdp2Unit, said: Collection[str] = ()) -> str:
    """``unit``, and its options that differ from PyTorch's defaults and are not ``said`` yet."""
    words = [word for name, word in unit_options(unit).items() if name not in said]
    return f"unit {', '.join(words)}" if words else "unit"


def units_words(case: CaseSpec, plan: Plan | None = None) -> str:
    """How many units there are, and what all of them have in common."""
    number = len(planned_units(case, plan))
    common = common_options(case, plan)
    counted = f"{number} unit{'' if number == 1 else 's'}"
    return (
        f"{counted}, {'both' if number == 2 else 'all'} {', '.join(common.values())}"
        if common
        else counted
    )


def checkpoint_words(checkpoint: Checkpoint, *, at_unit: bool) -> str:
    """Which checkpointing, reentrant or not, and on which side of a unit it is."""
    text = _CHECKPOINTS[checkpoint.kind]
    if checkpoint.reentrant:
        text += " reentrant"
    return f"{text} {checkpoint.side} the unit" if at_unit else text


def kind_words(place: Place) -> str:
    """What a module is, with the widths that go in and out and its options."""
    kind = place.kind.replace("_", " ")
    node = place.node
    if node is None:
        words: list[str] = []
    elif isinstance(node, Switch):
        words = [f"one of {len(node.children)}"]
    else:
        words = [word for name in node.__struct_fields__ if (word := _node_option(node, name))]
    width = ""
    if place.width_in and place.width_out and place.width_in != place.width_out:
        width = f" {place.width_in}→{place.width_out}"
    elif place.width_out and place.kind in ("linear", "norm", "lora", "idle", "gain", "matrix"):
        width = f" {place.width_out}"
    elif not place.width_in and place.kind in ("embedding", "transformer"):
        width = f" tokens→{place.width_out}"
    return f"{kind}{width}{' ' if words else ''}{', '.join(words)}"


def plan_words(plan: Plan) -> str:
    """The API, and for fsdp1 how the units are told to it."""
    if not isinstance(plan, Fsdp1Plan):
        return "fsdp2"
    if plan.wrap == "module_classes":
        return f"fsdp1, ModuleWrapPolicy({', '.join(plan.classes)})"
    return "fsdp1, CustomPolicy" if plan.wrap == "custom_policy" else "fsdp1, wrapped one by one"


def input_words(inputs: Inputs) -> str:
    """The shape of the inputs, and whether they require grad."""
    if not isinstance(inputs, Dense):
        return f"tokens {inputs.batch}×{inputs.length}"
    shape = [inputs.batch, inputs.width]
    if inputs.length is not None:
        shape.insert(1, inputs.length)
    return "×".join(map(str, shape)) + (", requires grad" if inputs.requires_grad else "")


def optimizer_words(optimizer: Optimizer | None) -> str:
    """Name and settings of the optimizer."""
    if optimizer is None:
        return "none"
    words = [optimizer.name, f"lr {optimizer.lr:g}"]
    if optimizer.name == "sgd":
        words += [f"momentum {optimizer.momentum:g}"] if optimizer.momentum else []
    else:
        words.append(f"eps {optimizer.eps:g}")
    if optimizer.foreach is not None:
        words.append("foreach" if optimizer.foreach else "no foreach")
    return ", ".join(words)


def program_lines(program: Sequence[Op]) -> tuple[str, ...]:
    """One line per optimizer step, equal neighbours joined: ``(forward · backward) ×3``."""
    lines = [
        " · ".join(_folded([op_words(op) for op in chunk], together=False))
        for chunk in _chunks(program)
    ]
    return tuple(_folded(lines, together=True))


def op_words(op: Op) -> str:
    """One operation in a word or few."""
    match op:
        case Forward():
            words = ["forward"]
            words += [f"of {op.target}"] if op.target else []
            words += [] if op.sync else ["no_sync"]
            words += [] if op.grad else ["no_grad"]
            return " ".join(words)
        case ZeroGrad():
            return "zero_grad" if op.set_to_none else "zero_grad to 0"
        case Mode():
            return "train mode" if op.train else "eval mode"
        case RequiresGrad():
            return f"{'unfreeze' if op.value else 'freeze'} {names(op.parameters)}"
        case Flip():
            where = f" {op.path}" if op.path else ""
            return f"flip{where} on rank {names(tuple(map(str, op.ranks))) or 'none'}"
        case StateDict():
            words = ["state_dict", op.form]
            words += ["rank 0 only"] if op.rank0_only else []
            words += ["to CPU"] if op.cpu_offload else []
            return " ".join(words)
        case _:
            return str(op.__struct_config__.tag)


def names(values: Sequence[str]) -> str:
    """The values with commas, of many only the first ones."""
    shown = ", ".join(values[:MAX_NAMES])
    more = len(values) - MAX_NAMES
    return f"{shown} and {more} more" if more > 0 else shown


def _chunks(program: Sequence[Op]) -> Iterator[list[Op]]:
    """The program cut after each step."""
    chunk: list[Op] = []
    for op in program:
        chunk.append(op)
        if isinstance(op, Step):
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _folded(words: Sequence[str], *, together: bool) -> list[str]:
    """Repeated runs of up to four words written once with their number."""
    out: list[str] = []
    at = 0
    while at < len(words):
        size, times = max(
            ((size, _times(words, at, size)) for size in (1, 2, 3, 4)),
            key=lambda pair: (pair[0] * (pair[1] - 1), -pair[0]),
        )
        if times == 1:
            out.append(words[at])
            at += 1
            continue
        run = list(words[at : at + size])
        if together and size > 1:
            out += [f"{run[0]}  ┐", *(f"{word}  │" for word in run[1:-1]), f"{run[-1]}  ┘ ×{times}"]
        else:
            text = " · ".join(run)
            out.append(f"({text}) ×{times}" if " · " in text else f"{text} ×{times}")
        at += size * times
    return out


def _times(words: Sequence[str], at: int, size: int) -> int:
    times = 1
    while words[at : at + size] == words[at + size * times : at + size * (times + 1)]:
        times += 1
    return times if len(words[at : at + size]) == size else 1


def _option(unit: Fsdp1Unit | Fsdp2Unit, name: str) -> str:
    value = getattr(unit, name)
    if name == "path" or value == _default(type(unit), name):
        return ""
    if isinstance(value, Precision):
        given = [f"{n} {v}" for n, v in msgspec.structs.asdict(value).items() if v is not None]
        return f"precision({', '.join(given)})"
    if name in ("sharding", "backward_prefetch") and value is not None:
        return str(value)
    if name == "ignored":
        return f"ignores {names(value)}"
    plain = value is True and _default(type(unit), name) is False
    return name if plain else f"{name}={value}"


def _node_option(node: msgspec.Struct, name: str) -> str:
    value = getattr(node, name)
    special: dict[tuple[type, str], Callable[[Any], str]] = {
        (Repeat, "times"): lambda times: f"{times} times",
        (Repeat, "no_grad"): lambda what: "" if what == "off" else f"again under no_grad: {what}",
        (Lora, "rank"): lambda rank: f"rank {rank}",
        (Transformer, "heads"): lambda heads: f"{heads} heads",
        (EncoderLayer, "heads"): lambda heads: f"{heads} heads",
        (Dropout, "p"): lambda p: f"p {p:g}",
    }
    if (words := special.get((type(node), name))) is not None:
        return words(value)
    if name in (
        "out",
        "rows",
        "width",
        "hidden",
        "encoders",
        "decoders",
        "children",
        "body",
        "bias",
    ):
        return ""
    if name in ("fn", "merge") or (name == "variant" and value != "layer"):
        return str(value)
    return "" if value == _default(type(node), name) else _flag(name, value)


def _flag(name: str, value: object) -> str:
    words = {"scalar": "", "side": "side input", "buffered": "with buffer"}
    if name == "persistent":
        return "not persistent"
    name = words.get(name, name)
    if isinstance(value, bool):
        return name if value else f"no {name}"
    return f"{name} {value}"


def _default(kind: type[msgspec.Struct], name: str) -> object:
    return next(field.default for field in msgspec.structs.fields(kind) if field.name == name)
