"""The training program as source: a loop where operations repeat, else one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fsdpfuzz.errors import ContractError
from fsdpfuzz.repro._layout import Call, Expression, call, flat, indented, statement
from fsdpfuzz.repro._model import attribute
from fsdpfuzz.repro._names import cleaned, held_in
from fsdpfuzz.repro._repeat import Repeated, repeated, waits
from fsdpfuzz.repro._state import names
from fsdpfuzz.repro._wrap import Lines, in_attribute, recomputes
from fsdpfuzz.spec import (
    Backward,
    CaseSpec,
    Dense,
    Dropout,
    EncoderLayer,
    Flip,
    Forward,
    Fsdp1Plan,
    Mode,
    Op,
    Optimizer,
    RequiresGrad,
    StateDict,
    Step,
    Switch,
    Transformer,
    ZeroGrad,
    case_places,
    unit_owner,
)

PROJECTION = 7919
"""What is added to the seed for the weights of the loss."""
STRIDE = 8
"""Seeds between one forward's inputs and the next one's: one for each rank."""

Kept = Literal["", "loss.detach()", "x", "output", "state", "loaded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """What the statements of a program are written for."""

    reference: bool = False
    """Whether the same statements also train the reference; ``fsdp`` says which it is."""
    keep: Kept = ""
    """What is kept in a list each time it comes about."""


@dataclass(slots=True)
class ProgramText(Lines):
    """Functions that the statements need, and the statements."""

    functions: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Index:
    """The number of a forward: ``factor * i + offset``; a function's is its parameter ``i``."""

    factor: int
    offset: int

    def text(self, constant: int = 0, times: int = 1) -> str:
        """``times * index + constant`` as source, what is zero left out."""
        factor, offset = self.factor * times, self.offset * times + constant
        if not factor:
            return f"{offset}"
        product = "i" if factor == 1 else f"{factor} * i"
        return f"{product} + {offset}" if offset else product


_PARAMETER = _Index(1, 0)


def program_text(case: CaseSpec, manner: Manner, depth: int) -> ProgramText:
    """The operations of ``case`` as statements on ``model``."""
    return _Writer(case, manner, depth).write()


def has_optimizer(case: CaseSpec) -> bool:
    """Whether anything in the program goes through an optimizer."""
    used = any(isinstance(op, Step | ZeroGrad) for op in case.program)
    return used and case.optimizer is not None and any(p.parameters for p in case_places(case))


class _Writer:
    def __init__(self, case: CaseSpec, manner: Manner, depth: int) -> None:
        self.case, self.manner = case, manner
        self.out = ProgramText(depth=depth)
        self.recomputed = in_attribute(case)
        self.several = _several_pending(case.program)
        self.shape: Repeated = repeated(case.program)
        shown = (*self.shape.block, *self.shape.rest)
        self.in_function = sum(isinstance(op, Forward) for op in shown) > 1
        self.average_in_function = sum(isinstance(op, Backward) for op in shown) > 1

    def write(self) -> ProgramText:
        case, out, shape = self.case, self.out, self.shape
        if any(isinstance(op, RequiresGrad | Flip) for op in case.program):
            out.lines.append(
                f"named = {{{cleaned(case)}: p for name, p in model.named_parameters()}}"
            )
        if any(isinstance(op, Flip) for op in case.program):
            out.functions += _FLIP
        if self.in_function:
            self._forward_function()
        if self.manner.reference and self.average_in_function:
            out.functions += ["", "", "def average(model):", *indented(_average(case))]
        if has_optimizer(case) and case.optimizer is not None:
            out.add("optimizer = ", self._optimizer(case.optimizer))
        if self.manner.keep:
            out.lines.append("kept = []")
        if self.several:
            out.lines.append("pending = []")
        each = _forwards(shape.block)
        if shape.block:
            out.lines.append(f"for i in range({shape.times}):")
            out.lines += indented(self._operations(shape.block, each, 0))
        out.lines += self._operations(shape.rest, 0, each * shape.times)
        return out

    def _operations(self, ops: Sequence[Op], factor: int, index: int) -> Iterator[str]:
        left = list(ops)
        while left:
            op = left.pop(0)
            if isinstance(op, Forward) and waits(op) and not op.sync:
                inside: list[Op] = [op]
                while left and not isinstance(inside[-1], Backward):
                    inside.append(left.pop(0))
                yield from self._unsynchronised(inside, factor, index)
                index += _forwards(inside)
            else:
                yield from self._operation(op, _Index(factor, index), synchronised=True)
                index += isinstance(op, Forward)

    def _unsynchronised(self, ops: Sequence[Op], factor: int, index: int) -> Iterator[str]:
        lines: list[str] = []
        for op in ops:
            lines += self._operation(op, _Index(factor, index), synchronised=False)
            index += isinstance(op, Forward)
        rooted = any(not unit.path for unit in self.case.plan.units)
        around = any(not c.path and c.side == "around" for c in self.case.checkpoints)
        if not isinstance(self.case.plan, Fsdp1Plan):
            yield from self._gradient_sync("False", rooted)
            yield from lines
            yield from self._gradient_sync("True", rooted)
        elif rooted and not around and not self.manner.reference:
            yield "with model.no_sync():"
            yield from indented(lines)
        else:
            self.out.need("contextlib", "ExitStack")
            yield "with ExitStack() as stack:"
            yield "    for unit in FSDP.fsdp_modules(model, root_only=True):"
            yield "        stack.enter_context(unit.no_sync())"
            yield from indented(lines)

    def _gradient_sync(self, value: str, rooted: bool) -> Iterator[str]:
        if rooted and not self.manner.reference:
            yield f"model.set_requires_gradient_sync({value})"
            return
        self.out.need("torch.distributed.fsdp", "FSDPModule")
        yield "for unit in model.modules():"
        yield "    if isinstance(unit, FSDPModule):"
        yield f"        unit.set_requires_gradient_sync({value})"

    def _operation(self, op: Op, index: _Index, *, synchronised: bool) -> Iterator[str]:
        match op:
            case Forward():
                yield from self._forward(op, index)
            case Backward():
                yield from self._backward(synchronised)
            case Step():
                if has_optimizer(self.case):
                    yield "optimizer.step()"
            case ZeroGrad():
                owner = "optimizer" if has_optimizer(self.case) else "model"
                yield f"{owner}.zero_grad({'' if op.set_to_none else 'set_to_none=False'})"
            case Mode():
                yield "model.train()" if op.train else "model.eval()"
            case RequiresGrad():
                held = held_in(self.case, op.parameters)
                depth = self.out.depth + 1
                yield from statement("for name in ", _tuple(held), depth=depth, tail=":")
                yield "    if name in named:"
                yield f"        named[name].requires_grad_({op.value})"
            case Flip():
                ranks = ", ".join(map(str, op.ranks))
                number = _switches(self.case).index(op.path)
                prefix = f"{op.path}." if op.path else ""
                yield f"if rank in ({ranks},):"
                yield f'    flip(model, named, {number}, "{prefix}")'
            case StateDict():
                yield from self._state(op)

    def _forward(self, op: Forward, index: _Index) -> Iterator[str]:
        module = attribute(op.target)
        if self.in_function:
            args = [module, index.text(), *(["dtype"] if self.manner.reference else [])]
            head, body = _results(self.manner), call("forward", *args)
            lines = statement(f"{head} = ", body)
        else:
            lines = list(self._inputs(index)) + list(self._outputs(module))
        if op.grad:
            yield from lines
        elif self.in_function:
            yield from ("with torch.no_grad():", *indented(lines))
        else:
            made = list(self._inputs(index))
            yield from (*made, "with torch.no_grad():", *indented(self._outputs(module)))
        if self.manner.keep in ("loss.detach()", "x", "output"):
            yield f"kept.append({self.manner.keep})"
        if self.several and waits(op):
            yield "pending.append(loss)"

    def _inputs(self, index: _Index) -> Iterator[str]:
        case, inputs = self.case, self.case.inputs
        seed = index.text(case.seed + 1, STRIDE)
        yield f"seeded = torch.Generator().manual_seed({seed} + rank)  # other inputs on each rank"
        dtype = ", dtype" if self.manner.reference else ""
        if isinstance(inputs, Dense):
            middle = "" if inputs.length is None else f"{inputs.length}, "
            grad = ".requires_grad_()" if inputs.requires_grad else ""
            shape = f"{inputs.batch}, {middle}{inputs.width}"
            yield f"x = torch.randn({shape}, generator=seeded).to(device{dtype}){grad}"
        else:
            shape = f"({inputs.batch}, {inputs.length})"
            yield f"x = torch.randint({_rows(case)}, {shape}, generator=seeded).to(device)"
        if _drops_out(case):
            yield f"torch.manual_seed({index.text(case.seed)})"

    def _outputs(self, module: str) -> Iterator[str]:
        case = self.case
        through = "call" if self.recomputed & {op.target for op in _calls(case)} else ""
        yield f"output = {through}({module}, x)" if through else f"output = {module}(x)"
        if case.loss == "sum":
            yield "loss = output.sum()"
            return
        seed = f"seeded.manual_seed({case.seed + PROJECTION})"
        yield f"weights = torch.randn(output.shape, generator={seed})"
        yield "loss = (output * weights.to(output)).sum() / len(output)"

    def _forward_function(self) -> None:
        parameters = "module, i, dtype" if self.manner.reference else "module, i"
        self.out.functions += ["", "", f"def forward({parameters}):"]
        self.out.functions += indented([*self._inputs(_PARAMETER), *self._outputs("module")])
        self.out.functions.append(f"    return {_results(self.manner)}")

    def _backward(self, synchronised: bool) -> Iterator[str]:
        if self.several:
            yield "loss = torch.stack(pending).sum()"
            yield "pending.clear()"
        if _may_lack_grad(self.case):
            yield "if loss.requires_grad:  # not if all that was used is frozen"
            yield "    loss.backward()"
        else:
            yield "loss.backward()"
        if self.manner.reference and synchronised:
            yield "if not fsdp:"
            own = ["average(model)"] if self.average_in_function else _average(self.case)
            yield from indented(own)

    def _optimizer(self, request: Optimizer) -> Call:
        out = held_in(self.case, self.case.held_out, whole=True)
        parameters: Expression = "model.parameters()"
        if out:
            self.out.add("held_out = ", _tuple(out))
            parameters = (
                "[p for name, p in model.named_parameters() "
                f"if {cleaned(self.case)} not in held_out]"
            )
        args = [parameters, f"lr={request.lr}"]
        if request.name == "sgd":
            args += [f"momentum={request.momentum}"] if request.momentum else []
        else:
            args.append(f"eps={request.eps}")
            args += ["weight_decay=0.0"] if request.name == "adamw" else []
        args += [] if request.foreach is None else [f"foreach={request.foreach}"]
        kinds = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}
        return call(f"torch.optim.{kinds[request.name]}", *args)

    def _state(self, op: StateDict) -> Iterator[str]:
        save, restored = names(self.case, op)
        lines = [f"state = {save}(model)"]
        if self.manner.keep != "state":
            lines.append(f"loaded = {restored}(state)")
        if self.manner.keep in ("state", "loaded"):
            lines.append(f"kept.append({self.manner.keep})")
        yield from ("if fsdp:", *indented(lines)) if self.manner.reference else lines


_FLIP = """

def flip(model, named, number, prefix):
    switch = [module for module in model.modules() if isinstance(module, Switch)][number]
    old, switch.active = switch.active, (switch.active + 1) % len(switch.branches)
    for branch, value in ((old, False), (switch.active, True)):
        for name, parameter in named.items():
            if name.startswith(f"{prefix}branches.{branch}."):
                parameter.requires_grad_(value)
""".rstrip("\n").split("\n")


def _results(manner: Manner) -> str:
    return {"x": "x, loss", "output": "output, loss"}.get(manner.keep, "loss")


def _average(case: CaseSpec) -> list[str]:
    """What FSDP does with the gradients of the parameters that it manages."""
    each = ["dist.all_reduce(p.grad.div_(ranks))"]
    if may_lack_grads(case):
        each = ["if p.grad is not None:", *indented(each)]
    alone = sorted(fqn for fqn, owner in unit_owner(case).items() if owner is None)
    if not alone:
        return ["for p in model.parameters():", *indented(each)]
    name = cleaned(case, fsdp=False) if recomputes(case) else "name"
    test = Call(f"if {name} not in ", tuple(f'"{fqn}"' for fqn in alone), "[]")
    return [
        "for name, p in model.named_parameters():",
        *indented([*statement("", test, depth=4, tail=":"), *indented(each)]),
    ]


def may_lack_grads(case: CaseSpec) -> bool:
    """Whether a parameter may have no gradient at all."""
    found = case_places(case)
    return (
        _may_lack_grad(case)
        or bool(case.frozen)
        or any(place.kind == "switch" for place in found)
        or any(not p.used for place in found for p in place.parameters)
        or any(op.target for op in _calls(case))
    )


def _drops_out(case: CaseSpec) -> bool:
    """Whether a forward draws random numbers."""
    return any(
        isinstance(place.node, Dropout | EncoderLayer | Transformer)
        and getattr(place.node, "dropout", 1.0) > 0.0
        for place in case_places(case)
    )


def _forwards(ops: Sequence[Op]) -> int:
    return sum(isinstance(op, Forward) for op in ops)


def _calls(case: CaseSpec) -> list[Forward]:
    return [op for op in case.program if isinstance(op, Forward)]


def _several_pending(program: Sequence[Op]) -> bool:
    pending = most = 0
    for op in program:
        if isinstance(op, Backward):
            pending = 0
        elif isinstance(op, Forward) and waits(op):
            pending += 1
            most = max(most, pending)
    return most > 1


def _may_lack_grad(case: CaseSpec) -> bool:
    """Whether a loss might not require grad, so that there is nothing to go back through."""
    if isinstance(case.inputs, Dense) and case.inputs.requires_grad:
        return False
    trained = [p for place in case_places(case) for p in place.parameters if p.used]
    return (
        not trained
        or bool(case.frozen)
        or any(c.reentrant for c in case.checkpoints)
        or any(isinstance(op, RequiresGrad | Flip) for op in case.program)
        or any(op.target for op in _calls(case))
    )


def _switches(case: CaseSpec) -> list[str]:
    return [place.path for place in case_places(case) if isinstance(place.node, Switch)]


def _rows(case: CaseSpec) -> int:
    for place in case_places(case):
        rows = getattr(place.node, "rows", None)
        if place.kind in ("embedding", "transformer") and isinstance(rows, int):
            return rows
    raise ContractError("tokens go into a model without an embedding")


def _tuple(names: Sequence[str]) -> Expression:
    items = [f'"{name}"' for name in names]
    return call("", *items) if len(items) > 1 else f"({flat(items[0])},)" if items else "()"
