"""One fault is one finding, and two faults are two, whichever of them shows beside the other."""

from __future__ import annotations

import msgspec
import pytest

from fsdpfuzz.case import CaseSpec, Forward, Fsdp1Plan, Fsdp1Unit, digest
from fsdpfuzz.case.operations import Reshard, StateDict
from fsdpfuzz.loop import Also, FindingDone, FindingMet, Found, Shrinking
from fsdpfuzz.loop._causes import by_precedence, same_cause, shows
from fsdpfuzz.loop._ledger import Ledger
from fsdpfuzz.observations import Observation
from fsdpfuzz.verdict import Failure, Finding, Verdict
from tests.unit.loop.standins import Bench, finding, make_case, outs_of, steps_of, verdict_of

BIG, LONG, AFTER = finding("big"), finding("long"), finding("after")


def is_big(case: CaseSpec) -> bool:
    return max(outs_of(case)) > 100


def is_long(case: CaseSpec) -> bool:
    return steps_of(case) >= 3


def summed(case: CaseSpec) -> CaseSpec:
    """The same with an option that can be taken away: a plain sum for a loss."""
    return msgspec.structs.replace(case, loss="sum")


def under_fsdp1(case: CaseSpec) -> CaseSpec:
    return msgspec.structs.replace(case, plan=Fsdp1Plan(units=(Fsdp1Unit(path=""),)))


def met(bench: Bench, *cases: CaseSpec) -> tuple[Found, ...]:
    with bench.session() as session:
        ledger = Ledger(session, bench.events.append)
        for case in cases:
            assert ledger.begin(case, "toy")
        ledger.finish()
    return ledger.found


def keys(found: tuple[Found, ...]) -> dict[str, tuple[str, ...]]:
    return {one.finding.key: one.also for one in found}


def test_what_the_smallest_case_shows_too_is_the_same_cause(bench: Bench) -> None:
    bench.judge = lambda case, _seen: verdict_of(*[BIG, AFTER] * is_big(case))
    assert keys(met(bench, make_case((200,)))) == {AFTER.key: (BIG.key,)}
    assert [type(e) for e in bench.events if isinstance(e, FindingMet | Also | FindingDone)] == [
        FindingMet,
        FindingDone,
        Also,
    ]


def test_two_faults_of_one_case_are_two_findings(bench: Bench) -> None:
    bench.judge = lambda case, _seen: verdict_of(*[BIG] * is_big(case), *[LONG] * is_long(case))
    assert keys(met(bench, make_case((200,), steps=3))) == {BIG.key: (), LONG.key: ()}


def test_a_second_fault_is_found_beside_one_that_is_reduced_already(bench: Bench) -> None:
    bench.judge = lambda case, _seen: verdict_of(*[BIG] * is_big(case), *[LONG] * is_long(case))
    found = met(bench, make_case((200,)), make_case((200,), steps=3))
    assert keys(found) == {BIG.key: (), LONG.key: ()}


def test_a_finding_that_goes_with_the_option_that_another_needs_is_the_same(bench: Bench) -> None:
    def judge(case: CaseSpec, _seen: Observation) -> Verdict:
        if case.loss != "sum":
            return verdict_of()
        return verdict_of(LONG if is_long(case) else BIG)

    bench.judge = judge
    other = summed(make_case((3,), steps=3))
    assert keys(met(bench, summed(make_case((200,))), other)) == {BIG.key: (LONG.key,)}
    assert {event.key for event in bench.events if isinstance(event, Shrinking)} == {BIG.key}
    # Much goes with one option: should it be another fault after all, its case is there.
    assert other in [sighting.case for sighting in bench.archive.kept]
    assert not any(digest(other) in path.name for path in bench.archive.dropped)


def test_the_case_of_one_that_differs_by_its_key_alone_stays(bench: Bench) -> None:
    """An exception from the same place, on the other API, goes with the option, too."""
    crash = Failure(type="RuntimeError", text="refused", place="torch/_ops.py:redispatch")
    one = msgspec.structs.replace(finding("no_crash", kind="crash"), failure=crash)
    other = msgspec.structs.replace(one, api="fsdp1")
    first, second = summed(make_case((200,))), summed(make_case((3,), steps=3))

    def judge(case: CaseSpec, _seen: Observation) -> Verdict:
        if case.loss != "sum":
            return verdict_of()
        return verdict_of(other if is_long(case) else one)

    bench.judge = judge
    assert keys(met(bench, first, second)) == {one.key: (other.key,)}
    assert second in [sighting.case for sighting in bench.archive.kept]
    assert not any(digest(second) in path.name for path in bench.archive.dropped)


def test_a_program_without_the_operation_of_one_finding_shows_another(bench: Bench) -> None:
    """Both need the option; the first shows at a state dict, of which the second has none."""
    saved = msgspec.structs.replace(BIG, op=1, operation="state_dict")

    def judge(case: CaseSpec, _seen: Observation) -> Verdict:
        if case.loss != "sum":
            return verdict_of()
        saves = any(isinstance(op, StateDict) for op in case.program)
        return verdict_of(*[saved] * saves, *[LONG] * is_long(case))

    bench.judge = judge
    first = msgspec.structs.replace(summed(make_case((3,))), program=(Forward(), StateDict()))
    found = met(bench, first, summed(make_case((3,), steps=3)))
    assert keys(found) == {saved.key: (), LONG.key: ()}


def test_a_finding_that_stays_without_that_option_is_another(bench: Bench) -> None:
    def judge(case: CaseSpec, _seen: Observation) -> Verdict:
        return verdict_of(*[BIG] * (case.loss == "sum"), *[LONG] * is_long(case))

    bench.judge = judge
    found = met(bench, summed(make_case((200,))), summed(make_case((3,), steps=3)))
    assert keys(found) == {BIG.key: (), LONG.key: ()}


def test_a_reduction_that_ends_at_another_cause_is_told_as_that(bench: Bench) -> None:
    """Met apart from each other, but the second one's smallest case shows the first, too."""

    def judge(case: CaseSpec, _seen: Observation) -> Verdict:
        width = max(outs_of(case))
        return verdict_of(*[BIG] * (100 < width <= 250), *[LONG] * (width > 250 or width == 200))

    bench.judge = judge
    assert keys(met(bench, make_case((150,)), make_case((400,)))) == {BIG.key: (LONG.key,)}
    assert [e.found.finding.key for e in bench.events if isinstance(e, FindingMet)] == [
        BIG.key,
        LONG.key,
    ]
    assert [e.key for e in bench.events if isinstance(e, Also)] == [LONG.key]


COST = finding("collectives")


def costly(case: CaseSpec, _seen: Observation) -> Verdict:
    """A fault that costs time wherever it shows, and makes a wrong value in long cases."""
    return verdict_of(*[LONG] * is_long(case), *[COST] * (is_long(case) or is_big(case)))


def test_a_cause_goes_by_the_wrong_value_that_it_makes_elsewhere(bench: Bench) -> None:
    """It is met where it only costs time, and has its case and script anew once it does harm."""
    bench.judge = costly
    with bench.session() as session:
        ledger = Ledger(session, bench.events.append)
        for case in (make_case((200,)), make_case((200,), steps=3), make_case((300,), steps=4)):
            assert ledger.begin(case, "toy")
        ledger.finish()
        (cause,) = ledger._causes
    assert keys(ledger.found) == {LONG.key: (COST.key,)}
    assert ledger.found[0].examples_to_find == 1
    assert cause.found == ledger.found[0]
    done = [e.found.finding.key for e in bench.events if isinstance(e, FindingDone)]
    assert done == [COST.key, LONG.key]
    kept = {bench.archive.keep(sighting) for sighting in tuple(bench.archive.kept)}
    assert kept - set(bench.archive.dropped) == {ledger.found[0].case}


def test_what_only_costs_time_is_told_with_the_wrong_value_met_before(bench: Bench) -> None:
    bench.judge = costly
    found = met(bench, make_case((200,), steps=3), make_case((300,)))
    assert keys(found) == {LONG.key: (COST.key,)}


def test_a_key_that_changes_on_the_way_down_is_told_beside_the_new_one(bench: Bench) -> None:
    large, small = finding("big", kind="large"), finding("big", kind="small")
    bench.judge = lambda case, _seen: verdict_of(
        *[large if max(outs_of(case)) > 250 else small] * is_big(case)
    )
    assert keys(met(bench, make_case((300,)), make_case((301,)))) == {small.key: (large.key,)}


def test_a_finding_under_an_api_that_does_not_show_the_other_one_is_another(bench: Bench) -> None:
    """Both need the option; of the first nothing shows where its case is wrapped by FSDP1."""
    wrapped = msgspec.structs.replace(LONG, api="fsdp1")

    def judge(case: CaseSpec, _seen: Observation) -> Verdict:
        if case.loss != "sum":
            return verdict_of()
        fsdp1 = isinstance(case.plan, Fsdp1Plan)
        return verdict_of(*[wrapped] * (fsdp1 and is_long(case)), *[BIG] * (not fsdp1))

    bench.judge = judge
    long = under_fsdp1(summed(make_case((3,), steps=3)))
    assert keys(met(bench, summed(make_case((200,))), long)) == {BIG.key: (), wrapped.key: ()}


def test_two_wrong_values_of_one_kind_are_two_where_one_is_not_under_the_api_of_the_other(
    bench: Bench,
) -> None:
    """The case of the first shows nothing under FSDP1, where another fault breaks the same rule."""
    wrapped = msgspec.structs.replace(BIG, api="fsdp1")

    def judge(case: CaseSpec, _seen: Observation) -> Verdict:
        if isinstance(case.plan, Fsdp1Plan):
            return verdict_of(*[wrapped] * is_long(case))
        return verdict_of(*[BIG] * is_big(case))

    bench.judge = judge
    long = under_fsdp1(make_case((3,), steps=3))
    assert keys(met(bench, make_case((200,)), long)) == {BIG.key: (), wrapped.key: ()}
    assert keys(met(bench, long, make_case((200,)))) == {BIG.key: (), wrapped.key: ()}


def test_a_wrong_value_that_needs_what_the_other_api_lacks_is_another_than_one_there(
    bench: Bench,
) -> None:
    """FSDP1 has no ``reshard``, so there is no case of it that could show the first one."""
    wrapped = msgspec.structs.replace(BIG, api="fsdp1")

    def judge(case: CaseSpec, _seen: Observation) -> Verdict:
        if isinstance(case.plan, Fsdp1Plan):
            return verdict_of(*[wrapped] * is_long(case))
        return verdict_of(*[BIG] * any(isinstance(op, Reshard) for op in case.program))

    bench.judge = judge
    case = make_case((3,))
    by_hand = msgspec.structs.replace(case, program=(*case.program, Reshard(unit="")))
    long = under_fsdp1(make_case((3,), steps=3))
    assert keys(met(bench, by_hand, long)) == {BIG.key: (), wrapped.key: ()}
    assert keys(met(bench, long, by_hand)) == {BIG.key: (), wrapped.key: ()}


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (finding("no_hang", "hang", op=5), finding("grad_parity", op=1)),
        (finding("grad_parity", op=1), finding("param_parity", op=2)),
        (
            finding("output_parity", op=0, quantity="output"),
            finding("aaa_parity", op=0, quantity="loss"),
        ),
        (finding("grad_parity", op=4), finding("grad_parity", op=1, variant="plain")),
        (finding("grad_parity", op=4, variant="plain"), finding("twins_agree", op=1)),
        (finding("grad_parity", op=4), finding("shard_bytes", "leak")),
    ],
)
def test_what_ends_a_case_or_comes_first_explains_the_rest(first: Finding, then: Finding) -> None:
    assert by_precedence([then, first]) == by_precedence([first, then]) == [first, then]


def test_findings_are_alike_whatever_their_numbers() -> None:
    crash = finding("no_crash", "crash", failure=Failure(type="E", place="a.py:f", text="5"))
    other = finding("no_crash", "crash", failure=Failure(type="E", place="a.py:g", text="5"))
    assert shows([finding("big", name="0.weight")], BIG)
    assert not shows([other, LONG], crash)


def test_nothing_is_the_same_cause_as_one_that_needs_no_option(bench: Bench) -> None:
    bench.judge = lambda case, _seen: verdict_of(*[BIG] * is_big(case))
    runs: list[CaseSpec] = []

    def run(case: CaseSpec) -> Verdict:
        runs.append(case)
        return verdict_of()

    with bench.session() as session:
        ledger = Ledger(session, bench.events.append)
        ledger.begin(make_case((200,)), "toy")
        ledger.finish()
        (cause,) = ledger._causes
    assert cause.ablation.needed == ()
    assert not same_cause(cause, make_case((3,), steps=3), LONG, run)
    assert runs == []


def test_the_smallest_case_of_one_key_is_kept_with_what_it_needs(bench: Bench) -> None:
    def judge(case: CaseSpec, _seen: Observation) -> Verdict:
        kept = any(isinstance(op, Forward) and not op.sync for op in case.program)
        return verdict_of(*[BIG] * (case.loss == "sum" and not kept))

    bench.judge = judge
    asked: list[tuple[str, ...]] = []
    with bench.session() as session:
        ledger = Ledger(session, bench.events.append)
        ledger.begin(summed(make_case((200, 7), steps=2)), "toy")
        ledger.finish()
        asked += [cause.ablation.needed for cause in ledger._causes]
    assert asked == [("output.sum() as the loss",)]
    assert outs_of(bench.archive.kept[-1].case) == (1,)
