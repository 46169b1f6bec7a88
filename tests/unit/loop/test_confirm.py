from __future__ import annotations

from fsdpfuzz.loop import Rate
from fsdpfuzz.loop._confirm import Confirmed, Judged, confirm
from fsdpfuzz.observations import Hang, Observation
from fsdpfuzz.verdict import Finding
from tests.unit.loop.standins import finding, verdict_of

HANG, BIG = finding("no_hang", "hang"), finding("big")


def seen(found: tuple[Finding, ...], hang: Hang | None = None) -> Judged:
    observation = Observation(
        digest="d", world_size=2, backend="gloo", torch="", reports=(), hang=hang
    )
    return observation, verdict_of(*found)


def confirmed(first: Judged, *later: tuple[Finding, ...]) -> tuple[Confirmed, list[bool]]:
    patience: list[bool] = []

    def rerun(patient: bool) -> Judged:
        patience.append(patient)
        return seen(later[len(patience) - 1] if len(patience) <= len(later) else ())

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


def test_a_hang_that_comes_back_once_is_flaky() -> None:
    result, _ = confirmed(seen((HANG,)), (), (), (), (HANG,))
    assert result.verdict.findings == (HANG,)
    assert result.rates == {HANG.key: Rate(failed=2, runs=10)}


def test_a_hang_that_never_comes_back_was_slow() -> None:
    result, patience = confirmed(seen((HANG,), Hang(ranks=(0, 1), deadline=3.0)))
    assert result.verdict.status == "passed"
    assert patience == [True, False] + [True] * 7


def test_a_hang_of_ranks_that_disagreed_is_a_finding_even_once() -> None:
    hang = Hang(
        ranks=(0, 1),
        deadline=3.0,
        odd_ranks=(1,),
        disagreement="all_gather on rank 0, broadcast on rank 1",
        mismatched=True,
    )
    result, _ = confirmed(seen((HANG,), hang))
    assert result.rates == {HANG.key: Rate(failed=1, runs=10)}
    assert result.observation.hang == hang


def test_a_rank_that_was_only_behind_was_slow() -> None:
    hang = Hang(ranks=(0, 1), deadline=3.0, odd_ranks=(1,), disagreement="none on rank 1 yet")
    result, _ = confirmed(seen((HANG,), hang))
    assert result.verdict.status == "passed"


def test_the_observation_is_one_that_shows_the_finding() -> None:
    result, _ = confirmed(seen((HANG,)), (BIG,), ())
    assert result.verdict.findings == (BIG,)
    assert result.rates == {BIG.key: Rate(failed=1, runs=10)}
