"""Ranks that run one case at a time, whatever the cases do to them."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from fsdpfuzz.case import CaseSpec, anatomy, digest, encode
from fsdpfuzz.errors import ContractError, MachineError, PoolError
from fsdpfuzz.forkserver import ForkServer, Interpreter, ServerLostError
from fsdpfuzz.observations import Observation
from fsdpfuzz.pool._crew import Crew
from fsdpfuzz.pool._deadline import Deadlines, Pace
from fsdpfuzz.pool._watch import Watch
from fsdpfuzz.wire import DEVICES, Backend, Come, Failed, Order, Ready, Run, Setup, Target

_START_SECONDS = {"gloo": 60.0, "nccl": 180.0}
_STARTS = 2
_LARGE = 1 << 22
"""Elements of parameters from which on a case takes a time of its own."""
_FRESH_FACTOR = 2.0
"""The first case of fresh ranks pays for what torch does only once."""


@dataclass(frozen=True, slots=True)
class _Task:
    """A case that the ranks are at."""

    case: CaseSpec
    patient: bool
    crew: Crew
    watch: Watch
    name: str
    started: float


class Pool:
    """``world_size`` ranks on this machine, in one process group.

    Ranks start with the first case, or with `start`. After any outcome but a clean pass or
    a clean refusal by all ranks they are killed, and the next case has fresh ones. Use it as
    a context manager, or call `close`; pools of one process share the process that their
    ranks are forked from.

    ``injection`` names a ``module:function`` that each rank calls with its `RankEnv` before its
    first case. ``workdir`` is where the pool's private folder is made while it lives; the
    folder for temporary files by default. Ranks run on ``python``, else on the controller's own.
    ``target`` is the only code of your own that they import. With ``taps`` they only look where
    the modules of a case depart from the reference.
    """

    def __init__(
        self,
        world_size: int,
        backend: Backend,
        *,
        deadlines: Deadlines | None = None,
        injection: str | None = None,
        workdir: Path | None = None,
        python: Interpreter | None = None,
        target: Target | None = None,
        taps: bool = False,
    ) -> None:
        self.world_size = world_size
        self.backend = backend
        self.torch = ""
        """Version of torch in the ranks; empty before the first start."""
        self.gpus = 0
        """How many GPUs the ranks see."""
        self._pace = Pace(deadlines or Deadlines())
        self._injection = injection
        self._target = target
        self._taps = taps
        self._workdir = workdir
        self._python = python
        self._made_workdir = False
        self._server: ForkServer | None = None
        self._folder: Path | None = None
        self._crew: Crew | None = None
        self._task: _Task | None = None
        self._fresh = True
        self._generation = 0
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def restarts(self) -> int:
        """How often ranks were started again."""
        return max(0, self._generation - 1)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the living ranks."""
        return self._crew.pids if self._crew else ()

    def start(self) -> None:
        """Makes sure that all ranks are ready; `run` does it too.

        Raises :class:`PoolError` if they do not start, twice in a row, and
        :class:`MachineError` if torch cannot be imported.
        """
        if self._crew is not None:
            # A rank may have died since the last case, of what that left behind.
            self._crew.poll(0.0)
            if self._crew.whole:
                return
            self._discard()
        reasons = []
        for _ in range(_STARTS):
            try:
                reason = self._try_start()
            except BaseException:
                self._discard()
                raise
            if not reason:
                return
            self._discard()
            reasons.append(reason)
        raise PoolError(
            f"{self.world_size} ranks on {self.backend} did not start, {_STARTS} times; "
            f"the last reason: {reasons[-1]}"
        )

    def begin(self, case: CaseSpec, *, patience: bool = False) -> None:
        """Hands ``case`` to the ranks and goes on; `run` of the same case waits for the outcome.

        The deadline counts from here. Another case that was begun is given up. Raises what
        `run` raises.
        """
        if self._task is not None:
            self._discard()
        if case.world_size != self.world_size:
            raise ContractError(
                f"a case for {case.world_size} ranks was given to a pool of {self.world_size}"
            )
        self._task = self._begin(case, patience or _is_large(case))

    def run(self, case: CaseSpec, *, patience: bool = False) -> Observation:
        """What the ranks saw of ``case``.

        With ``patience``, and for a model so large that other cases say nothing about its
        time, the deadline is the ceiling; for a case that was begun, what `begin` was told
        counts.
        Raises only what `start` raises; nothing that a case does ends it otherwise.
        """
        if self._task is None or self._task.case != case:
            self.begin(case, patience=patience)
        task, self._task = self._task, None
        if task is None:
            raise ContractError("a case was begun, but the ranks are not at it")
        observation = self._end(task)
        if task.crew.orphaned and not observation.clean:
            # Whatever ended the process that the ranks come from need not be this case.
            self._discard()
            observation = self._end(self._begin(case, task.patient))
        if observation.clean:
            if not _is_large(case):
                self._pace.learn(observation.seconds)
        # A rank may be left in a collective, which gloo answers by an abort and NCCL by a hang.
        elif not _all_refused(observation):
            self._discard()
        return observation

    def close(self) -> None:
        """Ends the ranks and removes the pool's folder; a next case would start anew."""
        self._discard()
        if self._server is not None and self._folder is not None:
            self._server.remove_folder(self._folder)
            self._folder = None
        if self._made_workdir and self._workdir is not None:
            _remove_if_empty(self._workdir)

    def _running(self) -> Crew:
        if self._crew is None:
            raise ContractError("the ranks are ready but not there")
        return self._crew

    def _try_start(self) -> str:
        """Starts ranks; says why they do not run, or nothing."""
        try:
            server = ForkServer.get(gpus=DEVICES[self.backend] == "cuda", python=self._python)
            if server.worker_failure:
                raise MachineError(f"this torch cannot run FSDP: {server.worker_failure}")
            folder = self._private_folder(server)
            # Before the ranks: even a start that fails has written into a store of this number.
            self._generation += 1
            self._crew = Crew(server, folder, [self._setup(rank) for rank in self._everyone()])
        except ServerLostError as error:
            return f"the process that forks the ranks was lost: {error}"
        except OSError as error:
            return str(error)
        self._fresh = True
        return self._await_ready(self._crew)

    def _everyone(self) -> range:
        return range(self.world_size)

    def _setup(self, rank: int) -> Setup:
        return Setup(
            rank=rank,
            world_size=self.world_size,
            backend=self.backend,
            folder=str(self._folder),
            generation=self._generation,
            injection=self._injection,
            target=self._target,
            # The controller's, which may be a job that has a core of its own: what forks the ranks
            # was there before.
            cores=tuple(sorted(os.sched_getaffinity(0))),
            taps=self._taps,
        )

    def _private_folder(self, server: ForkServer) -> Path:
        # A lost server has taken its folders with it.
        if self._folder is None or self._server is not server:
            if self._workdir is not None and not self._workdir.exists():
                self._workdir.mkdir(parents=True, exist_ok=True)
                self._made_workdir = True
            self._folder, self._server = server.make_folder(self._workdir), server
        return self._folder

    def _await_ready(self, crew: Crew) -> str:
        end = time.monotonic() + _START_SECONDS[self.backend]
        ready: set[int] = set()
        while len(ready) < self.world_size:
            crew.poll(end - time.monotonic())
            for rank in crew.ranks:
                # The reason that a rank gives comes before its exit code, which says less.
                for message in rank.inbox:
                    if isinstance(message, Ready):
                        ready.add(rank.rank)
                        self.torch, self.gpus = message.torch, message.gpus
                    elif isinstance(message, Failed):
                        return f"rank {rank.rank}: {message.reason}"
                rank.inbox.clear()
                if rank.code is not None:
                    said = rank.printed(2000)
                    return f"rank {rank.rank} ended with exit code {rank.code}\n{said}".strip()
            if time.monotonic() >= end:
                late = sorted(set(self._everyone()) - ready)
                return f"ranks {late} were not ready after {_START_SECONDS[self.backend]:.0f} s"
        return ""

    def _begin(self, case: CaseSpec, patient: bool) -> _Task:
        self.start()
        crew = self._running()
        name = digest(case)
        deadline = self._pace.deadline(patient=patient)
        if self._fresh and not patient:
            deadline = min(deadline * _FRESH_FACTOR, self._pace.deadline(patient=True))
        # An answer to an earlier case, that comes late, is told by its number.
        self._number += 1
        watch = Watch(
            crew,
            deadline=deadline,
            grace=self._pace.grace(patient=patient),
            number=self._number,
            digest=name,
            ceiling=self._pace.deadline(patient=True),
        )
        first: Order = Run(number=self._number, case=encode(case), digest=name)
        others = [Come(number=self._number)] * (self.world_size - 1)
        started = time.monotonic()
        try:
            for rank in crew.ranks:
                # What ranks printed between cases is not this case's.
                rank.forget()
            crew.send([first, *others])
        except BaseException:
            self._discard()
            raise
        return _Task(case, patient, crew, watch, name, started)

    def _end(self, task: _Task) -> Observation:
        try:
            hang = task.watch.wait(task.started)
        except BaseException:
            self._discard()
            raise
        self._fresh = False
        return Observation(
            digest=task.name,
            world_size=self.world_size,
            backend=self.backend,
            torch=self.torch,
            reports=tuple(task.watch.reports),
            deaths=tuple(task.watch.deaths),
            hang=hang,
            seconds=time.monotonic() - task.started,
        )

    def _discard(self) -> None:
        """Kills the ranks, if there are any, and gives up what they are at."""
        # First: whatever interrupts the killing must not leave a crew that is half dead.
        crew, self._crew, self._task = self._crew, None, None
        if crew is not None:
            crew.kill()


def _all_refused(observation: Observation) -> bool:
    """All ranks raised the same documented type while wrapping: they are in step and can go on."""
    raised = observation.raised()
    return (
        observation.hang is None
        and not observation.deaths
        and len(raised) == observation.world_size
        # While wrapping, nothing of FSDP is under way; one that
        # raises later may leave the others in a collective.
        and all(error.documented and error.stage.endswith(":wrap") for _, error in raised)
        and len({error.type for _, error in raised}) == 1
    )


def _is_large(case: CaseSpec) -> bool:
    return sum(parameter.numel for parameter in anatomy(case).parameters) >= _LARGE


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()
