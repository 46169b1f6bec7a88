"""Runs a training program on anything that can be trained: the reference and FSDP alike."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from fsdpfuzz.ranks._data import draw_inputs, loss_of
from fsdpfuzz.ranks._env import RankEnv
from fsdpfuzz.ranks._modules import Switch, call
from fsdpfuzz.ranks._names import clean
from fsdpfuzz.spec import (
    Backward,
    CaseSpec,
    Dense,
    Flip,
    Forward,
    Mode,
    Op,
    Optimizer,
    RequiresGrad,
    StateDict,
    Step,
    ZeroGrad,
)


@dataclass(slots=True)
class Pass:
    """One forward and what came of it."""

    op: int
    index: int
    inputs: Tensor
    output: Tensor
    loss: Tensor


class Trainee(Protocol):
    """Something that can run a training program."""

    name: str
    model: nn.Module
    optimizer: torch.optim.Optimizer | None
    dtype: torch.dtype

    def synchronised(self, enabled: bool) -> AbstractContextManager[None]:
        """Context for a forward and its backward."""

    def after_backward(self, synchronised: bool) -> None:
        """Called right after each backward."""

    def before_step(self) -> None:
        """Called right before each optimizer step."""

    def zero_grad(self, set_to_none: bool) -> None:
        """Clears the gradients of all parameters, also of those no optimizer holds."""

    def require_grad(self, parameters: frozenset[str], value: bool) -> None:
        """Freezes or unfreezes the parameters with these FQNs."""

    def state_dict(self, op: int, request: StateDict) -> None:
        """Takes and loads a state dict as asked."""


class Watcher(Protocol):
    """Is told what happens while a program runs."""

    def before(self, op: int, request: Op) -> None:
        """Before an operation."""

    def after_forward(self, done: Pass) -> None:
        """After a forward, the loss computed."""

    def after(self, op: int, request: Op, finished: list[Pass]) -> None:
        """After any operation; ``finished`` holds the passes that a backward ended."""


@dataclass(slots=True)
class _Pending:
    passes: list[Pass] = field(default_factory=list)
    stack: ExitStack = field(default_factory=ExitStack)
    sync: bool = True


def run_program(case: CaseSpec, trainee: Trainee, watcher: Watcher, env: RankEnv) -> None:
    """Runs every operation of ``case`` on ``trainee``; raises what the trainee raises."""
    pending, index = _Pending(), 0
    with ExitStack() as stack:
        stack.callback(lambda: pending.stack.close())  # noqa: PLW0108 (pending is rebound)
        for i, op in enumerate(case.program):
            env.flight.stage(f"{trainee.name}:{_label(op)}[{i}]")
            watcher.before(i, op)
            finished: list[Pass] = []
            match op:
                case Forward():
                    done = _forward(case, trainee, op, i, index, pending, env)
                    index += 1
                    watcher.after_forward(done)
                case Backward():
                    total = torch.stack([item.loss for item in pending.passes]).sum()
                    if total.requires_grad:  # not when all that is used is frozen
                        torch.autograd.backward(total)
                    pending.stack.close()
                    trainee.after_backward(pending.sync)
                    finished, pending = pending.passes, _Pending()
                case Step():
                    _step(trainee)
                case ZeroGrad():
                    trainee.zero_grad(op.set_to_none)
                case Mode():
                    trainee.model.train(op.train)
                case RequiresGrad():
                    trainee.require_grad(frozenset(op.parameters), op.value)
                case Flip():
                    if env.rank in op.ranks:
                        flip(trainee, op.path)
                case StateDict():
                    trainee.state_dict(i, op)
            watcher.after(i, op, finished)


def flip(trainee: Trainee, path: str) -> None:
    """Moves a switch on: its active branch is frozen, the next one unfrozen and active."""
    for name, module in trainee.model.named_modules():
        if isinstance(module, Switch) and clean(name) == path:
            old = module.active
            module.active = (old + 1) % len(module.branches)
            for branch, value in ((old, False), (module.active, True)):
                prefix = f"{path}.branches.{branch}." if path else f"branches.{branch}."
                names = _parameter_names(trainee, prefix)
                trainee.require_grad(names, value)


def make_optimizer(
    request: Optimizer | None, parameters: list[nn.Parameter]
) -> torch.optim.Optimizer | None:
    """The optimizer over ``parameters``; None if none is asked for or there are none.

    No weight decay: it would tell a parameter without a gradient from one whose gradient
    is zero, and FSDP may give either for an unused parameter.
    """
    if request is None or not parameters:
        return None
    if request.name == "sgd":
        return torch.optim.SGD(
            parameters, lr=request.lr, momentum=request.momentum, foreach=request.foreach
        )
    kind: Callable[..., torch.optim.Optimizer]
    kind = torch.optim.Adam if request.name == "adam" else torch.optim.AdamW
    return kind(
        parameters, lr=request.lr, eps=request.eps, weight_decay=0.0, foreach=request.foreach
    )


def _forward(
    case: CaseSpec,
    trainee: Trainee,
    op: Forward,
    i: int,
    index: int,
    pending: _Pending,
    env: RankEnv,
) -> Pass:
    inputs = draw_inputs(case, env.rank, index).to(env.device)
    if isinstance(case.inputs, Dense):
        inputs = inputs.to(trainee.dtype).requires_grad_(case.inputs.requires_grad)
    torch.manual_seed(case.seed + index)
    if not op.grad:
        with torch.no_grad():
            output = call(module_at(trainee.model, op.target), inputs)
            return Pass(i, index, inputs, output, loss_of(case, output))
    if op.drop:
        output = call(module_at(trainee.model, op.target), inputs)
        return Pass(i, index, inputs, output, loss_of(case, output))
    if not pending.passes:
        pending.sync = op.sync
        pending.stack.enter_context(trainee.synchronised(op.sync))
    output = call(module_at(trainee.model, op.target), inputs)
    done = Pass(i, index, inputs, output, loss_of(case, output))
    pending.passes.append(done)
    return done


def module_at(model: nn.Module, path: str) -> nn.Module:
    """The module at an FQN, with whatever wrappers it has; the root for an empty one."""
    if not path:
        return model
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        found.setdefault(clean(name), module)
    return found[path]


def _step(trainee: Trainee) -> None:
    trainee.before_step()
    if trainee.optimizer is not None:
        trainee.optimizer.step()


def _parameter_names(trainee: Trainee, prefix: str) -> frozenset[str]:
    names = getattr(trainee, "parameter_names", ())
    return frozenset(name for name in names if name.startswith(prefix))


def _label(op: Op) -> str:
    return str(op.__struct_config__.tag)
