"""A run among others: what it leaves to them, what it waits for, and what it tells at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from fsdpfuzz.case import CaseSpec
from fsdpfuzz.loop import Also, CaseDone, FindingDone, FindingMet, Found, Notice, Shrinking
from fsdpfuzz.loop._causes import Cause
from fsdpfuzz.loop._ledger import Ledger
from fsdpfuzz.loop._portions import Portion
from fsdpfuzz.loop._session import Session
from fsdpfuzz.observations import Observation
from fsdpfuzz.reduce import Ablation, simpler
from fsdpfuzz.verdict import Verdict
from tests.unit.loop.standins import (
    Bench,
    FakeKnown,
    finding,
    make_case,
    outs_of,
    steps_of,
    verdict_of,
)
from tests.unit.loop.test_board import a_cause
from tests.unit.loop.test_causes import summed

BIG, LONG = finding("big"), finding("long")
WIDE, SLOW = make_case((200,)), make_case((3,), steps=3)


@dataclass
class Others:
    """Other jobs that do as they are told."""

    taken: set[str] = field(default_factory=set)
    """What they have met."""
    busy: int = 0
    """So many times it is not this job's turn."""
    waits: list[Callable[[], None]] = field(default_factory=list)
    """What happens while this job waits for its turn."""
    untold: list[Cause] = field(default_factory=list)
    at_the_end: list[Cause] = field(default_factory=list)
    """What they tell of while this job reduces."""
    heard: list[Cause | None] = field(default_factory=list)
    left: list[Portion] = field(default_factory=list)
    """What is dealt out once a job has run its first examples."""

    def first(self, name: str) -> bool:
        return name not in self.taken

    def news(self) -> list[Cause]:
        told, self.untold = self.untold, []
        return told

    def turn(self, *, wait: bool) -> bool:
        if wait and self.waits:
            self.waits.pop(0)()
            return not self.untold
        self.busy -= 1
        return self.busy < 0 and not self.untold

    def reduced(self, cause: Cause | None) -> bool:
        if cause is not None and self.at_the_end:
            self.untold, self.at_the_end = self.at_the_end, []
            return False
        self.heard.append(cause)
        return True

    def more(self) -> Portion | None:
        return self.left.pop(0) if self.left else None


def two_faults(case: CaseSpec, _seen: Observation) -> Verdict:
    wrong = [(BIG, max(outs_of(case)) > 100), (LONG, steps_of(case) >= 3)]
    return verdict_of(*(found for found, holds in wrong if holds))


def met(bench: Bench, others: Others, *cases: CaseSpec, **settings: Any) -> Ledger:
    with bench.session(**settings) as session:
        ledger = Ledger(session, bench.events.append, peers=others)
        for case in cases:
            assert ledger.begin(case, "toy")
        ledger.finish_all()
    return ledger


def told(bench: Bench) -> list[str]:
    kinds = (CaseDone, FindingMet, Also, FindingDone)
    return [type(event).__name__ for event in bench.events if isinstance(event, kinds)]


def names(found: tuple[Found, ...]) -> list[str]:
    return [one.finding.invariant for one in found]


def needing_its_loss(case: CaseSpec) -> Cause:
    """A cause that goes with the loss of ``case``."""
    words = [n.words for n in simpler(case) if n.case.loss != case.loss and n.words]
    cause = a_cause("long")
    cause.ablation = Ablation(needed=(words[0],))
    return cause


def test_what_another_job_has_met_is_left_to_it(bench: Bench) -> None:
    bench.judge = two_faults
    ledger = met(bench, Others(taken={BIG.key}), WIDE, make_case((300,)), SLOW)
    assert names(ledger.found) == ["long"]
    assert names(tuple(e.found for e in bench.events if isinstance(e, FindingMet))) == ["long"]
    assert {kept.finding.key for kept in bench.archive.kept} == {LONG.key}


def test_a_known_finding_is_left_to_the_first_that_meets_it(bench: Bench) -> None:
    bench.judge = two_faults
    bench.known = FakeKnown(lambda _case, _finding: "K1")
    others = Others(taken={f"K1: {BIG.key}"})
    assert names(met(bench, others, WIDE, SLOW).found) == ["long"]


def test_drawing_goes_on_while_another_job_reduces(bench: Bench) -> None:
    bench.judge = two_faults
    others = Others(busy=2, waits=[lambda: pytest.fail("it waits")])
    ledger = met(bench, others, WIDE, make_case((4,)), make_case((5,)))
    assert told(bench) == ["CaseDone", "FindingMet", "CaseDone", "FindingDone", "CaseDone"]
    (found,) = ledger.found
    assert found.shrunk
    assert found.examples_to_find == 1


def test_a_run_that_has_drawn_all_waits_for_its_turn(bench: Bench) -> None:
    bench.judge = two_faults
    waited: list[int] = []
    others = Others(busy=9, waits=[lambda: waited.append(len(bench.events))])
    ledger = met(bench, others, WIDE)
    assert told(bench) == ["CaseDone", "FindingMet", "FindingDone"]
    assert waited == [2]
    assert ledger.found[0].shrunk
    assert [cause.found.finding.key for cause in others.heard if cause] == [BIG.key]


def test_a_finding_is_told_of_before_anything_is_run_for_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.judge = lambda case, seen: two_faults(case, seen) if case.loss == "sum" else verdict_of()
    inner, beside = Session.examine, list[int]()

    def examine(session: Session, case: CaseSpec, **options: Any) -> Any:
        if options.get("beside"):
            beside.append(sum(isinstance(event, FindingMet) for event in bench.events))
        return inner(session, case, **options)

    monkeypatch.setattr(Session, "examine", examine)
    with bench.session() as session:
        ledger = Ledger(session, bench.events.append)
        for number, case in enumerate((summed(WIDE), summed(SLOW)), start=1):
            beside.clear()
            assert ledger.begin(case, "toy")
            ledger.finish()
            assert beside, "it was compared or reduced"
            assert set(beside) == {number}, "and told of before"
    assert told(bench) == [
        "CaseDone",
        "FindingMet",
        "FindingDone",
        "CaseDone",
        "FindingMet",
        "Also",
    ]
    assert bench.archive.dropped, "the second one's case, which the first one's stands for"
    assert len(ledger.found) == 1


def test_a_cause_that_another_job_found_is_not_reduced_again(bench: Bench) -> None:
    bench.judge = lambda case, _seen: verdict_of(*[BIG, LONG] * (max(outs_of(case)) > 100))
    cause = a_cause("long")
    cause.shows = (LONG, BIG)
    others = Others(busy=1, untold=[cause])
    ledger = met(bench, others, WIDE)
    assert ledger.found == ()
    assert told(bench) == ["CaseDone", "Also"]
    assert not [event for event in bench.events if isinstance(event, Shrinking)]


def test_what_waits_goes_to_a_cause_that_is_found_meanwhile(bench: Bench) -> None:
    bench.judge = lambda case, _seen: verdict_of(*[BIG] * (case.loss == "sum"))
    others = Others(busy=9)
    others.waits = [lambda: others.untold.append(needing_its_loss(summed(WIDE)))]
    ledger = met(bench, others, summed(WIDE))
    assert told(bench) == ["CaseDone", "FindingMet", "Also"]
    assert ledger.found == ()
    assert others.heard == [], "it never had its turn"


def test_of_two_that_reduce_one_cause_the_first_to_end_has_it(bench: Bench) -> None:
    bench.judge = two_faults
    others = Others(at_the_end=[a_cause("big")])
    ledger = met(bench, others, WIDE)
    assert ledger.found == ()
    assert "FindingDone" not in told(bench)
    assert others.heard == [None], "the turn is given back"


def test_harness_errors_are_marked_among_the_notices(bench: Bench) -> None:
    def broken(_case: CaseSpec, _seen: Observation) -> Verdict:
        raise ZeroDivisionError

    bench.judge = broken
    met(bench, Others(), make_case((4,)))
    (notice,) = [event for event in bench.events if isinstance(event, Notice)]
    assert notice.harness_error
