"""FSDP under observation: trains the case and compares it, operation by operation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from fsdpfuzz.observations import Comparison, Subject, UnitState
from fsdpfuzz.ranks._build import build
from fsdpfuzz.ranks._compare import Batch, Yardstick, floor_of, yardsticks
from fsdpfuzz.ranks._env import RankEnv
from fsdpfuzz.ranks._names import clean
from fsdpfuzz.ranks._probe import Counters
from fsdpfuzz.ranks._program import Pass, make_optimizer
from fsdpfuzz.ranks._shard import Piece, dtype_of
from fsdpfuzz.ranks._sharding import shard
from fsdpfuzz.ranks._state import Taken, compare, layout_of, take
from fsdpfuzz.ranks._trace import Trace, Values, synchronised_forwards
from fsdpfuzz.ranks._twins import Likeness
from fsdpfuzz.spec import Backward, CaseSpec, Forward, Op, Plan, StateDict, Step


class FsdpTrainee:
    """The case's model under FSDP."""

    dtype = torch.float32

    def __init__(self, case: CaseSpec, env: RankEnv, name: str) -> None:
        self.name = name
        self._alias = {tie.target: tie.source for tie in case.ties}
        self.case, self._env = case, env
        model = build(case).to(env.device)
        self.layout = layout_of(model)
        self.taken: list[Taken] = []
        named = list(model.named_parameters())
        self.parameter_names = tuple(self.canonical(fqn) for fqn, _ in named)
        self.initial = {
            self.canonical(fqn): parameter.detach().clone()
            for fqn, parameter in named
            if not parameter.requires_grad
        }
        self.sharded = shard(model, case.plan, case.checkpoints, env)
        self.model = self.sharded.model
        self.pieces = self.sharded.pieces
        self._shown = {self.canonical(fqn): p for fqn, p in self.model.named_parameters()}
        self.frozen = {self.canonical(name) for name in case.frozen}
        """Names of the parameters that are frozen just now."""
        self.refrozen: set[str] = set()
        """Names of those that were frozen or unfrozen on the way."""
        self.optimizer = make_optimizer(case.optimizer, self._trained(set(case.held_out)))

    def canonical(self, fqn: str) -> str:
        """The FQN under which the reference knows a parameter."""
        fqn = clean(fqn)
        return self._alias.get(fqn, fqn)

    def synchronised(self, enabled: bool) -> AbstractContextManager[None]:
        """See `Sharded.synchronised`."""
        return self.sharded.synchronised(enabled)

    def after_backward(self, synchronised: bool) -> None:
        """FSDP reduces by itself."""

    def before_step(self) -> None:
        """FSDP's gradients are where the optimizer looks for them."""

    def zero_grad(self, set_to_none: bool) -> None:
        """As a user does: on the optimizer if there is one."""
        (self.optimizer or self.model).zero_grad(set_to_none=set_to_none)

    def require_grad(self, parameters: frozenset[str], value: bool) -> None:
        """Freezes or unfreezes the tensors that hold these parameters."""
        names = {self.canonical(name) for name in parameters}
        self.frozen = self.frozen - names if value else self.frozen | names
        self.refrozen |= names
        for piece in self.pieces:
            name = self.canonical(piece.fqn)
            if name in names:
                # As a user does, on what the model showed; a flat parameter has no such name.
                self._shown.get(name, piece.parameter).requires_grad_(value)

    def state_dict(self, op: int, request: StateDict) -> None:
        """See `_state`."""
        taken = take(self.case, self.sharded, self.layout, op, request, self._env)
        self.taken.append(taken)

    def _trained(self, held_out: set[str]) -> list[torch.nn.Parameter]:
        kept = {id(p.parameter) for p in self.pieces if self.canonical(p.fqn) not in held_out}
        return [p for p in self.model.parameters() if id(p) in kept]


@dataclass(slots=True)
class Reference:
    """Both traces, and what is derived from them on first use."""

    wide: Trace
    single: Trace
    _floors: dict[tuple[str, int], float] = field(default_factory=dict)
    _sticks: dict[tuple[str, int], dict[str, Yardstick]] = field(default_factory=dict)

    def value(self, fqn: str, op: int, *, exact: bool) -> Tensor | None:
        """A parameter or buffer at a state dict: in float32 if it must be equal, else float64."""
        trace = self.single if exact else self.wide
        value = trace.params[op].get(fqn)
        return trace.states[op].get(fqn) if value is None else value

    def floor(self, quantity: str, op: int) -> float:
        """The largest gradient, or parameter, at ``op``."""
        key = (quantity, op)
        if key not in self._floors:
            self._floors[key] = floor_of(_values(self.wide, *key))
        return self._floors[key]

    def sticks(self, quantity: str, op: int) -> dict[str, Yardstick]:
        """The yardstick of each gradient, or parameter, at ``op``."""
        key = (quantity, op)
        if key not in self._sticks:
            self._sticks[key] = yardsticks(_values(self.wide, *key), _values(self.single, *key))
        return self._sticks[key]


def _values(trace: Trace, quantity: str, op: int) -> Values:
    return trace.grads[op] if quantity == "grad" else trace.params[op]


class Comparer:
    """A watcher that compares FSDP with the reference after every operation."""

    def __init__(
        self,
        case: CaseSpec,
        trainee: FsdpTrainee,
        reference: Reference,
        counters: Counters,
        likeness: Likeness | None = None,
        apart: frozenset[str] = frozenset(),
    ) -> None:
        """``apart`` names parameters that a twin freezes or trains unlike the case."""
        self.seconds = 0.0
        self.comparisons: list[Comparison] = []
        self.losses: list[Tensor] = []
        self.unit_states: list[UnitState] = []
        self.reshards: list[dict[str, int]] = []
        self.saved: list[int] = []
        self._case, self._trainee, self._reference = case, trainee, reference
        self._counters = counters
        self._likeness = likeness
        self._apart = frozenset(trainee.canonical(name) for name in apart)
        self._eps = epsilon(case.plan)
        self._synchronised = synchronised_forwards(case)
        self.frozen_with_grad: set[str] = set()

    def before(self, op: int, request: Op) -> None:
        """Starts counting for this operation."""
        self._counters.op, self._counters.saved_on_cpu = op, 0
        self._counters.resharded.clear()

    def after_forward(self, done: Pass) -> None:
        """Compares loss and output."""
        with self._timed():
            self.losses.append(done.loss.detach())
            if self._likeness is not None:
                self._likeness.add_whole("loss", f"loss[{done.index}]", done.op, done.loss)
                self._likeness.add_whole("output", f"output[{done.index}]", done.op, done.output)
            wide, single = self._reference.wide, self._reference.single
            floor = floor_of({"": wide.outputs[done.index]})
            for quantity, seen, right, normal in (
                ("loss", done.loss, wide.losses, single.losses),
                ("output", done.output, wide.outputs, single.outputs),
            ):
                name, expected, usual = f"{quantity}[{done.index}]", right[done.index], normal
                batch = Batch(
                    "loss" if quantity == "loss" else "output",
                    done.op,
                    self._eps,
                    floor,
                    sticks=_one_stick(name, expected, usual[done.index]),
                )
                batch.add(name, seen, expected, reduced=done.output.numel())
                self.comparisons.extend(batch.finish())

    def after(self, op: int, request: Op, finished: list[Pass]) -> None:
        """Compares gradients after backward and parameters after a step."""
        with self._timed():
            if isinstance(request, Forward):
                self.saved.append(self._counters.saved_on_cpu)
            elif isinstance(request, Backward):
                self._after_backward(op, finished)
            elif isinstance(request, Step):
                self._compare(op, "param")
            elif isinstance(request, StateDict):
                self._compare_state(op)

    @property
    def against_case(self) -> tuple[Comparison, ...]:
        """A twin's deviations from the case; of the case itself none."""
        return tuple(self._likeness.comparisons) if self._likeness is not None else ()

    def _after_backward(self, op: int, finished: list[Pass]) -> None:
        self.reshards.append(self._trainee.sharded.resharded(self._counters.resharded))
        for item in finished:
            self._compare_input_grad(op, item)
        if finished[0].op not in self._synchronised:
            return
        if not any(item.loss.requires_grad for item in finished):
            return  # there was nothing to go back through
        self.unit_states.append(UnitState(op=op, unsharded=self._trainee.sharded.unsharded()))
        self._compare(op, "grad")

    def _compare(self, op: int, quantity: Literal["grad", "param"]) -> None:
        grads = quantity == "grad"
        if self._likeness is not None:
            pieces = [(self._trainee.canonical(p.fqn), p) for p in self._trainee.pieces]
            skipped = self._apart if grads else frozenset()
            self._likeness.add_parts(quantity, op, pieces, skipped=skipped)
        trace = self._reference.wide
        right = trace.grads[op] if grads else trace.params[op]
        batch = Batch(
            "grad" if grads else "param",
            op,
            self._eps,
            self._reference.floor(quantity, op),
            sticks=lambda: self._reference.sticks(quantity, op),
        )
        for piece in self._trainee.pieces:
            fqn = self._trainee.canonical(piece.fqn)
            full = right.get(fqn)
            if grads and fqn in self._trainee.frozen:
                self._note_frozen(piece, fqn)
                continue
            if grads and fqn in self._apart:
                continue  # the reference trains it where the twin does not, or the reverse
            seen = piece.grad() if grads else piece.value()
            expected = None if full is None else piece.of(full)
            batch.add(fqn, seen, expected)
        self.comparisons.extend(batch.finish())

    def _compare_state(self, op: int) -> None:
        trainee = self._trainee
        taken = trainee.taken[-1]
        self.comparisons.extend(
            compare(
                self._case,
                taken,
                trainee.layout,
                op,
                self._reference,
                trainee.canonical,
                self._eps,
            )
        )
        self.comparisons.extend(taken.reloaded)
        trainee.taken[-1] = replace(taken, values=None)

    def _compare_input_grad(self, op: int, item: Pass) -> None:
        right = self._reference.wide.input_grads.get(item.index)
        normal = self._reference.single.input_grads.get(item.index)
        if right is None and item.inputs.grad is None:
            return
        name = f"input_grad[{item.index}]"
        batch = Batch(
            "input_grad",
            op,
            self._eps,
            floor_of({name: right}),
            sticks=_one_stick(name, right, normal),
        )
        batch.add(name, item.inputs.grad, right, reduced=item.output.numel())
        self.comparisons.extend(batch.finish())

    def _note_frozen(self, piece: Piece, fqn: str) -> None:
        if fqn in self._trainee.refrozen:
            return  # may have kept the gradient of the time before
        grad = piece.grad() if piece.parameter.requires_grad else piece.parameter.grad
        if grad is not None and grad.numel() and bool(grad.detach().ne(0).any()):
            self.frozen_with_grad.add(fqn)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - started


def _one_stick(
    name: str, right: Tensor | None, usual: Tensor | None
) -> Callable[[], dict[str, Yardstick]]:
    return lambda: yardsticks({name: right}, {name: usual})


def summarise(
    trainee: FsdpTrainee, comparer: Comparer, counters: Counters, env: RankEnv
) -> Subject:
    """The observation of one trainee after its program has run."""
    changed = {
        fqn
        for piece in trainee.pieces
        if (fqn := trainee.canonical(piece.fqn)) in trainee.initial
        and fqn not in trainee.refrozen
        and not torch.equal(piece.value(), piece.of(trainee.initial[fqn]).to(piece.value()))
    }
    return Subject(
        name=trainee.name,
        units=trainee.sharded.units,
        losses=tuple(torch.stack(comparer.losses).tolist()) if comparer.losses else (),
        comparisons=tuple(comparer.comparisons),
        unit_states=tuple(comparer.unit_states),
        backward_reshards=tuple(comparer.reshards),
        against_case=comparer.against_case,
        frozen_with_grad=tuple(sorted(comparer.frozen_with_grad)),
        frozen_changed=tuple(sorted(changed)),
        warnings=tuple(text for _, text in counters.warned),
        warning_ops=tuple(op for op, _ in counters.warned),
        collectives=dict(env.collectives),
        saved_on_cpu=tuple(comparer.saved),
        shard_bytes=trainee.sharded.held_bytes(),
        grad_bytes=trainee.sharded.grad_bytes(),
        state_keys_missing=tuple(key for taken in trainee.taken for key in taken.missing),
        state_keys_unexpected=tuple(key for taken in trainee.taken for key in taken.unexpected),
        state_misshapen=tuple(text for taken in trainee.taken for text in taken.misshapen),
        states_taken=len(trainee.taken),
    )


def epsilon(plan: Plan) -> float:
    """Machine epsilon of the coarsest dtype that the plan lets take part."""
    dtypes = [torch.float32]
    for unit in plan.units:
        if unit.precision is not None:
            names = (unit.precision.param, unit.precision.reduce, unit.precision.buffer)
            dtypes += [dtype for name in names if (dtype := dtype_of(name)) is not None]
    return max(torch.finfo(dtype).eps for dtype in dtypes)
