"""Runs one case on one rank: reference first, then FSDP, and says what was seen."""

from __future__ import annotations

import time
from collections.abc import Iterable, Set

import msgspec
import torch
from torch._C._distributed_c10d import DebugLevel, set_debug_level

from fsdpfuzz.case import (
    EPSILON,
    Anatomy,
    CaseSpec,
    anatomy,
    cast_buffer,
    coarsest,
    digest,
    recomputed,
    variant_of,
    within,
)
from fsdpfuzz.case.operations.overflow import incomparable
from fsdpfuzz.expect import same_arithmetic
from fsdpfuzz.observations import Comparison, RankReport, Subject
from fsdpfuzz.ranks._buffers import buffers_of
from fsdpfuzz.ranks._compare import Batch, floor_of
from fsdpfuzz.ranks._disagreement import disagreement
from fsdpfuzz.ranks._env import RankEnv
from fsdpfuzz.ranks._execute import Variables
from fsdpfuzz.ranks._memory import measure
from fsdpfuzz.ranks._probe import Counters, probes
from fsdpfuzz.ranks._reference import NEVER, Reference, Trace, references
from fsdpfuzz.ranks._subject import observe
from fsdpfuzz.ranks._variants import Likeness


def run_case(case: CaseSpec, env: RankEnv) -> RankReport:
    """Trains ``case`` on this rank; raises whatever FSDP or the reference raises.

    Every rank must call it with the same case: it runs collectives.
    """
    started = time.perf_counter()
    # The environment may ask for another one (TORCH_DISTRIBUTED_DEBUG).
    set_debug_level(DebugLevel.OFF)
    a = anatomy(case)
    # No reference beside it: its tensors would count.
    if "mem_tracker" in case.probes:
        subject = measure(a, env)
        seconds = time.perf_counter() - started
        return RankReport(
            rank=env.rank, digest=digest(case), subjects=(subject,), work_seconds=seconds
        )
    # These issue collectives of their own, which the case's level is not about.
    reference, dtypes, ddp = references(a, env)
    left, dtype = reference.leaves(dtypes)
    beyond = f"the range of {dtype}" if dtype else ""
    settled, disagree = disagreement(a, env, reference, left)
    if settled < left:
        left, beyond = settled, "what rounding in float32 lets be told"
    work = time.perf_counter() - started
    subjects = []
    # fsdp1 reads it once, when it wraps
    # (torch/distributed/fsdp/_init_utils.py, ``_init_core_state``).
    set_debug_level(getattr(DebugLevel, case.debug_level))
    try:
        shapes = {p.fqn: p.shape for p in a.parameters}
        pattern = Likeness(shapes) if case.twins else None
        counting = recomputed_counters(a)
        subject, work_here = _observe("case", a, reference, env, pattern, counting)
        subjects.append(_until(left, subject, incomparable(case)))
        work += work_here
        # After the case: each is compared with what the case left in ``pattern``.
        for variant in case.twins:
            likeness = Likeness(shapes, pattern, exact=same_arithmetic(a, variant))
            run = anatomy(variant_of(case, variant))
            apart = frozenset(case.frozen) ^ frozenset(run.case.frozen)
            unsettled = counting | recomputed_counters(run)
            subject, work_here = _observe(
                variant.name, run, reference, env, likeness, unsettled, apart
            )
            subjects.append(_until(left, subject, incomparable(case)))
            work += work_here
    except RuntimeError as error:
        if not _refuses(case, left, error):
            raise
        # As it should, and as every rank does; of all that came before nothing was kept.
        return RankReport(rank=env.rank, digest=digest(case), beyond=beyond, work_seconds=work)
    finally:
        set_debug_level(DebugLevel.OFF)
    losses = reference.single.losses
    dead, live = _signal(a, reference.wide, left)
    return RankReport(
        rank=env.rank,
        digest=digest(case),
        subjects=tuple(subjects),
        reference="ddp" if ddp else "averaged",
        reference_losses=tuple(torch.stack(losses).tolist()) if losses else (),
        reference_apart=disagree,
        dead=dead,
        live=live,
        beyond=beyond,
        work_seconds=work,
    )


def _observe(
    name: str,
    a: Anatomy,
    reference: Reference,
    env: RankEnv,
    likeness: Likeness | None,
    unsettled: frozenset[str],
    apart: frozenset[str] = frozenset(),
) -> tuple[Subject, float]:
    counters = Counters()
    # What the reference issued is not FSDP's.
    env.collectives.clear()
    env.issued.clear()
    started = time.perf_counter()
    with probes(counters):
        observer, variables = observe(name, a, reference, counters, env, likeness, apart, unsettled)
        if env.device.type == "cuda":
            # What the device has not done yet would raise, and be timed, in what comes after.
            torch.cuda.synchronize(env.device)
    # Without the comparing, which takes as long as it takes for whatever FSDP did.
    seconds = time.perf_counter() - started - observer.seconds
    observer.comparisons.extend(_buffers(a, variables, reference, unsettled))
    return observer.subject(name), seconds


def _buffers(
    a: Anatomy, variables: Variables, reference: Reference, unsettled: frozenset[str]
) -> tuple[Comparison, ...]:
    at = len(a.case.program)
    batch = Batch("buffer", at, 0.0, 0.0, exact=True)
    computed = reference.computed_buffers(a)
    wide = reference.wide.buffers
    rounded = Batch(
        "buffer",
        at,
        EPSILON[coarsest(a.last)],
        floor_of({name: wide.get(name) for name in computed}),
        baselines=lambda: reference.buffer_baselines(computed, lambda trace: trace.buffers),
    )
    for fqn, buffer in buffers_of(variables["model"]).items():
        if fqn in unsettled:
            continue
        if fqn in computed:
            rounded.add(fqn, buffer, wide.get(fqn))
        else:
            right, dtype = reference.single.buffers.get(fqn), cast_buffer(a.last, fqn)
            if right is not None and dtype is not None and right.is_floating_point():
                # As FSDP casts it: a buffer has to be equal to the last bit, rounded or not.
                right = right.to(getattr(torch, dtype))
            batch.add(fqn, buffer, right)
    return (*batch.finish(), *rounded.finish())


def recomputed_counters(a: Anatomy) -> frozenset[str]:
    """Buffers that forward updates inside a recomputed module.

    Non-reentrant recomputation stops as soon as it has what backward needs, so how often it
    reaches such a buffer is not defined (``torch.utils.checkpoint.set_checkpoint_early_stop``).
    """
    paths = recomputed(a)
    if a.imported is not None and a.imported.wrapped:
        paths = [""]  # what is wrapped may be recomputed, too
    return frozenset(
        buffer for buffer in a.changed_buffers if any(within(buffer, path) for path in paths)
    )


def _refuses(case: CaseSpec, left: int, error: RuntimeError) -> bool:
    """Whether an operation had to raise this, as training had ``left`` the range of a dtype."""
    asked = (i for i, op in enumerate(case.program) if op.may_refuse(str(error)))
    return left <= next(asked, -1)


def _until(left: int, subject: Subject, silent: Set[int] = frozenset()) -> Subject:
    """The subject without what says nothing: from an operation on, and of some others."""

    def told(comparisons: Iterable[Comparison]) -> tuple[Comparison, ...]:
        return tuple(c for c in comparisons if c.op < left and c.op not in silent)

    return msgspec.structs.replace(
        subject, comparisons=told(subject.comparisons), against_case=told(subject.against_case)
    )


def _signal(a: Anatomy, wide: Trace, left: int) -> tuple[tuple[str, ...], int]:
    """Trainable, used parameters without any gradient in the reference, and how many have one.

    Where training is not compared to its end, only those that have one before ``left`` say
    something, and nothing is said of those that have none.
    """
    frozen = set(a.case.frozen)
    used = [p.fqn for p in a.distinct if p.used and p.fqn not in frozen]
    largest = {
        name: max(
            (
                float(grad.abs().max())
                for op, grads in wide.grads.items()
                if op < left and (grad := grads.get(name)) is not None and grad.numel()
            ),
            default=0.0,
        )
        for name in used
    }
    # A gradient of exact zeros all along would hide any error that scales it.
    dead = tuple(name for name in used if largest.get(name, 0.0) == 0.0)
    live = len(used) - len(dead)
    return (dead if left == NEVER else ()), live
