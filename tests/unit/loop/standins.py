"""Stand-ins for the ranks, the judge and the archive, and toy cases to draw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Dense,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Sequential,
    Step,
    digest,
)
from fsdpfuzz.loop import (
    Event,
    Ports,
    Property,
    RunSettings,
    Scope,
    Session,
    SessionSettings,
    Sighting,
)
from fsdpfuzz.observations import Observation
from fsdpfuzz.verdict import Finding, Verdict

Judge = Callable[[CaseSpec, Observation], Verdict]


def make_case(
    outs: tuple[int, ...] = (1,), steps: int = 1, seed: int = 0, world_size: int = 2
) -> CaseSpec:
    return CaseSpec(
        world_size=world_size,
        seed=seed,
        model=Sequential(children=tuple(Linear(out=out) for out in outs)),
        inputs=Dense(width=3),
        plan=Fsdp2Plan(units=(Fsdp2Unit(path=""),)),
        program=(Forward(), Backward(), Step()) * steps,
    )


@st.composite
def toy_cases(draw: st.DrawFn, world_sizes: tuple[int, ...] = (2,)) -> CaseSpec:
    return make_case(
        outs=tuple(draw(st.integers(1, 500)) for _ in range(draw(st.integers(1, 6)))),
        steps=draw(st.integers(1, 4)),
        world_size=draw(st.sampled_from(world_sizes)),
    )


@dataclass(frozen=True, kw_only=True)
class Toy(Property):
    """A property that draws what it is given; toy cases if nothing."""

    draws: Callable[[Scope], SearchStrategy[CaseSpec]] = lambda scope: toy_cases(scope.world_sizes)

    def strategy(self, scope: Scope) -> SearchStrategy[CaseSpec]:
        return self.draws(scope)


def outs_of(case: CaseSpec) -> tuple[int, ...]:
    """Widths of the linear layers at the top; of real cases too, which may have none there."""
    children = case.model.children if isinstance(case.model, Sequential) else (case.model,)
    return tuple(child.out for child in children if isinstance(child, Linear)) or (1,)


def steps_of(case: CaseSpec) -> int:
    """Iterations; one that does not step counts as well."""
    return sum(isinstance(op, Backward) for op in case.program)


def finding(invariant: str, symptom: Any = "mismatch", **fields: Any) -> Finding:
    return Finding(
        invariant=invariant, symptom=symptom, api="fsdp2", observed="2", expected="1", **fields
    )


def verdict_of(*findings: Finding) -> Verdict:
    return Verdict(status="finding" if findings else "passed", findings=tuple(findings))


@dataclass
class FakePool:
    world_size: int
    log: list[tuple[str, bool]]
    restarts: int = 0
    closed: bool = False
    before: Callable[[CaseSpec], None] = lambda _case: None
    begun: Callable[[CaseSpec], None] = lambda _case: None
    change: Callable[[Observation], Observation] = lambda observation: observation

    def begin(self, case: CaseSpec) -> None:
        self.begun(case)

    def run(self, case: CaseSpec, *, patience: bool = False) -> Observation:
        self.before(case)
        self.log.append((digest(case), patience))
        seen = Observation(
            digest=digest(case),
            world_size=self.world_size,
            backend="gloo",
            torch="9.9.9",
            reports=(),
        )
        return self.change(seen)

    def close(self) -> None:
        self.closed = True
        self.log.append(("closed", False))


@dataclass
class FakeArchive:
    folder: Path
    kept: list[Sighting] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)
    open: str | None = None
    left: list[CaseSpec] = field(default_factory=list)
    dropped: list[Path] = field(default_factory=list)
    harness_errors: list[tuple[CaseSpec, str, str]] = field(default_factory=list)

    def begin(self, case: CaseSpec) -> None:
        self.open = digest(case)
        self.begun.append(self.open)

    def finish(self) -> None:
        self.open = None

    def keep(self, sighting: Sighting) -> Path:
        self.kept.append(sighting)
        return self.folder / f"{sighting.finding.invariant}-{digest(sighting.case)}.json"

    def keep_harness_error(self, case: CaseSpec, reason: str, words: str) -> Path:
        self.harness_errors.append((case, reason, words))
        return self.folder / f"{digest(case)}.json"

    def drop(self, path: Path) -> None:
        self.dropped.append(path)

    def pending(self) -> list[CaseSpec]:
        return self.left


@dataclass
class FakeKnown:
    """Known defects by id: ``when`` says which one explains a finding, ``region`` which a case
    lies in, ``elsewhere`` names those that show at operations which no case has, ``ways_out``
    gives plainer cases outside of it."""

    when: Callable[[CaseSpec, Finding], str | None] = lambda _case, _finding: None
    region: Callable[[CaseSpec], tuple[str, ...]] = lambda _case: ()
    elsewhere: tuple[str, ...] = ()
    ways_out: Callable[[CaseSpec, str], Iterable[CaseSpec]] = lambda _case, _name: ()

    def match(self, case: CaseSpec, finding: Finding, *, torch: str, backend: str) -> str | None:
        return self.when(case, finding)

    def covering(self, case: CaseSpec, *, torch: str, backend: str) -> tuple[str, ...]:
        return self.region(case)

    def showing(self, case: CaseSpec, *, torch: str, backend: str) -> tuple[str, ...]:
        covering = self.covering(case, torch=torch, backend=backend)
        return tuple(name for name in covering if name not in self.elsewhere)

    def exits(self, case: CaseSpec, name: str) -> Iterable[CaseSpec]:
        return self.ways_out(case, name)

    def silent(self, *, torch: str, backend: str) -> tuple[str, ...]:
        return ("K-silent",)


@dataclass
class Bench:
    """A session with stand-ins, and what they saw."""

    folder: Path
    judge: Judge = lambda _case, _observation: verdict_of()
    log: list[tuple[str, bool]] = field(default_factory=list)
    pools: list[FakePool] = field(default_factory=list)
    known: FakeKnown = field(default_factory=FakeKnown)
    events: list[Event] = field(default_factory=list)
    before: Callable[[CaseSpec], None] = lambda _case: None
    begun: Callable[[CaseSpec], None] = lambda _case: None
    change: Callable[[Observation], Observation] = lambda observation: observation
    """What becomes of an observation of nothing at all."""

    def __post_init__(self) -> None:
        self.archive = FakeArchive(self.folder)

    @property
    def runs(self) -> Counter[str]:
        """How often each digest was run."""
        return Counter(name for name, _ in self.log if name != "closed")

    def pool(self, world_size: int) -> FakePool:
        self.pools.append(
            FakePool(
                world_size,
                self.log,
                before=self._before,
                begun=self.begun,
                change=self._change,
            )
        )
        return self.pools[-1]

    def session(self, **settings: Any) -> Session:
        ports = Ports(
            make_pool=self.pool,
            judge=self._judge,
            archive=self.archive,
            known=self.known,
        )
        return Session(SessionSettings(output=self.folder, **settings), ports)

    def settings(self, max_examples: int, **changes: Any) -> RunSettings:
        session = {
            name: changes.pop(name) for name in ("profile", "strict", "seed") if name in changes
        }
        return RunSettings(
            session=SessionSettings(output=self.folder, torch="9.9.9", **session),
            properties=changes.pop("properties", ("toy",)),
            max_examples=max_examples,
            **changes,
        )

    # Tests exchange `before` and `judge` while a session is open.

    def _before(self, case: CaseSpec) -> None:
        self.before(case)

    def _change(self, seen: Observation) -> Observation:
        return self.change(seen)

    def _judge(self, case: CaseSpec, observation: Observation) -> Verdict:
        return self.judge(case, observation)
