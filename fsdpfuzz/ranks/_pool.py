"""The controller's side of the ranks: start, send, wait, and pick up the pieces."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Literal

from fsdpfuzz.errors import PoolError
from fsdpfuzz.observations import Death, Hang, Observation
from fsdpfuzz.ranks._board import disagreement, read_board
from fsdpfuzz.ranks._deadline import Deadlines
from fsdpfuzz.ranks._launch import Forkserver, forkserver
from fsdpfuzz.ranks._member import Member
from fsdpfuzz.ranks._protocol import Done, Failed, RankConfig, Ready, RunCase
from fsdpfuzz.spec import CaseSpec, case_places, digest, encode

_START_SECONDS = 120.0
_KILL_SECONDS = 10.0
_STACK_SECONDS = 1.0
_MAX_STACK = 20_000
_LARGE = 1 << 22
"""Elements of parameters from which on a case takes a time of its own."""
_serial = count(1)


class Pool:
    """``world_size`` ranks that run one case after the other.

    Starts when the first case comes. After anything but a clean pass or a clean refusal the
    ranks are killed, and fresh ones start with the next case. Use it as a context manager,
    or call `close`.
    """

    def __init__(
        self,
        world_size: int,
        backend: Literal["gloo", "nccl"],
        *,
        deadlines: Deadlines | None = None,
        plant: str | None = None,
    ) -> None:
        self.world_size = world_size
        self.backend = backend
        self.restarts = 0
        self.torch = ""
        self._deadlines = deadlines or Deadlines()
        self._plant = plant
        self._members: list[Member] = []
        self._server: Forkserver | None = None
        self._selector: selectors.BaseSelector | None = None
        self._started_once = False

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the ranks; empty while none run."""
        return tuple(member.pid for member in self._members)

    def start(self) -> None:
        """Starts the ranks if they do not run; :class:`PoolError` if that fails twice."""
        if self._members:
            return
        if self._started_once:
            self.restarts += 1
        self._started_once = True
        try:
            self._start()
        except PoolError:
            self._stop()
            self._start()

    def run(self, case: CaseSpec, *, patience: bool = False) -> Observation:
        """Runs ``case``, whose world size is the pool's, and says what was seen.

        Nothing that a rank does makes it raise. With ``patience``, and for a model so large
        that other cases say nothing about its time, the deadline is the ceiling.
        :class:`PoolError` if no ranks can be started.
        """
        self.start()
        name = digest(case)
        large = _is_large(case)
        deadline = self._deadlines.ceiling if patience or large else self._deadlines.current()
        started = time.monotonic()
        for member in self._members:
            member.begin(RunCase(case=encode(case) if member.rank == 0 else b""))
        timed_out = self._wait(deadline, self._deadlines.grace(), name)
        observation = self._observe(name, deadline, timed_out)
        seconds = time.monotonic() - started
        if observation.clean:
            if not large:
                self._deadlines.passed(seconds)
        elif not _refused_alike(observation):
            self._stop()
        return observation

    def close(self) -> None:
        """Ends the ranks. They start again with the next case."""
        self._stop()

    def _start(self) -> None:
        server = self._server = forkserver()
        serial = f"{os.getpid()}-{next(_serial)}"
        store = server.workdir / f"store-{serial}"
        selector = self._selector = selectors.DefaultSelector()
        selector.register(server.socket, selectors.EVENT_READ)
        try:
            for rank in range(self.world_size):
                prefix = server.workdir / f"rank-{serial}-{rank}"
                config = RankConfig(
                    rank=rank,
                    world_size=self.world_size,
                    backend=self.backend,
                    store=str(store),
                    board=f"{prefix}.board",
                    stacks=f"{prefix}.stacks",
                    plant=self._plant,
                )
                self._members.append(Member(config, server.fork_rank(config), selector))
            self._await_ready()
        finally:
            store.unlink(missing_ok=True)

    def _await_ready(self) -> None:
        stop = time.monotonic() + _START_SECONDS
        while any(member.answer is None for member in self._members):
            self._poll(max(0.0, stop - time.monotonic()))
            for member in self._members:
                if isinstance(member.answer, Failed) or member.lost:
                    why = member.answer.error if isinstance(member.answer, Failed) else ""
                    raise PoolError(
                        f"rank {member.rank} of {self.world_size} could not start on "
                        f"{self.backend}: {why or member.output_tail() or 'no output'}"
                    )
            if time.monotonic() > stop:
                raise PoolError(
                    f"{self.world_size} ranks on {self.backend} did not meet within "
                    f"{_START_SECONDS:.0f} s"
                )
        for member in self._members:
            if isinstance(member.answer, Ready):
                self.torch = member.answer.torch

    def _wait(self, deadline: float, grace: float, name: str) -> bool:
        """Until every rank has answered or died; True if time ran out before that."""
        stop = time.monotonic() + deadline
        failed = False
        while any(member.waiting for member in self._members):
            if not failed and any(_has_failed(member, name) for member in self._members):
                failed, stop = True, min(stop, time.monotonic() + grace)
            left = stop - time.monotonic()
            if left <= 0:
                return True
            self._poll(left)
        return False

    def _poll(self, seconds: float) -> None:
        if self._selector is None or self._server is None:
            raise PoolError("the pool has no ranks")
        for key, _ in self._selector.select(seconds):
            if key.data is None:
                self._server.read_notices(0.0)
            else:
                key.data()
        for member in self._members:
            member.note_end()

    def _observe(self, name: str, deadline: float, timed_out: bool) -> Observation:
        dead = [member for member in self._members if member.lost]
        if dead:
            self._await_exit_codes(dead)
        hang = self._hang(deadline) if timed_out else None
        reports = tuple(
            member.answer.report
            if isinstance(member.answer, Done) and member.answer.report.digest in ("", name)
            else None
            for member in self._members
        )
        return Observation(
            digest=name,
            world_size=self.world_size,
            backend=self.backend,
            torch=self.torch,
            reports=reports,
            deaths=tuple(
                Death(
                    rank=member.rank,
                    exitcode=member.exitcode,
                    stage=read_board(member.board).stage,
                    output=member.output_tail(),
                )
                for member in dead
            ),
            hang=hang,
        )

    def _await_exit_codes(self, dead: Sequence[Member]) -> None:
        stop = time.monotonic() + _STACK_SECONDS
        while any(m.child.exitcode is None for m in dead) and time.monotonic() < stop:
            self._poll(0.05)

    def _hang(self, deadline: float) -> Hang:
        waiting = tuple(member.rank for member in self._members if member.waiting)
        stacks = self._stacks()
        readings = [read_board(member.board) for member in self._members]
        odd, told = disagreement(readings)
        return Hang(
            ranks=waiting,
            deadline=deadline,
            stages=tuple(reading.stage for reading in readings),
            stacks=stacks,
            odd_ranks=odd,
            disagreement=told,
            after_failure=any(member.lost or _raised(member) for member in self._members),
        )

    def _stacks(self) -> tuple[str, ...]:
        """The stacks of all ranks, by faulthandler: that works in an endless loop in C too."""
        alive = [member for member in self._members if member.child.exitcode is None]
        for member in alive:
            _signal(member.pid, signal.SIGUSR1)
        stop = time.monotonic() + _STACK_SECONDS
        sizes: dict[int, int] = {}
        while time.monotonic() < stop:
            time.sleep(0.02)
            now = {member.rank: _size(member.stacks) for member in alive}
            if now == sizes and all(now.values()):
                break
            sizes = now
        return tuple(_text(member.stacks) for member in self._members)

    def _stop(self) -> None:
        members, self._members = self._members, []
        for member in members:
            member.leave()
            if member.child.exitcode is None:
                _signal(member.pid, signal.SIGKILL)
        for member in members:
            if self._server is not None and self._server.alive:
                self._server.forget(member.child, _KILL_SECONDS)
            else:
                member.child.close()
            for path in (member.board, member.stacks):
                path.unlink(missing_ok=True)
        if self._selector is not None:
            self._selector.close()
            self._selector = None


def _has_failed(member: Member, name: str) -> bool:
    if member.lost or _raised(member):
        return True
    return isinstance(member.answer, Done) and member.answer.report.digest != name


def _raised(member: Member) -> bool:
    return isinstance(member.answer, Done) and member.answer.report.raised is not None


def _refused_alike(observation: Observation) -> bool:
    """All ranks raised the same documented type: they are in step and can go on."""
    raised = observation.raised()
    return (
        observation.hang is None
        and not observation.deaths
        and len(raised) == observation.world_size
        and all(error.documented and error.stage.endswith(":wrap") for _, error in raised)
        and len({error.type for _, error in raised}) == 1
    )


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[-_MAX_STACK:]
    except OSError:
        return ""


def _is_large(case: CaseSpec) -> bool:
    found = (parameter for place in case_places(case) for parameter in place.parameters)
    return sum(parameter.numel for parameter in found) >= _LARGE
