from __future__ import annotations

import pytest

from fsdpfuzz.loop import Rate
from fsdpfuzz.loop._confirm import Confirmed, Judged, confirm
from fsdpfuzz.observations import Hang, Observation
from fsdpfuzz.verdict import Finding
from tests.unit.loop.standins import finding, verdict_of

HANG, BIG = finding("no_hang", "hang"), finding("big")
STARVED = Hang(ranks=(0, 1), deadline=3.0, odd_ranks=(1,), disagreement="late", starved=True)
ASLEEP = Hang(ranks=(0, 1), deadline=3.0)
APART = Hang(
    ranks=(0, 1), deadline=3.0, odd_ranks=(1,), disagreement="differ", mismatched=True, starved=True
)


def seen(found: tuple[Finding, ...], hang: Hang | None = None) -> Judged:
    observation = Observation(
        digest="d", world_size=2, backend="gloo", torch="", reports=(), hang=hang
    )
    return observation, verdict_of(*found)


def confirmed(
    first: Judged, *later: tuple[Finding, ...], hang: Hang | None = None
) -> tuple[Confirmed, list[bool]]:
    """``hang`` is what later runs without an answer say of it."""
    patience: list[bool] = []

    def rerun(patient: bool) -> Judged:
        patience.append(patient)
        found = later[len(patience) - 1] if len(patience) <= len(later) else ()
        return seen(found, hang if HANG in found else None)

    return confirm(first, rerun, reruns=2, flaky_runs=10), patience


def test_a_finding_that_stays_is_certain() -> None:
    result, patience = confirmed(seen((BIG,)), (BIG,), (BIG,))
    assert result.verdict.findings == (BIG,)
    assert result.rates == {}
    assert patience == [False, False]


def test_a_finding_that_goes_away_is_run_to_the_full_number() -> None:
    result, patience = confirmed(seen((BIG,)), (), (BIG,))
    assert result.rates == {BIG.key: Rate(failed=2, runs=10)}
    assert len(patience) == 9


def test_a_finding_that_shows_once_and_never_again_is_unconfirmed() -> None:
    result, patience = confirmed(seen((BIG,)))
    assert (result.verdict.status, result.unconfirmed) == ("passed", (BIG,))
    assert result.rates == {BIG.key: Rate(failed=1, runs=10)}
    assert len(patience) == 9


def test_what_only_one_rerun_shows_is_unconfirmed_beside_what_stays() -> None:
    other = finding("other")
    result, _ = confirmed(seen((BIG,)), (BIG, other), *[(BIG,)] * 8)
    assert (result.verdict.findings, result.unconfirmed) == ((BIG,), (other,))
    assert result.rates == {other.key: Rate(failed=1, runs=10)}


def test_a_hang_that_comes_back_once_is_flaky() -> None:
    result, _ = confirmed(seen((HANG,), ASLEEP), (), (), (), (HANG,), hang=ASLEEP)
    assert result.verdict.findings == (HANG,)
    assert result.rates == {HANG.key: Rate(failed=2, runs=10)}


@pytest.mark.parametrize("hang", [ASLEEP, APART], ids=["asleep", "apart"])
def test_a_hang_with_evidence_is_a_finding_even_once(hang: Hang) -> None:
    result, patience = confirmed(seen((HANG,), hang))
    assert result.verdict.findings == (HANG,)
    assert result.rates == {HANG.key: Rate(failed=1, runs=10)}
    assert result.observation.hang == hang
    assert patience[0] is (hang is ASLEEP)


def test_starved_ranks_that_answer_when_they_are_waited_for_were_slow() -> None:
    result, patience = confirmed(seen((HANG,), STARVED))
    assert (result.verdict.status, result.unconfirmed) == ("passed", ())
    assert patience == [True]


@pytest.mark.parametrize("times", [1, 2, 9])
def test_ranks_that_are_starved_again_and_again_are_no_finding(times: int) -> None:
    result, _ = confirmed(seen((HANG,), STARVED), *[(HANG,)] * times, hang=STARVED)
    assert result.verdict.status in ("passed", "vacuous")
    assert result.unconfirmed == (HANG,)
    assert HANG.key in result.rates


def test_starved_ranks_that_show_something_else_when_waited_for_are_looked_at() -> None:
    result, _ = confirmed(seen((HANG,), STARVED), *[(BIG,)] * 9)
    assert (result.verdict.findings, result.unconfirmed) == ((BIG,), (HANG,))


def test_the_observation_is_one_that_shows_the_finding() -> None:
    result, _ = confirmed(seen((HANG,), ASLEEP), (BIG,), (), hang=ASLEEP)
    assert (result.verdict.findings, result.unconfirmed) == ((HANG,), (BIG,))
    assert result.observation.hang == ASLEEP


def test_a_run_that_is_not_to_be_repeated_stands() -> None:
    result = confirm(seen((BIG,)), lambda _: seen(()), reruns=0, flaky_runs=10)
    assert result.verdict.findings == (BIG,)
    assert (result.unconfirmed, result.rates) == ((), {})
