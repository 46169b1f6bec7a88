"""Whether fsdpfuzz can run on this machine, what it will leave out, and why."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from typing import Literal

import msgspec
from packaging.version import InvalidVersion, Version

from fsdpfuzz.case import APIS, ITERATION, NEWER, CaseSpec, chain
from fsdpfuzz.case.base import ranks_in_words
from fsdpfuzz.errors import FsdpFuzzError, MachineError, one_line
from fsdpfuzz.invariants import judge
from fsdpfuzz.known import Known
from fsdpfuzz.loop import PROFILES, installed_torch
from fsdpfuzz.observations import Observation
from fsdpfuzz.pool import (
    Deadlines,
    Interpreter,
    Machine,
    Pool,
    choose_backend,
    probe_machine,
)
from fsdpfuzz.show._limits import Memory, in_words, memory_limits
from fsdpfuzz.wire import DEVICES, Backend

OLDEST_TORCH = "2.7"
BYTES_PER_RANK = 400 << 20
SHARED_BYTES = 256 << 20
CEILING_SECONDS = 60.0
LATENCY = "fsdpfuzz.ranks._latency:inject"

FEATURES = {
    "fsdp1": ("FullyShardedDataParallel", "cases of fsdp1 (use --api fsdp2)"),
    "fsdp2": ("fully_shard", "cases of fsdp2 (use --api fsdp1)"),
    "ignored_params": ("fully_shard(ignored_params=)", "cases of fsdp2 with ignored modules"),
    "checkpoint_wrapper": ("checkpoint_wrapper", "cases with checkpoint_wrapper"),
    "composable_checkpoint": ("composable checkpoint", "cases with the composable checkpoint"),
    "mem_tracker": ("FSDPMemTracker", "the tracker rules of the property memory"),
    "state_dict": ("get_model_state_dict", "state dicts of fsdp2"),
}
"""Name to what torch calls it, and what is left out where it is missing."""

NO_RANKS = ("hang", "rank_death")
"""Symptoms of a machine on which ranks cannot work, as of a defect."""

State = Literal["ok", "note", "missing"]


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at. ``missing``: `fsdpfuzz run` cannot work without it."""

    name: str
    state: State
    detail: str


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """Something that will not run on this machine, and why."""

    what: str
    why: str


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was found."""

    checks: tuple[Check, ...]
    skipped: tuple[Skipped, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """Why `fsdpfuzz run` cannot work here; empty if it can."""
        return tuple(f"{c.name}: {c.detail}" for c in self.checks if c.state == "missing")


def diagnose(
    backend: str = "auto",
    world_size: int = 2,
    known: Known | None = None,
    python: Interpreter | None = None,
) -> Iterator[Check | Skipped]:
    """Looks at everything in turn; what depends on something missing is left out.

    Starts ``world_size`` ranks, trains one small model with each API in them, and measures
    a collective. They run on ``python``, else on the controller's own.
    """
    memory = memory_limits()
    own = (platform.python_version(), sys.executable)
    version, executable = own if python is None else (python.python, python.executable)
    yield _ok("Python", f"{version}, {executable}")
    yield from _resources(memory, world_size)
    torch = _torch(installed_torch() if python is None else python.torch)
    yield torch
    if torch.state == "missing":
        return
    try:
        machine = probe_machine(python)
    except FsdpFuzzError as error:
        yield _missing("torch loads", one_line(str(error)))
        return
    yield from _machine(machine)
    try:
        chosen = choose_backend(machine, backend, world_size)
    except MachineError as error:
        yield _missing("backend", one_line(str(error)))
        return
    yield _ok("backend", f"{chosen}, {ranks_in_words(world_size)}")
    if chosen == "nccl":
        yield _shared_memory(memory)
    yield from _ranks(chosen, world_size, machine, known or Known(), python)
    yield from _skipped(machine, chosen)


def as_diagnosis(found: list[Check | Skipped]) -> Diagnosis:
    """What `diagnose` gave, sorted out."""
    return Diagnosis(
        checks=tuple(item for item in found if isinstance(item, Check)),
        skipped=tuple(item for item in found if isinstance(item, Skipped)),
    )


def _ok(name: str, detail: str) -> Check:
    return Check(name=name, state="ok", detail=detail)


def _note(name: str, detail: str) -> Check:
    return Check(name=name, state="note", detail=detail)


def _missing(name: str, detail: str) -> Check:
    return Check(name=name, state="missing", detail=detail)


def _torch(version: str) -> Check:
    advice = f"pip install 'torch>={OLDEST_TORCH}'"
    if not version:
        return _missing("torch", f"not installed: {advice}")
    try:
        old = Version(version).release < Version(OLDEST_TORCH).release
    except InvalidVersion:
        return _note("torch", f"{version}, which is no version that can be compared")
    if old:
        return _missing("torch", f"{version} is older than {OLDEST_TORCH}: {advice}")
    return _ok("torch", version)


def _resources(memory: Memory, world_size: int) -> Iterator[Check]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    if cores < world_size:
        yield _note("cores", f"{cores}, fewer than the {world_size} ranks: they take turns")
    else:
        yield _ok("cores", str(cores))
    told = [
        f"{in_words(size)} {what}"
        for size, what in (
            (memory.physical, "in all"),
            (memory.available, "available"),
            (memory.cgroup, "allowed by the control group"),
            (memory.address_space, "of address space (ulimit -v)"),
        )
        if size
    ]
    needed = BYTES_PER_RANK * (world_size + 1)
    if 0 < memory.usable < needed:
        told.append(f"but {world_size} ranks may take {in_words(needed)}")
        yield _note("memory", ", ".join(told))
    else:
        yield _ok("memory", ", ".join(told) or "unknown")


def _machine(machine: Machine) -> Iterator[Check]:
    if machine.cuda:
        yield _ok("CUDA", machine.cuda)
    else:
        yield _note("CUDA", "this torch is built without it")
    if machine.gpus:
        names = ", ".join(dict.fromkeys(machine.gpu_names))
        yield _ok("GPUs", f"{machine.gpus}, {names}")
    else:
        yield _note("GPUs", "none that torch can use")
    if machine.nccl:
        yield _ok("NCCL", machine.nccl)
    else:
        yield _note("NCCL", "this torch is built without it")
    if machine.gloo:
        yield _ok("gloo", "built in")
    else:
        yield _note("gloo", "this torch is built without it")
    for name, (shown, without) in FEATURES.items():
        if machine.features.get(name, False):
            yield _ok(shown, "offered")
        else:
            yield _note(shown, f"not in torch {machine.torch}; left out: {without}")
    for dimension, missing in _newer(machine):
        if missing:
            told = f"torch {machine.torch} has no {missing}; left out: cases with {dimension}"
            yield _note(dimension, told)
        else:
            yield _ok(dimension, "offered")


def _newer(machine: Machine) -> Iterator[tuple[str, str]]:
    """Each dimension that not every torch has, and what it needs and this torch has not."""
    for dimension in dict.fromkeys(NEWER.values()):
        needed = (name for name, owner in NEWER.items() if owner == dimension)
        yield dimension, ", ".join(name for name in needed if not machine.features.get(name))


def _shared_memory(memory: Memory) -> Check:
    if 0 < memory.shared < SHARED_BYTES:
        advice = "NCCL may fail; in a container, give --shm-size 1g or --ipc host"
        return _note("/dev/shm", f"{in_words(memory.shared)}: {advice}")
    return _ok("/dev/shm", in_words(memory.shared) if memory.shared else "not there")


def _ranks(
    backend: Backend,
    world_size: int,
    machine: Machine,
    known: Known,
    python: Interpreter | None,
) -> Iterator[Check]:
    deadlines = Deadlines(ceiling=CEILING_SECONDS)
    with Pool(world_size, backend, deadlines=deadlines, injection=LATENCY, python=python) as pool:
        try:
            pool.start()
        except FsdpFuzzError as error:
            yield _missing("ranks", one_line(str(error)))
            return
        yield _ok("ranks", f"{world_size} met on {backend}")
        yield _device(backend, pool.gpus, machine)
        measured = False
        for api in APIS:
            if not machine.features.get(api, False):
                continue
            case = chain(api, (4, 5, 4), (0,), world_size, ITERATION)
            observation = pool.run(case)
            if not measured and observation.clean:
                measured = True
                yield _collective(observation)
            yield _training(api, case, observation, known)


def _device(backend: Backend, seen: int, machine: Machine) -> Check:
    """Where the ranks compute; ``seen`` is how many GPUs they see themselves."""
    if DEVICES[backend] == "cuda":
        return _ok("device", f"cuda, one for each rank, of {seen}")
    if seen:
        advice = "set CUDA_VISIBLE_DEVICES to nothing"
        return _note("device", f"cpu, but the ranks see {_gpus(seen)}: {advice}")
    hidden = f"; {_gpus(machine.gpus)} hidden from the ranks" if machine.gpus else ""
    return _ok("device", f"cpu{hidden}")


def _gpus(number: int) -> str:
    return f"{number} GPU{'s' if number > 1 else ''}"


def _collective(observation: Observation) -> Check:
    reports = [report for report in observation.reports if report is not None]
    told = [
        f"{_time(max(report.timings.get(name, 0.0) for report in reports))} for an {name}"
        for name in (reports[0].timings if reports else {})
    ]
    if told:
        return _ok("collective", ", ".join(told))
    return _missing("collective", f"nothing could be measured on {observation.backend}")


def _training(api: str, case: CaseSpec, observation: Observation, known: Known) -> Check:
    """A finding is what fsdpfuzz is for, unless ranks that hang or die look like the machine's."""
    name = f"training, {api}"
    verdict = judge(case, observation)
    if verdict.findings:
        finding = verdict.findings[0]
        told = f"{finding.key}: {finding.message}"
        torch, backend = observation.torch, observation.backend
        entry = known.match(case, finding, torch=torch, backend=backend)
        if entry is not None:
            return _note(name, one_line(f"FSDP is wrong here, known as {entry}: {told}", 400))
        if finding.symptom in NO_RANKS:
            return _missing(name, one_line(told, 400))
        return _note(name, one_line(f"FSDP is wrong here, which is new: {told}", 400))
    if verdict.status != "passed":
        return _missing(name, one_line(f"{verdict.status}: {verdict.reason}", 400))
    return _ok(name, "two units, one step: as DDP does it")


def _skipped(machine: Machine, backend: str) -> Iterator[Skipped]:
    if backend == "gloo":
        enough = machine.nccl and machine.gpus >= 2
        why = "gloo was chosen" if enough else "that needs a torch with NCCL and two GPUs"
        yield Skipped(what="everything on NCCL", why=why)
    else:
        for profile in PROFILES.values():
            over = [str(size) for size in profile.world_sizes if size > machine.gpus]
            if over:
                what = f"world size {' and '.join(over)} of the profile {profile.name}"
                why = f"NCCL has one rank per GPU, and there are {machine.gpus}"
                yield Skipped(what=what, why=why)
    for name, (shown, without) in FEATURES.items():
        if not machine.features.get(name, False):
            yield Skipped(what=without, why=f"torch {machine.torch} has no {shown}")
    for dimension, missing in _newer(machine):
        if missing:
            why = f"torch {machine.torch} has no {missing}"
            yield Skipped(what=f"cases with {dimension}", why=why)


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"
