"""What the bench of faults says of a finding follows it to where it is kept in the end."""

from __future__ import annotations

from pathlib import Path

from benchmarks.one_injection import Watch, found_in, standing_for
from fsdpfuzz.corpus import write_seeds
from fsdpfuzz.loop import Counts, Found, RunStarted, Summary
from fsdpfuzz.verdict import Finding

STARTED = RunStarted(
    torch="2.13.0",
    backend="gloo",
    world_sizes=(2,),
    profile="dev",
    seed=0,
    properties=("parity",),
    max_examples=10,
    output=Path("out"),
)


def found(kind: str, case: str = "a.json", *, known: str | None = None, also: str = "") -> Found:
    finding = Finding(invariant="grad_parity", symptom="mismatch", api="fsdp1", kind=kind)
    return Found(
        finding=finding,
        property_name="parity",
        case=Path(case),
        digest="0",
        examples_to_find=1,
        known=known,
        also=(found(also).finding.key,) if also else (),
    )


def ended(*findings: Found, unconfirmed: tuple[Found, ...] = ()) -> Summary:
    return Summary(
        started=STARTED,
        counts=Counts(),
        seconds=1.0,
        pool_restarts=0,
        findings=findings,
        unconfirmed=unconfirmed,
    )


def test_a_finding_that_was_reduced_again_is_where_it_was_kept_last() -> None:
    assert standing_for(found("x", "large.json"), ended(found("x", "small.json"))).case == Path(
        "small.json"
    )


def test_one_whose_cause_another_took_over_is_that_one() -> None:
    other = found("y", "other.json", also="x")
    known = found("z", "known.json", known="z", also="x")
    assert standing_for(found("x"), ended(known, other)) == other


def test_one_that_nothing_stands_for_is_itself() -> None:
    first = found("x")
    assert standing_for(first, ended(found("y"))) == first


def test_what_did_not_show_again_is_not_found(tmp_path: Path) -> None:
    first = found("x", str(write_seeds(tmp_path)[0]))
    watch = Watch(0, lambda _: False, first=first)
    assert found_in(ended(first), watch, 0.0)["status"] == "found"
    assert found_in(ended(unconfirmed=(first,)), watch, 0.0)["status"] == "unconfirmed"
