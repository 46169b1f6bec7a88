"""Runs one case on one rank: reference first, then FSDP, and says what was seen."""

from __future__ import annotations

import time

import torch
from torch import Tensor
from torch._C._distributed_c10d import DebugLevel, set_debug_level

from fsdpfuzz.observations import Comparison, RankReport, Subject
from fsdpfuzz.ranks._compare import Batch, Yardstick
from fsdpfuzz.ranks._env import RankEnv
from fsdpfuzz.ranks._memory import measure
from fsdpfuzz.ranks._names import clean
from fsdpfuzz.ranks._probe import Counters, probes
from fsdpfuzz.ranks._program import run_program
from fsdpfuzz.ranks._reference import Replica
from fsdpfuzz.ranks._subject import Comparer, FsdpTrainee, Reference, summarise
from fsdpfuzz.ranks._trace import Recorder, Trace
from fsdpfuzz.ranks._twins import Likeness
from fsdpfuzz.spec import (
    Buffered,
    CaseSpec,
    case_places,
    digest,
    same_arithmetic,
    variant_of,
    within,
)


def run_case(case: CaseSpec, env: RankEnv) -> RankReport:
    """Trains ``case`` on this rank; raises whatever FSDP or the reference raises.

    Every rank must call it with the same case: it runs collectives.
    """
    started = time.perf_counter()
    set_debug_level(DebugLevel.OFF)
    if "mem_tracker" in case.probes:
        subject = measure(case, env)
        seconds = time.perf_counter() - started
        return RankReport(
            rank=env.rank, digest=digest(case), subjects=(subject,), work_seconds=seconds
        )
    env.flight.stage("reference:build")
    wide, _ = _record(case, env, torch.float64)
    single, how = _record(case, env, torch.float32)
    reference = Reference(wide, single)
    work = time.perf_counter() - started
    subjects = []
    set_debug_level(getattr(DebugLevel, case.debug_level))
    try:
        pattern = Likeness() if case.twins else None
        counters = _recomputed_counters(case)
        subject, work_here = _observe("case", case, reference, env, pattern, counters)
        subjects.append(subject)
        work += work_here
        for twin in case.twins:
            likeness = Likeness(pattern, exact=same_arithmetic(case, twin))
            variant = variant_of(case, twin)
            apart = frozenset(case.frozen) ^ frozenset(variant.frozen)
            unsettled = counters | _recomputed_counters(variant)
            subject, work_here = _observe(
                twin.name, variant, reference, env, likeness, unsettled, apart
            )
            subjects.append(subject)
            work += work_here
    finally:
        set_debug_level(DebugLevel.OFF)
    dead, live = _signal(case, wide)
    return RankReport(
        rank=env.rank,
        digest=digest(case),
        subjects=tuple(subjects),
        reference="averaged" if how else "ddp",
        reference_losses=tuple(torch.stack(single.losses).tolist()) if single.losses else (),
        dead=dead,
        live=live,
        work_seconds=work,
    )


def _record(case: CaseSpec, env: RankEnv, dtype: torch.dtype) -> tuple[Trace, bool]:
    replica = Replica(case, env, dtype)
    recorder = Recorder(case, replica)
    run_program(case, replica, recorder, env)
    trace = recorder.trace
    trace.buffers = {name: buffer.detach() for name, buffer in replica.buffers().items()}
    return trace, replica.averages


def _observe(
    name: str,
    case: CaseSpec,
    reference: Reference,
    env: RankEnv,
    likeness: Likeness | None,
    unsettled: frozenset[str],
    apart: frozenset[str] = frozenset(),
) -> tuple[Subject, float]:
    counters = Counters()
    env.collectives.clear()
    started = time.perf_counter()
    env.flight.stage(f"{name}:wrap")
    with probes(counters):
        trainee = FsdpTrainee(case, env, name)
        comparer = Comparer(case, trainee, reference, counters, likeness, apart)
        run_program(case, trainee, comparer, env)
        if env.device.type == "cuda":
            torch.cuda.synchronize(env.device)
    seconds = time.perf_counter() - started - comparer.seconds
    comparer.comparisons.extend(_buffers(trainee, reference, unsettled))
    return summarise(trainee, comparer, counters, env), seconds


def _buffers(
    trainee: FsdpTrainee, reference: Reference, unsettled: frozenset[str]
) -> tuple[Comparison, ...]:
    batch = Batch("buffer", len(trainee.case.program), 0.0, 0.0, exact=True)
    for name, buffer in trainee.model.named_buffers():
        if clean(name) in unsettled:
            continue
        expected: Tensor | None = reference.single.buffers.get(clean(name))
        batch.add(clean(name), buffer.detach(), expected, Yardstick(0.0, 1.0))
    return batch.finish()


def _recomputed_counters(case: CaseSpec) -> frozenset[str]:
    """Buffers that forward updates inside a recomputed module.

    Non-reentrant recomputation stops as soon as it has what backward needs, so how often it
    reaches such a buffer is not defined (``torch.utils.checkpoint.set_checkpoint_early_stop``).
    """
    recomputed = [c.path for c in case.checkpoints if c.kind != "offload"]
    return frozenset(
        buffer
        for place in case_places(case)
        if isinstance(place.node, Buffered) and place.node.updates
        for buffer in place.buffers
        if any(within(place.path, path) for path in recomputed)
    )


def _signal(case: CaseSpec, wide: Trace) -> tuple[tuple[str, ...], int]:
    """Trainable, used parameters without any gradient in the reference, and how many have one."""
    targets = {tie.target for tie in case.ties}
    frozen = set(case.frozen)
    used = [
        parameter.fqn
        for place in case_places(case)
        for parameter in place.parameters
        if parameter.used and parameter.fqn not in frozen and parameter.fqn not in targets
    ]
    largest = {
        name: max(
            (
                float(grad.abs().max())
                for grads in wide.grads.values()
                if (grad := grads.get(name)) is not None and grad.numel()
            ),
            default=0.0,
        )
        for name in used
    }
    dead = tuple(name for name in used if largest.get(name, 0.0) == 0.0)
    return dead, len(used) - len(dead)
