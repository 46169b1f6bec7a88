"""The reference: the same training without FSDP.

Two replicas run on every rank. One is in float64 and says what is right; the other is in
float32 under ``DistributedDataParallel`` and says how much rounding is normal for this very
case. Where units compute in a lower dtype there are two more in that dtype, one of them with nudged
parameters: where terms cancel, or leave the range of float16, what is normal has little to do with
float32. All run the case's own recipe.

Where ``DistributedDataParallel`` documents that it cannot train a case (`needs_averaging`) the
float32 replica averages gradients by itself, as the others do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Literal

import torch
from torch import Tensor, nn

from fsdpfuzz.case import EPSILON, Anatomy, StateDict, lower, right_in
from fsdpfuzz.case.operations.overflow import overflown
from fsdpfuzz.case.units.precision import stored_low
from fsdpfuzz.expect import FLOAT32_EPS, HEADROOM, STABLE
from fsdpfuzz.ranks._buffers import buffers_of
from fsdpfuzz.ranks._compare import Baseline, Values, baselines_of, entries_of, floor_of
from fsdpfuzz.ranks._ddp import in_ddp, needs_averaging
from fsdpfuzz.ranks._env import RankEnv
from fsdpfuzz.ranks._execute import Execution, Variables
from fsdpfuzz.ranks._passes import Pass, Passes

NEVER = 1 << 20
"""Comes after all operations."""


@dataclass(slots=True)
class Trace:
    """Forwards with losses and outputs, by their index; gradients and parameters by operation."""

    forwards: list[int] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    input_grads: dict[int, Tensor | None] = field(default_factory=dict)
    grads: dict[int, Values] = field(default_factory=dict)
    params: dict[int, Values] = field(default_factory=dict)
    states: dict[int, Values] = field(default_factory=dict)
    """Buffers at each state dict; its parameters are in ``params``."""
    results: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    """What operations give, by name: `entries_of` their variables."""
    buffers: dict[str, Tensor] = field(default_factory=dict)
    sizes: dict[int, Tensor] = field(default_factory=dict)
    """The largest absolute value of all that each operation left."""

    def of_forward(self, quantity: Literal["loss", "output"], index: int) -> Tensor:
        """What a forward gave."""
        return (self.losses if quantity == "loss" else self.outputs)[index]


NUDGES = (1, 4, 16)
"""By how many roundings parameters are nudged where no float64 tells what is right, or one training
in float32 how far rounding goes. By one, what a norm puts out may stay the same to the last bit,
and with it what is left of a gradient of which nearly all cancels there."""


class Recorder:
    """A watcher that fills a trace."""

    def __init__(self, a: Anatomy, *, ddp: bool, device: torch.device, nudge: int = 0) -> None:
        self.trace = Trace()
        self._nudge = nudge
        self._a, self._ddp, self._device = a, ddp, device
        self._passes = Passes(a.case.program)
        self._named: dict[str, nn.Parameter] = {}
        # The model inside of DDP, which puts ``module.`` before the names of buffers.
        self._plain: nn.Module | None = None

    def before(self, op: int, name: str) -> None:
        """Nothing to do."""

    def assigned(self, name: str, variables: Variables) -> bool:
        """Puts DDP around the model as soon as its parameters are known by name.

        Nudges them before, if that is asked.
        """
        if name == "named":
            self._named, self._plain = variables["named"], variables["model"]
            # Before DDP: it makes all ranks equal to rank 0 when it is made, not later.
            if self._nudge:
                _nudge(self._named, stored_low(self._a), self._nudge)
            # The optimizer comes after ``named`` and holds the same parameters: DDP replaces none.
            if self._ddp:
                variables["model"] = in_ddp(self._a, variables["model"], self._device)
        return True

    def after(self, op: int, name: str, variables: Variables) -> None:
        """Keeps what FSDP will be compared with."""
        request, trace = self._a.case.program[op], self.trace
        finished = self._passes.after(op, variables)
        if op not in overflown(self._a.case):
            trace.sizes[op] = self._size(variables, finished)
        if request.runs_model:
            trace.forwards.append(op)
            trace.losses.append(variables["loss"].detach())
            # Not copied, unlike what an optimizer steps: nothing writes into an output any more.
            trace.outputs.append(variables["output"].detach())
        elif request.gives_gradients:
            for item in finished:
                trace.input_grads[item.index] = item.input_grad
            if finished[0].synchronised:
                trace.grads[op] = self._gradients()
        elif isinstance(request, StateDict):
            trace.params[op] = self._parameters()
            trace.states[op] = {n: b.clone() for n, b in self._buffers().items()}
        if "grad" in request.compared:
            trace.grads[op] = self._gradients()
        if "param" in request.compared:
            trace.params[op] = self._parameters()
        if request.results:
            trace.results[op] = {
                name: value.detach().clone()
                for result in request.results
                if variables[result] is not None
                for name, value in entries_of(result, variables[result]).items()
            }

    def _size(self, variables: Variables, finished: list[Pass]) -> Tensor:
        found = [variables[name].detach() for name in ("loss", "output") if name in variables]
        found += [item.input_grad for item in finished if item.input_grad is not None]
        for p in self._named.values():
            found += [p.detach()] if p.grad is None else [p.detach(), p.grad]
        # After each operation, of all that there is: three kernels for each tensor, which are
        # small, take longer than to put them into one.
        alike: dict[torch.dtype, list[Tensor]] = {}
        for tensor in found:
            if tensor.numel():
                alike.setdefault(tensor.dtype, []).append(tensor.reshape(-1))
        sizes = [torch.zeros((), dtype=torch.float64, device=self._device)]
        sizes += [torch.cat(flat).abs().max().to(torch.float64) for flat in alike.values()]
        return torch.stack(sizes).max()

    def _gradients(self) -> dict[str, Tensor | None]:
        # A copy: the next backward accumulates in place, and clipping scales in place.
        return {n: None if p.grad is None else p.grad.clone() for n, p in self._named.items()}

    def _parameters(self) -> dict[str, Tensor | None]:
        # A copy: the optimizer steps in place.
        return {name: p.detach().clone() for name, p in self._named.items()}

    def finish(self) -> Trace:
        """The trace, with the buffers as they are at the end."""
        self.trace.buffers = self._buffers()
        return self.trace

    def _buffers(self) -> dict[str, Tensor]:
        return {} if self._plain is None else buffers_of(self._plain)


@dataclass(slots=True)
class Reference:
    """All traces, and what is derived from them on first use."""

    wide: Trace
    single: Trace
    lower: tuple[Trace, ...] = ()
    """In the dtypes below float32 in which units compute; nudged ones come last."""
    nudged: tuple[Trace, ...] = ()
    """In float32 as well, where ``wide`` is, too, or where one training says too little."""
    kinked: bool = False
    """Whether nobody knows of kinks in the model, at which rounding decides on gradients."""
    single_eps: float = FLOAT32_EPS
    """Machine epsilon of the coarsest dtype in which ``single`` computes."""
    _floors: dict[tuple[str, int], float] = field(default_factory=dict)
    _baselines: dict[tuple[str, int], dict[str, Baseline]] = field(default_factory=dict)

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

    def baselines(self, quantity: str, op: int) -> dict[str, Baseline]:
        """The baseline of each gradient, or parameter, at ``op``."""
        key = (quantity, op)
        if key not in self._baselines:
            found = self._of(lambda trace: _values(trace, *key))
            if self.kinked and quantity == "grad":
                found = {name: _kinked(baseline) for name, baseline in found.items()}
            self._baselines[key] = found
        return self._baselines[key]

    def baseline(
        self, name: str, value: Callable[[Trace], Tensor | None]
    ) -> Callable[[], dict[str, Baseline]]:
        """The baseline of one tensor, which ``value`` takes out of a trace."""

        def found() -> dict[str, Baseline]:
            return self._of(lambda trace: {name: value(trace)})

        return found

    def computed_buffers(self, a: Anatomy) -> frozenset[str]:
        """Buffers that a forward computes in floating point.

        They round as activations do, as the running means of ``nn.BatchNorm1d``; all others are
        constants, or count.
        """
        found = self.wide.buffers
        return frozenset(
            name for name in a.changed_buffers if name in found and found[name].is_floating_point()
        )

    def buffer_baselines(
        self, names: Iterable[str], held: Callable[[Trace], Mapping[str, Tensor | None]]
    ) -> dict[str, Baseline]:
        """The baseline of each of these buffers, which ``held`` takes out of a trace."""
        every = list(names)
        return self._of(lambda trace: {name: held(trace).get(name) for name in every})

    def result_baselines(self, op: int, names: Iterable[str]) -> dict[str, Baseline]:
        """The baseline of each of these results at ``op``."""
        every = list(names)
        return self._of(lambda trace: {name: trace.results[op].get(name) for name in every})

    def _of(self, values: Callable[[Trace], Values]) -> dict[str, Baseline]:
        lower, nudged = ([values(t) for t in traces] for traces in (self.lower, self.nudged))
        right, single = values(self.wide), values(self.single)
        return baselines_of(right, single, lower, nudged=nudged, eps=self.single_eps)

    def leaves(self, dtypes: Iterable[torch.dtype]) -> tuple[int, str]:
        """From which operation on nothing can be said, and the dtype whose range it leaves.

        Either float64 goes where no value of the dtype is, or a replica did. `NEVER` and no
        dtype where everything can be compared.
        """
        found = []
        widest = _sizes(self.wide)
        limits = {dtype: HEADROOM * torch.finfo(dtype).max for dtype in (torch.float32, *dtypes)}
        for dtype, trace in zip(limits, (self.single, *self.lower), strict=False):
            for op, size in _sizes(trace).items():
                if not isfinite(size) or not widest[op] <= limits[dtype]:
                    found.append((op, _name(dtype)))
        return min(found, default=(NEVER, ""))


def _kinked(baseline: Baseline) -> Baseline:
    if baseline.coarse is None:
        return baseline
    return replace(baseline, coarse=max(baseline.coarse, STABLE * baseline.scale))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _sizes(trace: Trace) -> dict[int, float]:
    """Read back from the device together."""
    sizes = list(trace.sizes.values())
    return dict(zip(trace.sizes, torch.stack(sizes).tolist() if sizes else (), strict=True))


def _values(trace: Trace, quantity: str, op: int) -> Values:
    return trace.grads[op] if quantity == "grad" else trace.params[op]


def references(a: Anatomy, env: RankEnv) -> tuple[Reference, tuple[torch.dtype, ...], bool]:
    """All trainings without FSDP, the lower dtypes among them, and whether DDP was one.

    A model that is another one in float64 is right as it is in float32. How far rounding carries
    it is then seen by nudging its parameters: each of them by some roundings, up or down. So it
    is where a norm comes before a plain sum, which is constant: all gradients are rounding then,
    and by chance none is left in one way to compute them.
    """
    wide = right_in(a, env.backend) == "float64"
    # All trainings issue collectives, so all ranks run them in this order.
    right, _ = record(a, env, torch.float64 if wide else torch.float32, alone=True)
    single, ddp = record(a, env, torch.float32)
    nudges = NUDGES if not wide else NUDGES[:1] if a.case.loss == "sum" else ()
    nudged = nudged_traces(a, env, nudges)
    dtypes, lower = record_lower(a, env)
    # One draw of a lower dtype's rounding is right by chance where few elements are left.
    lower += tuple(nudged_trace(a, env, dtype=dtype) for dtype in dtypes)
    own, low = a.imported is not None, bool(a.case.stored_low)
    eps = EPSILON["bfloat16" if low else "float32"]
    return Reference(right, single, lower, nudged, own, eps), dtypes, ddp


def record(
    a: Anatomy, env: RankEnv, dtype: torch.dtype, *, alone: bool = False, nudge: int = 0
) -> tuple[Trace, bool]:
    """Trains the plain model; the trace, and whether ``DistributedDataParallel`` did it.

    ``alone`` goes without that.
    """
    ddp = dtype == torch.float32 and not alone and not needs_averaging(a)
    recorder = Recorder(a, ddp=ddp, device=env.device, nudge=nudge)
    Execution(
        recipe=lower(a),
        env=env,
        role="ddp" if ddp else "plain",
        dtype=dtype,
        label=f"reference-{_name(dtype)}",
        watcher=recorder,
    ).run()
    return recorder.finish(), ddp


def nudged_traces(a: Anatomy, env: RankEnv, nudges: Sequence[int] = NUDGES) -> tuple[Trace, ...]:
    """One for each of these numbers of roundings."""
    return tuple(nudged_trace(a, env, roundings) for roundings in nudges)


def nudged_trace(
    a: Anatomy, env: RankEnv, roundings: int = 1, dtype: torch.dtype = torch.float32
) -> Trace:
    """The plain model's training, each parameter off by about so many roundings of float32's."""
    return record(a, env, dtype, alone=True, nudge=roundings)[0]


def _nudge(parameters: Mapping[str, nn.Parameter], low: frozenset[str], roundings: int) -> None:
    """By one rounding of its own where that is more: ``low`` are stored in bfloat16."""
    source = torch.Generator().manual_seed(roundings)
    for name, p in parameters.items():
        up = torch.randint(2, p.shape, generator=source).to(p.device) * 2 - 1
        # ``data``: a parameter that requires grad is a leaf, which autograd lets nobody change in
        # place.
        eps = EPSILON["bfloat16"] if name in low else torch.finfo(p.dtype).eps
        p.data.mul_(1 + up * max(eps, roundings * FLOAT32_EPS))


def lower_dtypes(a: Anatomy) -> tuple[torch.dtype, ...]:
    """The dtypes below float32 that take part where units compute in one.

    Where they only reduce in one, nothing is blown up that was lost in it.
    """
    given = [unit.precision for unit in a.plan.units if unit.precision is not None]
    names: set[str | None] = {"bfloat16"} if a.case.stored_low else set()
    if any(precision.param in ("float16", "bfloat16") for precision in given):
        # All dtypes of all units: a dtype in which one unit only reduces bounds what comes out of
        # those that compute in another.
        names |= {name for p in given for name in (p.param, p.reduce, p.buffer, p.output)}
    return tuple(dtype for dtype in (torch.bfloat16, torch.float16) if _name(dtype) in names)


def record_lower(a: Anatomy, env: RankEnv) -> tuple[tuple[torch.dtype, ...], tuple[Trace, ...]]:
    """Trains the plain model in each of `lower_dtypes`; which of them, and the traces.

    Left out is what torch has no kernel for on this device: FSDP will say so itself.
    """
    dtypes, traces = [], []
    for dtype in lower_dtypes(a):
        try:
            trace, _ = record(a, env, dtype)
        except (RuntimeError, NotImplementedError) as error:
            # How ATen's dispatch says that a kernel lacks a dtype (``AT_DISPATCH``); it has no type
            # of its own.
            if "not implemented for" not in str(error):
                raise
            continue
        dtypes.append(dtype)
        traces.append(trace)
    return tuple(dtypes), tuple(traces)
