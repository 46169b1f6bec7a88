"""The training program as source: a loop where operations repeat, else one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fsdpfuzz.repro._layout import Call, Expression, call, flat, indented, statement
from fsdpfuzz.repro._model import attribute
from fsdpfuzz.repro._names import cleaned, held_in, named_line
from fsdpfuzz.repro._questions import (
    calls_of,
    drops_out,
    may_lack_backward,
    may_lack_grads,
    rows_of,
    several_pending,
)
from fsdpfuzz.repro._repeat import Repeated, repeated, waits
from fsdpfuzz.repro._state import names, saving
from fsdpfuzz.repro._wrap import Lines, in_attribute, recomputes
from fsdpfuzz.spec import (
    Backward,
    CaseSpec,
    Dense,
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
    ZeroGrad,
    case_places,
    unit_owner,
)

PROJECTION = 7919
"""What is added to the seed for the weights of the loss."""
STRIDE = 8
"""Seeds between one forward's inputs and the next one's: one for each rank."""

Kept = Literal["", "loss.detach()", "x", "output.detach()", "state", "loaded"]


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
    loops: bool = False


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
        self.several = several_pending(case.program)
        self.shape: Repeated = repeated(case.program)
        self.tracked = "mem_tracker" in case.probes
        self.pending = 0
        shown = (*self.shape.block, *self.shape.rest)
        self.in_function = sum(isinstance(op, Forward) for op in shown) > 1
        self.backward_in_function = sum(isinstance(op, Backward) for op in shown) > 1

    def write(self) -> ProgramText:
        case, out, shape = self.case, self.out, self.shape
        if any(isinstance(op, RequiresGrad | Flip) for op in case.program):
            out.lines.append(named_line(case))
        if any(isinstance(op, Flip) for op in case.program):
            out.functions += _FLIP
        if self.in_function:
            self._forward_function()
        if self.manner.reference and self.backward_in_function:
            first, *rest = _average(case)
            body = [
                *self._plain_backward(),
                first.replace(" in ", " in [] if fsdp else ", 1),
                *rest,
            ]
            out.functions += ["", "", "def backward(loss, model, fsdp):", *indented(body)]
        if has_optimizer(case) and case.optimizer is not None:
            out.add("optimizer = ", self._optimizer(case.optimizer))
        if self.manner.keep:
            out.lines.append("kept = []")
        if self.several:
            out.lines.append("pending = []")
        each = _forwards(shape.block)
        operations: list[str] = []
        if shape.block:
            out.loops = True
            operations.append(f"for i in range({shape.times}):")
            operations += indented(self._operations(shape.block, each, 0))
        operations += self._operations(shape.rest, 0, each * shape.times)
        if self.tracked:
            out.need("torch.distributed._tools.fsdp2_mem_tracker", "FSDPMemTracker")
            optimizer = "optimizer" if has_optimizer(case) else "None"
            out.lines.append(f"tracker = FSDPMemTracker(model, {optimizer})")
            operations = ["with tracker:", *indented(operations)]
        out.lines += operations
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
                yield from self._require_grad(op)
            case Flip():
                ranks = ", ".join(map(str, op.ranks))
                number = _switches(self.case).index(op.path)
                prefix = f"{op.path}." if op.path else ""
                yield f"if rank in ({ranks},):"
                yield f'    flip(model, named, {number}, "{prefix}")'
            case StateDict():
                yield from self._state(op)

    def _require_grad(self, op: RequiresGrad) -> Iterator[str]:
        alike = not self.manner.reference or not isinstance(self.case.plan, Fsdp1Plan)
        certain = alike and not self.case.ties
        held = held_in(self.case, op.parameters, shown=certain)
        change = f".requires_grad_({op.value})"
        if certain and len(held) == 1:
            yield f'named["{held[0]}"]{change}'
            return
        yield from statement("for name in ", _tuple(held), depth=self.out.depth + 1, tail=":")
        if certain:
            yield f"    named[name]{change}"
        else:
            yield "    if name in named:"
            yield f"        named[name]{change}"

    def _forward(self, op: Forward, index: _Index) -> Iterator[str]:
        module = attribute(op.target)
        if self.tracked and not self.pending:
            yield "tracker.reset_mod_stats()  # they are those of one iteration"
        self.pending += waits(op)
        if self.in_function:
            args = [module, index.text(), *(["dtype"] if self.manner.reference else [])]
            head, body = _results(self.manner), call("forward", *args)
            lines = statement(f"{head} = ", body)
        else:
            lines = list(self._inputs(index)) + list(self._outputs(module))
        if op.grad:
            yield from lines
        elif self.in_function and not self.manner.keep:
            yield f"torch.no_grad()(forward)({', '.join(args)})"
        elif self.in_function:
            yield from ("with torch.no_grad():", *indented(lines))
        else:
            made = list(self._inputs(index))
            yield from (*made, "with torch.no_grad():", *indented(self._outputs(module)))
        if self.manner.keep in ("loss.detach()", "x", "output.detach()"):
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
            yield f"x = torch.randint({rows_of(case)}, {shape}, generator=seeded).to(device)"
        if drops_out(case):
            yield f"torch.manual_seed({index.text(case.seed)})"

    def _outputs(self, module: str) -> Iterator[str]:
        case = self.case
        through = "call" if self.recomputed & {op.target for op in calls_of(case)} else ""
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
        body = [*self._inputs(_PARAMETER), *self._outputs("module")]
        results = _results(self.manner)
        if results == "loss":
            body.append(f"return {body.pop().removeprefix('loss = ')}")
        else:
            body.append(f"return {results}")
        self.out.functions += indented(body)

    def _backward(self, synchronised: bool) -> Iterator[str]:
        self.pending = 0
        if self.several:
            yield "loss = torch.stack(pending).sum()"
            yield "pending.clear()"
        if self.manner.reference and synchronised and self.backward_in_function:
            yield "backward(loss, model, fsdp)"
            return
        yield from self._plain_backward()
        if self.manner.reference and synchronised:
            first, *rest = _average(self.case)
            yield first.replace(" in ", " in [] if fsdp else ", 1)
            yield from rest

    def _plain_backward(self) -> Iterator[str]:
        if may_lack_backward(self.case):
            yield "if loss.requires_grad:  # not if all that was used is frozen"
            yield "    loss.backward()"
        else:
            yield "loss.backward()"

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
        shown = [*self.shape.block, *self.shape.rest]
        depth = self.out.depth + 1 + self.manner.reference
        once = shown.count(op) == 1
        lines = saving(self.out, self.case, op, depth) if once else [f"state = {save}(model)"]
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
    return {"x": "x, loss", "output.detach()": "output, loss"}.get(manner.keep, "loss")


def _average(case: CaseSpec) -> list[str]:
    """What FSDP does with the gradients of the parameters that it manages."""
    each = ["dist.all_reduce(p.grad.div_(ranks))"]
    if may_lack_grads(case):
        each = ["if p.grad is not None:", *indented(each)]
    alone = sorted(fqn for fqn, owner in unit_owner(case).items() if owner is None)
    if not alone and may_lack_grads(case):
        grads = "[p.grad for p in model.parameters() if p.grad is not None]"
        return [f"for grad in {grads}:", "    dist.all_reduce(grad.div_(ranks))"]
    if not alone:
        return ["for p in model.parameters():", *indented(each)]
    name = cleaned(case, fsdp=False) if recomputes(case) else "name"
    test = Call(f"if {name} not in ", tuple(f'"{fqn}"' for fqn in alone), "[]")
    return [
        "for name, p in model.named_parameters():",
        *indented([*statement("", test, depth=4, tail=":"), *indented(each)]),
    ]


def _forwards(ops: Sequence[Op]) -> int:
    return sum(isinstance(op, Forward) for op in ops)


def _switches(case: CaseSpec) -> list[str]:
    return [place.path for place in case_places(case) if isinstance(place.node, Switch)]


def _tuple(names: Sequence[str]) -> Expression:
    items = [f'"{name}"' for name in names]
    return call("", *items) if len(items) > 1 else f"({flat(items[0])},)" if items else "()"
