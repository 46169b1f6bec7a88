"""State dicts out and in: what was saved, and whether loading it restores the same state.

The saved state dict is held to the plain model: the same keys, shapes and dtypes, and the
reference's values. Then it is loaded into a model that is built and wrapped alike but
differs in every element, and what this rank holds of that one must be what it holds of the
saved one, bit for bit, or what it held before if the state dict has no entry of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fsdpfuzz.case import (
    EPSILON,
    Anatomy,
    StateDict,
    cast_buffer,
    coarsest_buffer,
)
from fsdpfuzz.case.checkpoints import names_are_prefixed
from fsdpfuzz.case.operations.state_dict import UNTOUCHED, left_alone, saved_of
from fsdpfuzz.case.strides import without_elements
from fsdpfuzz.errors import ContractError
from fsdpfuzz.expect import optional_keys, state_keys
from fsdpfuzz.observations import Comparison, WrongEntry
from fsdpfuzz.ranks._buffers import buffers_of
from fsdpfuzz.ranks._compare import Batch, floor_of
from fsdpfuzz.ranks._env import RankEnv
from fsdpfuzz.ranks._execute import Variables
from fsdpfuzz.ranks._reference import Reference
from fsdpfuzz.ranks._sharded import Sharded
from fsdpfuzz.steps.extra_state import entries
from fsdpfuzz.steps.fsdp1 import state_dict as state1
from fsdpfuzz.steps.fsdp2 import state_dict as state2
from fsdpfuzz.steps.names import parameters
from fsdpfuzz.steps.state_dict import prefixed

Form = tuple[tuple[int, ...], torch.dtype]


@dataclass(frozen=True, slots=True)
class Taken:
    """One state dict as this rank saw it."""

    values: Mapping[str, Tensor] | None
    """Whole tensors by key; None where this rank gets none."""
    wrong: tuple[WrongEntry, ...]
    reloaded: tuple[Comparison, ...] = ()


class StateWatch:
    """Looks at state dicts while they are taken and after they were loaded."""

    def __init__(self, a: Anatomy, env: RankEnv, unsettled: frozenset[str] = frozenset()) -> None:
        """``unsettled`` names buffers of which no value is promised."""
        self._a, self._env, self._unsettled = a, env, unsettled
        self.seen_plain = False
        self._forms: dict[str, Form] = {}
        """Shape and dtype of each entry of the plain model's state dict."""
        self._parameters: frozenset[str] = frozenset()
        """Names of parameters, those of tied ones included."""
        self._taken: Taken | None = None
        self._loads = False

    def plain(self, model: nn.Module) -> None:
        """Keeps the layout of a model that nothing has wrapped yet."""
        self.seen_plain = True
        state = entries(model.state_dict())
        # Shapes and dtypes alone: the values are moved and freed when the model is wrapped.
        self._forms = {key: (tuple(value.shape), value.dtype) for key, value in state.items()}
        # With duplicates: a state dict has a tied parameter under each of its names.
        names = (name for name, _ in model.named_parameters(remove_duplicate=False))
        self._parameters = frozenset(names)

    def saved(self, sharded: Sharded, at: int, op: StateDict, state: dict[str, Any]) -> bool:
        """Compares keys and shapes; whether the state is fit to be loaded, on every rank.

        Runs collectives: every rank must call it.
        """
        a = self._a.at(at)
        absent = op.on_rank0(a) and self._env.rank != 0
        due = state_keys(a, saved_of(self._a, at, self._forms), op, absent=absent)
        if op.prefix == "dropped":
            state = prefixed(state, f"{op.submodule}.")
        values: dict[str, Tensor] | None = None
        if op.on_rank0(a):
            # No collective where only rank 0 has a state dict.
            if not absent:
                values = {key: v for key, v in entries(state).items() if isinstance(v, Tensor)}
        # On every rank, even on one that has found something wrong already: it gathers.
        elif a.fsdp1:
            lacking = without_elements(a) if op.form == "sharded" else ()
            values = entries(state1.whole(sharded.model, op.form, state, lacking))
        else:
            values = entries(state2.whole(sharded.model, op.form, state))
        spare = optional_keys(a, self._forms, absent=absent)
        keys = entries(state).keys()
        missing, unexpected = due - keys, keys - due - spare
        wrong = [WrongEntry(op=at, key=key, kind="missing") for key in sorted(missing)]
        wrong += [WrongEntry(op=at, key=key, kind="unexpected") for key in sorted(unexpected)]
        wrong += self._misshapen(at, values or {})
        self._taken = Taken(values, tuple(wrong))
        # A load that must fail would hide what is wrong.
        # All ranks must come to the same answer: to load runs collectives, and a rank alone in them
        # hangs.
        self._loads = not self._env.anywhere(bool(wrong))
        return self._loads

    def finish(self, op: int, sharded: Sharded, variables: Variables) -> Taken:
        """What was taken, and what this rank holds of the model that it was loaded into."""
        taken, self._taken = self._taken, None
        if taken is None:
            raise ContractError("no state dict was taken")
        if not self._loads:
            return taken
        # Taken out, so that other models are freed before the next operation.
        loaded = variables.pop("loaded")
        variables.pop("first", None)
        prefixed = names_are_prefixed(self._a)
        other = Sharded(self._a.at(op), loaded, parameters(loaded, prefixed))
        reloaded = self._same(sharded, other, op)
        return Taken(taken.values, taken.wrong, reloaded)

    def compare(
        self,
        taken: Taken,
        op: int,
        reference: Reference,
        canonical: Callable[[str], str],
        eps: float,
    ) -> tuple[Comparison, ...]:
        """The saved values against the reference's.

        Before anything rounds, as an optimizer step does, the state must equal the plain model's
        bit for bit; afterwards parameters may round as they may in training. Buffers are always
        exact, unless the plan keeps them in a lower precision, or recomputation updates them: that
        stops as soon as backward has what it needs, also in a reference with the same checkpoints.
        """
        if taken.values is None:
            return ()
        trained = any(earlier.rounds for earlier in self._a.case.program[:op])
        name = coarsest_buffer(self._a)
        coarse = 0.0 if name is None else EPSILON[name]
        params = Batch(
            "state_dict",
            op,
            eps,
            reference.floor("param", op),
            exact=not trained,
            baselines=lambda: reference.baselines("param", op),
        )
        buffers = Batch("state_dict", op, coarse, 1.0, exact=coarse == 0.0)
        computed = reference.computed_buffers(self._a)
        wide = reference.wide.states[op]
        rounded = Batch(
            "state_dict",
            op,
            eps,
            floor_of({name: wide.get(name) for name in computed}),
            baselines=lambda: reference.buffer_baselines(computed, lambda t: t.states[op]),
        )
        for key, (shape, _) in self._forms.items():
            value = taken.values.get(key)
            if value is None or tuple(value.shape) != shape or key in self._unsettled:
                continue
            if key in computed:
                rounded.add(key, value.to(self._env.device), wide.get(key))
                continue
            parameter = key in self._parameters
            fqn = canonical(key) if parameter else key
            right = reference.value(fqn, op, exact=not (parameter and trained))
            if right is not None:
                (params if parameter else buffers).add(fqn, value.to(right.device), right)
        return (*params.finish(), *buffers.finish(), *rounded.finish())

    def _misshapen(self, op: int, values: Mapping[str, Tensor]) -> list[WrongEntry]:
        return [
            WrongEntry(
                op=op,
                key=key,
                kind="misshapen",
                observed=f"{value.dtype} {list(value.shape)}",
                expected=f"{dtype} {list(shape)}",
            )
            for key, (shape, dtype) in self._forms.items()
            if (value := values.get(key)) is not None
            and (tuple(value.shape), value.dtype) != (shape, dtype)
            and not (self._any_dtype(op, key) and tuple(value.shape) == shape)
        ]

    def _any_dtype(self, op: int, key: str) -> bool:
        """Whether it is a buffer that was cast: only local state does not restore its dtype."""
        request = self._a.case.program[op]
        local = isinstance(request, StateDict) and request.form == "local"
        return (
            local and key not in self._parameters and cast_buffer(self._a.at(op), key) is not None
        )

    def _same(self, saved: Sharded, loaded: Sharded, op: int) -> tuple[Comparison, ...]:
        """What this rank holds of both models, which must be equal bit for bit.

        Of what the state dict leaves out the second model must hold what it held before.
        """
        batch = Batch("reloaded", op, 0.0, 0.0, exact=True)
        held = {shard.name: shard.values() for shard in saved.shards}
        buffers = buffers_of(saved.model)
        restored, alone = saved_of(self._a, op, (*held, *buffers)), left_alone(self._a, op)
        for shard in loaded.shards:
            if shard.name in alone:
                untouched = torch.full_like(shard.values(), UNTOUCHED)
                batch.add(shard.name, shard.values(), untouched)
            if shard.name not in restored:
                continue
            value, right = shard.values(), held.get(shard.name)
            # Compared with nothing then, which reports it as missing rather than raising here.
            if right is not None and right.numel() != value.numel():
                right = None
            batch.add(shard.name, value, right)
        changed, own = self._a.changed_buffers, self._a.imported is not None
        for key, buffer in buffers_of(loaded.model).items():
            # What a forward computes from its inputs is another thing on each rank.
            differs = key in changed and (own or buffer.is_floating_point())
            if key in self._forms and key in restored and not differs:
                batch.add(key, buffer, buffers.get(key))
        return batch.finish()
