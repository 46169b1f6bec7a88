"""Runs a recipe: calls the steps that it names, one after the other."""

from __future__ import annotations

import importlib
from collections import ChainMap
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Protocol

import torch
from torch import nn
from torch.distributed import distributed_c10d
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from fsdpfuzz.case.modules.imported import OWN
from fsdpfuzz.case.recipe import (
    Call,
    Do,
    Global,
    Index,
    Inside,
    Items,
    Operation,
    Recipe,
    Repeated,
    Statement,
    Sum,
    Unsynchronised,
    Value,
    Variable,
    Who,
    With,
)
from fsdpfuzz.errors import ContractError
from fsdpfuzz.ranks._env import RankEnv
from fsdpfuzz.ranks._imported import function
from fsdpfuzz.steps.averaging import average

Role = Literal["fsdp", "plain", "ddp"]
"""Who trains: FSDP, the plain model with gradients averaged by a step, or the same under DDP."""

Variables = MutableMapping[str, Any]


class Watcher(Protocol):
    """Is told what happens while a recipe runs."""

    def before(self, op: int, name: str) -> None:
        """Before an operation."""

    def assigned(self, name: str, variables: Variables) -> bool:
        """A variable has a new value; False leaves the operation under way."""

    def after(self, op: int, name: str, variables: Variables) -> None:
        """After an operation."""


class LeaveOperation(Exception):  # noqa: N818 (no error)
    """A watcher has seen enough of the operation under way."""


@dataclass(slots=True, kw_only=True)
class Execution:
    """One training on one rank. ``label`` begins the stages that the flight recorder is told."""

    recipe: Recipe
    env: RankEnv
    role: Role
    dtype: torch.dtype
    label: str
    watcher: Watcher
    _inside_procedure: bool = False

    def run(self) -> Variables:
        """Runs everything and gives the variables; raises what any step raises."""
        env = self.env
        variables: Variables = {
            "rank": env.rank,
            "device": env.device,
            "dtype": self.dtype,
        }
        env.flight.stage(f"{self.label}:build")
        for statement in self.recipe.main:
            self._run(statement, variables)
        return variables

    def _run(self, statement: Statement, variables: Variables) -> None:
        match statement:
            case Do():
                self._do(statement, variables)
            case With(context=context, body=body, who=who):
                if self._takes_part(who):
                    with self._evaluate(context, variables):
                        self._all(body, variables)
            case Unsynchronised():
                self._unsynchronised(statement, variables)
            case Operation():
                self._operation(statement, variables)
            case Repeated():
                raise ContractError("ranks run operations one by one")

    def _all(self, statements: Sequence[Statement], variables: Variables) -> None:
        for statement in statements:
            self._run(statement, variables)

    def _operation(self, operation: Operation, variables: Variables) -> None:
        self.env.flight.stage(f"{self.label}:{operation.name}[{operation.op}]")
        # The stage first: what the watcher itself raises is then told under this operation.
        self.watcher.before(operation.op, operation.name)
        # `after` comes all the same: there the watcher says what it has seen until then.
        with suppress(LeaveOperation):
            self._all(operation.body, variables)
        self.watcher.after(operation.op, operation.name, variables)

    def _unsynchronised(self, statement: Unsynchronised, variables: Variables) -> None:
        with ExitStack() as stack:
            if self.role == "ddp":
                model = variables["model"]
                if not isinstance(model, DistributedDataParallel):
                    raise ContractError(f"under DDP the model is a {type(model).__name__}")
                stack.enter_context(model.no_sync())
            if self.role == "fsdp":
                if statement.before is not None:
                    self._do(statement.before, variables)
                if statement.context is not None:
                    context: AbstractContextManager[Any]
                    context = self._evaluate(statement.context, variables)
                    stack.enter_context(context)
            self._all(statement.body, variables)
        if self.role == "fsdp" and statement.after is not None:
            self._do(statement.after, variables)

    def _takes_part(self, who: Who) -> bool:
        if who == "averaging" and self.role == "ddp":
            return False  # it averages by itself
        return who == "both" or (who == "fsdp") == (self.role == "fsdp")

    def _do(self, do: Do, variables: Variables) -> None:
        if not self._takes_part(do.who):
            return
        if do.ranks is not None and self.env.rank not in do.ranks:
            return
        made = self._evaluate(do.call, variables)
        # One target gets the value as it is, even where that is a tuple.
        several = made if len(do.into) > 1 else (made,) * len(do.into)
        for target, value in zip(do.into, several, strict=True):
            if isinstance(target, Inside):
                owner, _, name = target.path.rpartition(".")
                setattr(_inside(variables[target.owner], owner), name, value)
            else:
                variables[target.name] = value
                # What a procedure makes is half done: the model in it is built, but not yet
                # wrapped.
                if self._inside_procedure:
                    continue
                # After the assignment, as a watcher may put something else in its place: the
                # reference does so with DDP.
                if not self.watcher.assigned(target.name, variables):
                    raise LeaveOperation

    def _procedure(self, name: str, args: Sequence[Any], variables: Variables) -> Any:
        procedure = self.recipe.procedure(name)
        # Only the first wrapping is a stage of its own: ranks that are refused there are in step,
        # and the pool keeps them (pool/_pool.py, ``_all_refused``). A later one interrupts a
        # training.
        if name == "shard" and "optimizer" not in variables and "named" not in variables:
            self.env.flight.stage(f"{self.label}:wrap")
        # What a procedure sets stays in it.
        frame = ChainMap(dict(zip(procedure.parameters, args, strict=True)), variables)
        self._inside_procedure = True
        try:
            self._all(procedure.body, frame)
        finally:
            self._inside_procedure = False
        return frame[procedure.result]

    def _evaluate(self, value: Value, variables: Variables) -> Any:
        match value:
            case Variable(name):
                return variables[name]
            case Inside(owner, path):
                return _inside(variables[owner], path)
            case Global(name):
                return resolve(name)
            case Index(offset, _):
                return offset
            case Sum(left, right):
                return self._evaluate(left, variables) + self._evaluate(right, variables)
            case Items(kind, inner):
                return _container(kind, [self._evaluate(item, variables) for item in inner])
            case Call():
                return self._call(value, variables)
            case _:
                return value

    def _call(self, given: Call, variables: Variables) -> Any:
        args = [self._evaluate(arg, variables) for arg in given.args]
        options = {name: self._evaluate(option, variables) for name, option in given.options}
        function = given.function
        if not isinstance(function, str):
            return self._evaluate(function, variables)(*args, **options)
        if function.startswith("."):
            return getattr(args[0], function[1:])(*args[1:], **options)
        if function.startswith("recipe."):
            return self._procedure(function.removeprefix("recipe."), args, variables)
        called: Callable[..., Any] = resolve(function)
        if function.startswith(f"{OWN}.") and not function.endswith(".loss"):
            # The model as its own code knows it; for the loss DDP has to be called.
            args = [arg.module if isinstance(arg, DistributedDataParallel) else arg for arg in args]
        # Not in the step, which scripts quote: there a plain loop is easier to read than fast.
        if called is average and self.env.backend == "gloo":
            return _at_once(list(args[0]), *args[1:], **options)
        return called(*args, **options)


# A case makes hundreds of calls of the same few functions. So an injection has to replace a step
# before the first case calls it.
@cache
def resolve(name: str) -> Any:
    """The object of a dotted name; ``steps`` stands for our own room of that name."""
    parts = name.split(".")
    if parts[0] == OWN:
        return function(".".join(parts[1:]))
    if parts[0] == "steps":
        parts = ["fsdpfuzz", *parts]
    for length in range(len(parts) - 1, 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise ContractError(f"{name} names nothing")


def _inside(module: nn.Module, path: str) -> Any:
    """What lies at an FQN, whatever wrappers lie around it or on the way."""
    found: Any = module
    for part in path.split(".") if path else ():
        found = getattr(found, part)
    return found


def _at_once(parameters: Sequence[nn.Parameter], *args: Any, **options: Any) -> None:
    """`average` in one all-reduce: on gloo each of them takes a millisecond."""
    together: AbstractContextManager[Any] = nullcontext()
    grads = [p.grad for p in parameters if p.grad is not None]
    # Torch 2.7 fails over an empty list, and gloo over one tensor of shape (1, 6) and strides (1,
    # 1), which it copies onto itself. And what FSDP was told to ignore, and shards all the
    # same, has to fail here as in its script. What is reduced in a copy is copied back at once, and
    # collectives that are coalesced have not run by then.
    one_by_one = options.get("strided") or any(isinstance(grad, DTensor) for grad in grads)
    if len(grads) > 1 and not one_by_one:
        together = distributed_c10d._coalescing_manager()
    with together:
        average(parameters, *args, **options)


def _container(kind: str, values: list[Any]) -> Any:
    match kind:
        case "list":
            return values
        case "tuple":
            return tuple(values)
        case "set":
            return set(values)
        case "dict":
            return dict(zip(values[::2], values[1::2], strict=True))
        case _:
            raise ContractError(f"{kind} is no kind of container")
