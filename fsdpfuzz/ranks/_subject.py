"""FSDP under observation: compared with the reference, operation by operation."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from fsdpfuzz.case import EPSILON, Anatomy, Forward, StateDict, coarsest, lower
from fsdpfuzz.case.names import parts_of
from fsdpfuzz.errors import ContractError
from fsdpfuzz.observations import Comparison, Subject, Unfreed, UnitState
from fsdpfuzz.ranks._compare import Batch, entries_of, floor_of
from fsdpfuzz.ranks._env import RankEnv
from fsdpfuzz.ranks._execute import Execution, Variables
from fsdpfuzz.ranks._passes import Pass, Passes
from fsdpfuzz.ranks._probe import Counters
from fsdpfuzz.ranks._reference import Reference, Trace
from fsdpfuzz.ranks._sharded import Shard, Sharded
from fsdpfuzz.ranks._state import StateWatch, Taken
from fsdpfuzz.ranks._variants import Likeness
from fsdpfuzz.steps.output_dtype import dtype_of


class Observer:
    """A watcher that compares FSDP with the reference after every operation."""

    def __init__(
        self,
        a: Anatomy,
        reference: Reference,
        counters: Counters,
        env: RankEnv,
        likeness: Likeness | None = None,
        apart: frozenset[str] = frozenset(),
        unsettled: frozenset[str] = frozenset(),
    ) -> None:
        """``apart`` names parameters that a variant freezes or trains unlike the case.

        ``unsettled`` names buffers of which no value is promised.
        """
        self.seconds = 0.0
        self.comparisons: list[Comparison] = []
        self.losses: list[Tensor] = []
        self.output_dtypes: list[str] = []
        self.unit_states: list[UnitState] = []
        self.unfreed: list[Unfreed] = []
        self.reshards: list[dict[str, int]] = []
        self.entered: list[tuple[int, int, int]] = []
        self.issued: list[tuple[str, ...]] = []
        self.frozen_with_grad: set[str] = set()
        self.taken: list[Taken] = []
        self._a, self._reference, self._counters, self._env = a, reference, counters, env
        self._likeness = likeness
        self._apart = frozenset(a.canonical(name) for name in apart)
        self._eps = EPSILON[coarsest(a)]
        self._passes = Passes(a.case.program)
        self._sharded: Sharded | None = None
        self._state = StateWatch(a, env, unsettled)
        self._initial: dict[str, Tensor] = {}
        self._op = -1
        self._frozen = {a.canonical(name) for name in a.case.frozen}
        """Names of the parameters that are frozen just now."""
        self._refrozen: set[str] = set()
        """Names of those that were frozen or unfrozen on the way."""
        self._trained_at = {i: dict(now.trained) for i, _, now in a.situations(env.rank)}

    @property
    def sharded(self) -> Sharded:
        """The wrapped model."""
        if self._sharded is None:
            raise ContractError("nothing is wrapped yet")
        return self._sharded

    @property
    def against_case(self) -> tuple[Comparison, ...]:
        """A variant's deviations from the case; of the case itself none."""
        return tuple(self._likeness.comparisons) if self._likeness is not None else ()

    def before(self, op: int, name: str) -> None:
        """Starts counting for this operation."""
        self._op = op
        self._counters.begin(op)
        self._env.issued.clear()

    def assigned(self, name: str, variables: Variables) -> bool:
        """Looks at the plain model before it is wrapped, and at each state dict."""
        # The first model only, and before it is wrapped: then names, shapes and values are the
        # plain model's. Another one is made where a saved state is loaded.
        if name == "model" and not self._state.seen_plain:
            self._state.plain(variables["model"])
            self._initial = {
                self._a.canonical(fqn): p.detach().clone()
                for fqn, p in variables["model"].named_parameters()
                if not p.requires_grad
            }
        elif name == "weights":
            # A frozen parameter has to stay as it was loaded, not as it was made.
            self._initial = {fqn: variables["weights"][fqn].clone() for fqn in self._initial}
        elif name == "named":
            a = self._a.at(self._op)
            self._sharded = Sharded(a, variables["model"], variables["named"])
        elif name == "state":
            with self._timed():
                request = self._a.case.program[self._op]
                if not isinstance(request, StateDict):
                    raise ContractError(f"a state dict was taken by {request.kind()}")
                return self._state.saved(self.sharded, self._op, request, variables["state"])
        return True

    def after(self, op: int, name: str, variables: Variables) -> None:
        """Compares what the operation leaves behind."""
        # First of all: what is looked at from here on may run collectives of its own.
        self.issued.append(tuple(self._env.issued))
        request = self._a.case.program[op]
        # Before the passes count this forward.
        index = self._passes.count
        finished = self._passes.after(op, variables)
        with self._timed():
            self._follow(op)
            if request.runs_model or request.gives_gradients:
                self._look_for_unfreed(op)
            if isinstance(request, Forward):
                self.entered.append(self._counters.entered)
                self._after_forward(op, index, variables["loss"], variables["output"])
            elif request.gives_gradients:
                self._after_backward(op, finished)
            elif isinstance(request, StateDict):
                self._after_state_dict(op, variables)
            for result in request.results:
                self._compare_result(op, result, variables[result])
            for quantity in request.compared:
                self._compare(op, quantity)

    def _look_for_unfreed(self, op: int) -> None:
        if units := self.sharded.unfreed():
            self.unfreed.append(Unfreed(op=op, units=units))

    def _follow(self, op: int) -> None:
        """What is frozen from here on."""
        now = {self._a.canonical(n) for n, t in self._trained_at[op].items() if not t}
        self._refrozen |= now ^ self._frozen
        self._frozen = now

    def _after_forward(self, op: int, index: int, loss: Tensor, output: Tensor) -> None:
        # A forward over parameters that fsdp2 failed to gather can put out a DTensor.
        loss, output = _local(loss), _local(output)
        self.losses.append(loss)
        self.output_dtypes.append(dtype_of(output))
        wide = self._reference.wide
        # Of the output for the loss as well: a sum that cancels keeps the rounding of its terms.
        floor = floor_of({"": wide.outputs[index]})
        kinds: tuple[tuple[Literal["loss", "output"], Tensor], ...]
        kinds = (("loss", loss), ("output", output))
        for quantity, seen in kinds:
            name = f"{quantity}[{index}]"
            value = partial(Trace.of_forward, quantity=quantity, index=index)
            baselines = self._reference.baseline(name, value)
            if self._likeness is not None:
                self._likeness.add_whole(quantity, name, op, seen, baselines)
            batch = Batch(quantity, op, self._eps, floor, baselines=baselines)
            batch.add(name, seen, value(wide), reduced=output.numel())
            self.comparisons.extend(batch.finish())

    def _after_backward(self, op: int, finished: list[Pass]) -> None:
        # Before any return: the lists of backwards must stay in step with the program.
        self.reshards.append(self.sharded.resharded(self._counters.resharded))
        for item in finished:
            self._compare_input_grad(op, item)
        if not any(item.loss.requires_grad for item in finished):
            return  # there was nothing to go back through
        synchronised = finished[0].synchronised
        # fsdp1 keeps what waits in the flat parameter's own
        # ``grad``, whole; fsdp2 in its own records.
        waiting = None if synchronised or self._a.fsdp1 else self.sharded.grad_bytes()
        unsharded = self.sharded.unsharded()
        self.unit_states.append(UnitState(op=op, unsharded=unsharded, waiting=waiting))
        if synchronised:
            self._compare(op, "grad")

    def _compare(self, op: int, quantity: Literal["grad", "param"]) -> None:
        grads = quantity == "grad"
        shards = self.sharded.shards
        baselines = partial(self._reference.baselines, quantity, op)
        if self._likeness is not None:
            # A variant may freeze what the case keeps from the optimizer, or the reverse: other
            # gradients, but the same values.
            skipped = self._apart if grads else frozenset()
            named = self._a.canonical
            self._likeness.add_parts(quantity, op, shards, named, skipped, baselines)
        trace = self._reference.wide
        batch = Batch(
            quantity,
            op,
            self._eps,
            self._reference.floor(quantity, op),
            baselines=baselines,
        )
        if grads:
            for shard in shards:
                if self._a.canonical(shard.name) in self._frozen:
                    self._note_frozen(shard)
            # The reference trains what is apart where the variant does not, or the reverse.
            left = self._frozen | self._apart
            right = trace.grads[op]
            for shard in shards:
                name = self._a.canonical(shard.name)
                if name not in left:
                    whole = right.get(name)
                    value = None if whole is None else shard.same_part(whole)
                    batch.add(name, shard.gradient(), value)
        else:
            for shard in shards:
                name = self._a.canonical(shard.name)
                whole = trace.params[op].get(name)
                value = None if whole is None else shard.same_part(whole)
                batch.add(name, shard.values(), value)
        self.comparisons.extend(batch.finish())

    def _compare_result(self, op: int, result: str, value: object) -> None:
        """Each kind of entry against the largest of its kind; None says that this rank has none."""
        if value is None:
            return
        seen = entries_of(result, value)
        if self._likeness is not None:
            told = partial(self._reference.result_baselines, op, seen)
            self._likeness.add_wholes("result", op, seen, told)
        wide = self._reference.wide.results[op]
        right = {n: t for n, t in wide.items() if parts_of(n)[0] == result}
        for kind in dict.fromkeys(parts_of(name)[2] for name in (*right, *seen)):
            names = [n for n in dict.fromkeys((*right, *seen)) if parts_of(n)[2] == kind]
            batch = Batch(
                "result",
                op,
                self._eps,
                floor_of({name: right.get(name) for name in names}),
                baselines=partial(self._reference.result_baselines, op, names),
            )
            for name in names:
                # All that there is may have gone into what is no parameter's own.
                all_of_it = sum(p.numel for p in self._a.distinct) if name == result else 1
                batch.add(name, seen.get(name), right.get(name), reduced=all_of_it)
            self.comparisons.extend(batch.finish())

    def _after_state_dict(self, op: int, variables: Variables) -> None:
        taken = self._state.finish(op, self.sharded, variables)
        self.comparisons.extend(
            self._state.compare(taken, op, self._reference, self._a.canonical, self._eps)
        )
        self.comparisons.extend(taken.reloaded)
        # Whole tensors of every state dict would stay until the end of the case.
        self.taken.append(replace(taken, values=None))

    def _compare_input_grad(self, op: int, item: Pass) -> None:
        right = self._reference.wide.input_grads.get(item.index)
        if right is None and item.input_grad is None:
            return
        name = f"input_grad[{item.index}]"
        batch = Batch(
            "input_grad",
            op,
            self._eps,
            floor_of({name: right}),
            baselines=self._reference.baseline(name, lambda t: t.input_grads.get(item.index)),
        )
        batch.add(name, item.input_grad, right, reduced=item.output.numel())
        self.comparisons.extend(batch.finish())

    def _note_frozen(self, shard: Shard) -> None:
        name, held = self._a.canonical(shard.name), shard.held
        if name in self._refrozen or held.grad is None:
            # The optimizer clears what it holds; ``requires_grad_(False)`` clears nothing.
            return  # a refrozen one may have kept the gradient of the time before
        # Of a flat parameter that is trained only this parameter's part has to stay clear.
        grad = shard.gradient() if held.requires_grad else held.grad
        if grad is not None and grad.numel() and bool(_local(grad).ne(0).any()):
            self.frozen_with_grad.add(name)

    def subject(self, name: str) -> Subject:
        """The observation after the program has run."""
        sharded, counters = self.sharded, self._counters
        changed = {
            fqn
            for shard in sharded.shards
            if (fqn := self._a.canonical(shard.name)) in self._initial
            and fqn not in self._refrozen
            and not _equal(shard.values(), shard.same_part(self._initial[fqn]))
        }
        return Subject(
            name=name,
            units=sharded.units,
            losses=tuple(torch.stack(self.losses).tolist()) if self.losses else (),
            output_dtypes=tuple(self.output_dtypes),
            comparisons=tuple(self.comparisons),
            unit_states=tuple(self.unit_states),
            unfreed=tuple(self.unfreed),
            backward_reshards=tuple(self.reshards),
            against_case=self.against_case,
            frozen_with_grad=tuple(sorted(self.frozen_with_grad)),
            frozen_changed=tuple(sorted(changed)),
            warnings=tuple(text for _, text in counters.warned),
            warning_ops=tuple(op for op, _ in counters.warned),
            collectives=dict(self._env.collectives),
            issued=tuple(self.issued),
            saved_on_cpu=tuple(saved for saved, _, _ in self.entered),
            checkpointed=tuple(plain for _, plain, _ in self.entered),
            reentrant=tuple(reentrant for _, _, reentrant in self.entered),
            shard_bytes=sharded.held_bytes(),
            grad_bytes=sharded.grad_bytes(),
            wrong_entries=tuple(entry for taken in self.taken for entry in taken.wrong),
            states_taken=len(self.taken),
        )

    @contextmanager
    def _timed(self) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - started


def observe(
    name: str,
    a: Anatomy,
    reference: Reference,
    counters: Counters,
    env: RankEnv,
    likeness: Likeness | None,
    apart: frozenset[str],
    unsettled: frozenset[str],
) -> tuple[Observer, Variables]:
    """Trains a case under FSDP, or one of its variants; what was seen, and what is left of it."""
    observer = Observer(a, reference, counters, env, likeness, apart, unsettled)
    variables = Execution(
        recipe=lower(a), env=env, role="fsdp", dtype=torch.float32, label=name, watcher=observer
    ).run()
    return observer, variables


def _equal(seen: Tensor, right: Tensor) -> bool:
    return torch.equal(seen.flatten(), right.flatten().to(seen))


def _local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor."""
    local: Tensor = getattr(tensor, "_local_tensor", tensor)
    return local.detach()
