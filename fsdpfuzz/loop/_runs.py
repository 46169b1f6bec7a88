"""Runs cases on pools of ranks and has them judged. Harness errors end here."""

from __future__ import annotations

import platform
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from fsdpfuzz.case import CaseSpec, digest
from fsdpfuzz.errors import one_line
from fsdpfuzz.loop._confirm import Judged
from fsdpfuzz.loop._harness import TRIES, fault_of, in_words, refusal, traced
from fsdpfuzz.loop._known import lacking_in_torch
from fsdpfuzz.loop._ports import HarnessError, PoolLike, Ports, outcome_of
from fsdpfuzz.loop._settings import SessionSettings
from fsdpfuzz.observations import Observation
from fsdpfuzz.verdict import Verdict


@dataclass(slots=True)
class _Failing:
    """What went wrong that is no fault of FSDP's, if anything did."""

    fault: str = ""
    trace: str = ""


class Runs:
    """The pools of a session, one for each world size, which start when first needed.

    A case that ends in a harness error is run again on fresh ranks. What comes of it then
    stands; one that ends so each time is no finding, whatever it shows.
    """

    def __init__(self, settings: SessionSettings, ports: Ports) -> None:
        self.harness_errors: list[HarnessError] = []
        self.tell: Callable[[HarnessError], None] = lambda _: None
        """Told of each harness error when it is met."""
        self.torch = settings.torch
        """The version in the ranks, as far as known."""
        self._settings = settings
        self._ports = ports
        self._pools: dict[int, PoolLike] = {}
        self._closed_restarts = 0
        python = settings.python
        self._python = platform.python_version() if python is None else python.python

    def renew(self, ports: Ports) -> None:
        """Other ports for what starts from now on."""
        self._ports = ports

    @property
    def restarts(self) -> int:
        """How often ranks were started again, over all world sizes."""
        # Of those that were closed, too: a later pool of that size counts from 0.
        return self._closed_restarts + sum(pool.restarts for pool in self._pools.values())

    def begin(self, case: CaseSpec) -> bool:
        """Has the ranks start on a case; False for one that must not be sent to them."""
        if refusal(case) or lacking_in_torch(case, self._settings.offers):
            return False
        self.pool(case.world_size).begin(case)
        return True

    def judged(self, case: CaseSpec, *, patience: bool = False) -> Judged:
        """What the ranks saw of a case, and the verdict.

        A case for another torch than theirs is refused without them.
        """
        missing = lacking_in_torch(case, self._settings.offers)
        if missing:
            return self._unseen(case), Verdict(status="rejected", reason=f"it needs {missing}")
        refused = refusal(case)
        if refused:
            self._note(case, _Failing(refused), [], gone=False)
            return self._unseen(case), _verdict(refused)
        seen: list[Observation] = []
        first = _Failing()
        while len(seen) < TRIES:
            if seen:
                # Fresh ranks: what the fault left in the old ones would fail the case again.
                self.pool(case.world_size).close()
            pool = self.pool(case.world_size)
            if not seen:
                # While ranks that were begun on the case train. What is raised says so again
                # when the case is judged, and is told there.
                with suppress(Exception):
                    self._ports.foresee(case, self.torch)
            # With patience from the second time on: the fault may have been a deadline on a busy
            # machine.
            observation = pool.run(case, patience=patience or bool(seen))
            self.torch = observation.torch or self.torch
            seen.append(observation)
            failing = _Failing(fault_of(observation))
            if not failing.fault:
                try:
                    verdict = self._ports.judge(case, observation)
                # The judge is our own code: what it raises says nothing of FSDP.
                except Exception as error:
                    failing = _failing(error, "judging")
            first = first if first.fault else failing
            if not failing.fault:
                break
        else:
            self._note(case, first, seen, gone=False)
            return seen[-1], _verdict(first.fault)
        if first.fault:
            self._note(case, first, seen, gone=True)
        return observation, verdict

    def pool(self, world_size: int) -> PoolLike:
        """The ranks of that number."""
        pool = self._pools.get(world_size)
        if pool is None:
            pool = self._pools[world_size] = self._ports.make_pool(world_size)
        return pool

    def close(self) -> None:
        """Ends all ranks; pools start again when needed."""
        # Taken out first: whatever interrupts the closing must
        # not have a pool used that is half closed.
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            self._closed_restarts += pool.restarts
            pool.close()

    def note(self, case: CaseSpec, error: Exception, doing: str) -> str:
        """Books an exception of our own that came while no case ran; it in one line."""
        failing = _failing(error, doing)
        self._note(case, failing, [], gone=None)
        return failing.fault

    def _note(
        self, case: CaseSpec, failing: _Failing, seen: list[Observation], *, gone: bool | None
    ) -> None:
        facts = {
            "case": digest(case),
            "torch": self.torch,
            "python": self._python,
            "backend": self._settings.backend,
            "ranks": str(case.world_size),
            "seed": str(self._settings.seed),
            "injection": self._settings.injection or "",
            "outcome": outcome_of(gone),
        }
        words = in_words(failing.fault, seen, facts, failing.trace)
        path = self._ports.archive.keep_harness_error(case, failing.fault, words)
        error = HarnessError(reason=failing.fault, digest=digest(case), path=path, gone=gone)
        self.harness_errors.append(error)
        self.tell(error)

    def _unseen(self, case: CaseSpec) -> Observation:
        return Observation(
            digest=digest(case),
            world_size=case.world_size,
            backend=self._settings.backend,
            torch=self.torch,
            reports=(),
        )


def _failing(error: Exception, doing: str) -> _Failing:
    return _Failing(one_line(f"{type(error).__name__}: {error} [{doing}]"), traced(error))


def _verdict(reason: str) -> Verdict:
    return Verdict(status="harness error", reason=reason)
