"""A drawn case that can show a known defect, or asks for a refusal, is often not run."""

from __future__ import annotations

import msgspec

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    check,
    digest,
)
from fsdpfuzz.case.divide_factor import DivideFactor, DivideFactorDimension
from fsdpfuzz.case.operations import Clip
from fsdpfuzz.errors import ContractError
from fsdpfuzz.loop import CaseDone
from fsdpfuzz.loop._known import SHARE, lacking_in_torch, reason_to_skip
from fsdpfuzz.loop._ledger import Ledger
from tests.unit.loop.standins import Bench, FakeKnown, finding, make_case, verdict_of

MANY = [make_case(seed=seed) for seed in range(40 * SHARE)]


def to_be_refused(case: CaseSpec) -> CaseSpec:
    """A unit of fsdp1 that is frozen in part, without its original parameters."""
    plan = Fsdp1Plan(units=(Fsdp1Unit(path="", use_orig_params=False),))
    case = msgspec.structs.replace(case, plan=plan, frozen=("0.weight",))
    check(case)
    return case


def test_a_case_that_nothing_is_known_of_is_run() -> None:
    assert {reason_to_skip(case, (), "gloo") for case in MANY} == {None}


def test_a_small_share_of_a_known_region_is_run() -> None:
    """Which ones depends on the case alone, so that a run can be repeated."""
    reasons = [reason_to_skip(case, ("K1", "K2"), "gloo") for case in MANY]
    assert set(reasons) == {None, "K1"}
    assert 20 <= reasons.count(None) <= 60
    assert reasons == [reason_to_skip(case, ("K1", "K2"), "gloo") for case in MANY]


def test_half_of_the_cases_that_fsdp_refuses_are_run() -> None:
    reasons = [reason_to_skip(to_be_refused(case), (), "gloo") for case in MANY]
    assert set(reasons) == {None, "refused"}
    assert 0.4 < reasons.count(None) / len(MANY) < 0.6


def test_one_in_a_known_region_is_run_as_seldom_as_others_there() -> None:
    reasons = [reason_to_skip(to_be_refused(case), ("K1",), "gloo") for case in MANY]
    assert set(reasons) == {None, "K1"}
    assert 20 <= reasons.count(None) <= 60


def offloaded(case: CaseSpec) -> CaseSpec:
    plan = Fsdp1Plan(units=(Fsdp1Unit(path="", cpu_offload=True),))
    return msgspec.structs.replace(case, plan=plan)


def test_what_this_machine_cannot_run_is_never_run(bench: Bench) -> None:
    cases = [offloaded(case) for case in MANY]
    assert {reason_to_skip(case, (), "gloo") for case in cases} == {"machine"}
    assert {reason_to_skip(case, (), "nccl") for case in cases} == {None}
    with bench.session(strict=True) as session:
        assert session.skips(cases[0]) == "machine"
    sharded = Fsdp2Plan(units=(Fsdp2Unit(path="", cpu_offload=True),))
    program = (Forward(), Backward(), Clip(max_norm=1.0))
    cases = [msgspec.structs.replace(case, plan=sharded, program=program) for case in MANY]
    assert {reason_to_skip(case, (), "gloo") for case in cases} == {None}
    assert {reason_to_skip(case, (), "nccl") for case in cases} == {"machine"}


def kept(case: CaseSpec) -> CaseSpec:
    plan = Fsdp2Plan(units=(Fsdp2Unit(path=""),))
    return msgspec.structs.replace(case, plan=plan, keep_unsharded_storage=True)


def test_what_this_torch_does_not_offer_is_never_run(bench: Bench) -> None:
    cases = [kept(case) for case in MANY[:40]]
    offers = ("FSDPModule.set_keep_unsharded_storage()",)
    assert {reason_to_skip(case, (), "gloo") for case in cases} == {"machine"}
    assert {reason_to_skip(case, (), "nccl", offers) for case in cases} == {None}
    assert lacking_in_torch(cases[0], ()) == f"a torch with {offers[0]}"
    assert lacking_in_torch(MANY[0], ()) == lacking_in_torch(cases[0], offers) == ""
    with bench.session(strict=True) as session:
        assert session.skips(cases[0]) == "machine"
        session.begin(cases[0])
        verdict = session.examine(cases[0]).verdict
    assert (verdict.status, verdict.reason) == ("rejected", f"it needs a torch with {offers[0]}")
    assert bench.runs == {}
    with bench.session(offers=offers) as session:
        assert session.skips(cases[0]) is None
        session.examine(cases[0])
    assert set(bench.runs) == {digest(cases[0])}


def skipping(bench: Bench, **settings: object) -> tuple[Ledger, list[CaseSpec]]:
    """Offers half of `MANY` within the region of K1; those that were begun."""
    bench.known = FakeKnown(region=lambda case: ("K1",) if case.seed % 2 else ())
    with bench.session(**settings) as session:
        ledger = Ledger(session, bench.events.append)
        begun = [case for case in MANY if ledger.begin(case, "toy")]
        ledger.finish()
    return ledger, begun


def test_what_is_skipped_is_counted_and_never_reaches_the_ranks(bench: Bench) -> None:
    ledger, begun = skipping(bench)
    assert set(bench.runs) == {digest(case) for case in begun}
    assert ledger.counts.examples == len(begun)
    assert ledger.counts.skipped == len(MANY) - len(begun)
    assert all(case in begun for case in MANY if case.seed % 2 == 0)
    assert len(MANY) // 2 < len(begun) < 0.6 * len(MANY)


def test_a_strict_session_skips_nothing(bench: Bench) -> None:
    ledger, begun = skipping(bench, strict=True)
    assert begun == MANY
    assert ledger.counts.skipped == 0


def test_a_new_finding_in_a_known_region_is_told(bench: Bench) -> None:
    """It also shows outside of the region, and so does not follow from what is known."""
    bench.judge = lambda _case, _seen: verdict_of(finding("big"))
    within = next(case for case in MANY if reason_to_skip(case, ("K1",), "gloo") is None)
    bench.known = FakeKnown(
        region=lambda case: ("K1",) if case == within else (),
        ways_out=lambda _case, _name: [make_case((3,))],
    )
    with bench.session() as session:
        ledger = Ledger(session, bench.events.append)
        assert ledger.begin(within, "toy")
        ledger.finish()
    assert [(found.finding.key, found.known) for found in ledger.found] == [
        (finding("big").key, None)
    ]
    outside = [kept.case for kept in bench.archive.kept if kept.case != within]
    assert outside, "the reduction leaves the region"


def test_a_case_is_told_with_what_follows_from_a_known_defect(bench: Bench) -> None:
    """It counts among the cases of that defect, though no entry says this very finding."""
    within = next(case for case in MANY if reason_to_skip(case, ("K1",), "gloo") is None)
    bench.judge = lambda case, _seen: verdict_of(*[finding("big")] * (case == within))
    bench.known = FakeKnown(
        region=lambda case: ("K1",) if case == within else (),
        ways_out=lambda _case, _name: [make_case((3,))],
    )
    with bench.session() as session:
        ledger = Ledger(session, bench.events.append)
        assert ledger.begin(within, "toy")
        ledger.finish()
    assert [found.known for found in ledger.found] == ["K1"]
    (done,) = (event for event in bench.events if isinstance(event, CaseDone))
    assert done.known == ("K1",)


def test_a_known_defect_that_cannot_show_in_a_case_keeps_nobody_off_it(bench: Bench) -> None:
    """What it shows may yet follow from the defect, of which no entry says all."""
    skipped = next(case for case in MANY if reason_to_skip(case, ("K1",), "gloo") is not None)
    bench.judge = lambda case, _seen: verdict_of(*[finding("big")] * (case == skipped))
    bench.known = FakeKnown(
        region=lambda case: ("K1",) if case == skipped else (),
        ways_out=lambda _case, _name: [make_case((3,))],
    )
    with bench.session() as session:
        assert session.skips(skipped) == "K1"
        bench.known.elsewhere = ("K1",)
        assert session.skips(skipped) is None
        assert not session.examine(skipped).known
        ledger = Ledger(session, bench.events.append)
        assert ledger.begin(skipped, "toy")
        ledger.finish()
    assert [found.known for found in ledger.found] == ["K1"]


def test_a_reduction_does_not_enter_another_region(bench: Bench) -> None:
    bench.judge = lambda _case, _seen: verdict_of(finding("big"))
    known = make_case((3, 1))
    bench.known = FakeKnown(region=lambda case: () if case.seed == 9 else ("K1",))
    with bench.session() as session:
        ledger = Ledger(session, bench.events.append)
        assert ledger.begin(msgspec.structs.replace(known, seed=9), "toy")
        ledger.finish()
    assert {kept.case.seed for kept in bench.archive.kept} == {9}


def test_a_reduction_keeps_off_what_this_machine_cannot_run(bench: Bench) -> None:
    """A plainer divide factor is one that gloo does not take."""
    plan = Fsdp2Plan(units=(Fsdp2Unit(path=""),))
    told = DivideFactor(factor=3.0, force_sum=True)
    case = msgspec.structs.replace(make_case((3, 1)), plan=plan, divide_factor=told)
    bench.judge = lambda case, _seen: (
        verdict_of() if case.divide_factor is None else verdict_of(finding("big"))
    )
    for backend, force_sum in (("gloo", True), ("nccl", False)):
        with bench.session(backend=backend, offers=DivideFactorDimension.newer) as session:
            ledger = Ledger(session, bench.events.append)
            assert ledger.begin(case, "toy")
            ledger.finish()
        kept = bench.archive.kept[-1].case.divide_factor
        assert kept == DivideFactor(factor=1.0, force_sum=force_sum)


def cannot_tell(*_: object) -> tuple[str, ...]:
    raise ContractError("features of toy: KeyError('0')")


def test_a_case_of_which_nobody_can_say_what_is_known_is_a_harness_error(bench: Bench) -> None:
    """And not the end of the run."""
    bench.known = FakeKnown(region=lambda case: cannot_tell() if case.seed == 3 else ())
    with bench.session() as session:
        ledger = Ledger(session, bench.events.append)
        begun = [case for case in MANY[:6] if ledger.begin(case, "toy")]
        ledger.finish()
        (error,) = session.harness_errors
    assert begun == [case for case in MANY[:6] if case.seed != 3]
    ((kept, reason, words),) = bench.archive.harness_errors
    assert (kept.seed, error.reason) == (3, reason)
    assert reason == "ContractError: features of toy: KeyError('0') [what is known of the case]"
    assert "in cannot_tell" in words


def test_a_finding_of_which_nobody_can_say_whether_it_is_known_is_new(bench: Bench) -> None:
    bench.known = FakeKnown(when=lambda _case, _finding: str(cannot_tell()))
    bench.judge = lambda _case, _observation: verdict_of(finding("toy"))
    with bench.session() as session:
        examined = session.examine(MANY[0])
        assert session.harness_errors
    assert [f.key for f in examined.news] == [finding("toy").key]
