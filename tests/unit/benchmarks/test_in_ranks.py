"""What benchmarks time in the ranks is there to be timed."""

from __future__ import annotations

from benchmarks.meter import TIMED_RANKS
from fsdpfuzz.case import CaseSpec, Dense, Forward, Fsdp2Plan, Fsdp2Unit, Linear
from fsdpfuzz.pool import Pool


def test_each_part_of_a_case_is_timed() -> None:
    case = CaseSpec(
        world_size=2,
        model=Linear(out=1),
        inputs=Dense(width=1),
        plan=Fsdp2Plan(units=(Fsdp2Unit(path=""),)),
        program=(Forward(),),
    )
    with Pool(2, "gloo", injection=TIMED_RANKS) as pool:
        report = pool.run(case).reports[0]
    assert report is not None
    assert report.timings["reference"] > 0
    assert report.timings["compare"] > 0
