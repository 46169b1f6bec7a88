"""The entry that is made of a finding: as narrow as what was run allows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fsdpfuzz.case import (
    Anatomy,
    Backward,
    CaseSpec,
    Dense,
    Forward,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Norm,
    Optimizer,
    Sequential,
    Step,
    anatomy,
    decode,
)
from fsdpfuzz.known import TO_WRITE, Proposal, propose, read_defect, write_defect
from fsdpfuzz.verdict import Finding, Verdict
from tests.unit.known.samples import crash, two_layers, wrong_gradient

replace = msgspec.structs.replace
Judge = Callable[[Anatomy], tuple[Finding, ...]]

LARGE = CaseSpec(
    world_size=3,
    seed=5,
    model=Sequential(
        children=(Linear(out=6), Norm(), Linear(out=6), Sequential(children=(Linear(out=6),)))
    ),
    inputs=Dense(width=6, batch=4),
    plan=replace(
        two_layers().plan,
        units=(
            Fsdp1Unit(path="", use_orig_params=True),
            Fsdp1Unit(path="2", sharding="SHARD_GRAD_OP", use_orig_params=True),
        ),
    ),
    frozen=("2.weight", "2.bias"),
    optimizer=Optimizer(name="adam"),
    program=(Forward(), Backward(), Step()) * 2,
)


def proposed(
    judge: Judge, case: CaseSpec = LARGE, finding: Finding | None = None, **options: Any
) -> tuple[Proposal, list[CaseSpec]]:
    ran: list[CaseSpec] = []

    def examine(other: CaseSpec) -> Verdict:
        ran.append(other)
        findings = judge(anatomy(other))
        return Verdict(status="finding" if findings else "passed", findings=findings)

    values: dict[str, Any] = {
        "title": "FSDP1 computes a wrong gradient",
        "seen": {"gloo": ("2.13.0",)},
        "date": "2026-11-20",
    }
    made = propose(case, finding or judge(anatomy(case))[0], examine, **values, **options)
    return made, ran


def of_frozen_units(a: Anatomy) -> tuple[Finding, ...]:
    """A wrong gradient in each SHARD_GRAD_OP unit that is frozen as a whole."""
    return tuple(
        wrong_gradient(name=a.owned[path][0].fqn, unit=path, world_size=a.case.world_size)
        for path in a.units
        if any(op.gives_gradients for op in a.case.program)
        and a.owned[path]
        and all(p.fqn in a.frozen for p in a.owned[path])
        and getattr(a.options[path], "sharding", "") == "SHARD_GRAD_OP"
    )


def test_it_asks_for_what_had_to_change_in_the_unit_that_is_named() -> None:
    made, _ = proposed(of_frozen_units)
    when = made.defect.when
    assert when.case["api"] == ("fsdp1",)
    assert when.unit["sharding"] == ("SHARD_GRAD_OP",)
    assert "use_orig_params" not in when.unit.keys() | when.case.keys()
    assert {"steps", "world_size", "optimizer", "norm"}.isdisjoint(when.case)
    assert "freeze" in when.unit or when.parameter.get("frozen") == ("on",)
    assert made.without > 0
    assert made.despite == ()


def test_the_case_is_reduced_first() -> None:
    made, _ = proposed(of_frozen_units)
    case = decode(bytes(made.defect.case))
    assert case.program == (Forward(), Backward()) or len(case.program) < len(LARGE.program)
    assert len(anatomy(case).parameters) <= 2
    assert made.defect.finding == of_frozen_units(anatomy(case))[0]


def test_it_covers_the_case_it_was_made_of_and_none_that_passes() -> None:
    made, ran = proposed(of_frozen_units)
    assert made.defect.covers(two_layers())
    passing = [case for case in ran if not of_frozen_units(anatomy(case))]
    assert len(passing) > 3
    assert [case for case in passing if made.defect.covers(case)] == []


def test_it_explains_its_finding_and_not_that_of_another_parameter() -> None:
    made, _ = proposed(of_frozen_units)
    case = two_layers()
    assert made.defect.explains(case, wrong_gradient())
    assert not made.defect.explains(case, wrong_gradient(name="1.weight", unit=""))
    assert not made.defect.explains(case, wrong_gradient(detail="zero"))
    assert not made.defect.explains(case, crash())


def test_it_must_not_explain_what_is_close_to_it() -> None:
    made, _ = proposed(of_frozen_units)
    whys = [other.why for other in made.defect.refuses]
    assert len(whys) >= 3
    assert any(why.startswith("the same finding without ") for why in whys)
    assert "an exception with other words at the same place" in whys
    own = decode(bytes(made.defect.case))
    for other in made.defect.refuses:
        case = decode(msgspec.json.encode(other.case)) if other.case else own
        assert not made.defect.explains(case, other.finding)


def test_it_can_be_written_and_a_person_is_told_what_to_fill_in(tmp_path: Path) -> None:
    made, _ = proposed(of_frozen_units)
    path = tmp_path / "new.json"
    write_defect(path, made.defect)
    again = read_defect(path)
    assert again.unwritten == ("reason", "link", "way_around")
    assert again.reason.startswith(TO_WRITE)
    assert "SHARD_GRAD_OP" in again.reason
    assert (again.seen, again.gone) == ({"gloo": ("2.13.0",)}, None)


def of_two_frozen_layers(a: Anatomy) -> tuple[Finding, ...]:
    """A crash that names nothing, where a unit on the way is frozen and not resharded."""
    found = of_frozen_units(a)
    if not found:
        return ()
    text = f"lost {found[0].name} of '{found[0].name}' at 0x7f11, 12 bytes of (4)"
    return (crash(text=text, world_size=a.case.world_size),)


def test_where_nothing_is_named_the_unit_is_found_that_makes_the_difference() -> None:
    made, _ = proposed(of_two_frozen_layers)
    assert made.defect.when.unit["sharding"] == ("SHARD_GRAD_OP",)
    (shown,) = made.defect.shows
    assert shown.names == "case"
    assert shown.exception == ("RuntimeError",)
    assert shown.place == (crash().failure.place,)  # type: ignore[union-attr]
    assert made.defect.explains(
        two_layers(), crash(text="lost 0.weight of '0.weight' at 0x9, 4 bytes of (2)")
    )
    assert not made.defect.explains(two_layers(), crash(text="found 0.weight"))
    assert not made.defect.explains(two_layers(), crash(text="lost it"))


def test_names_and_numbers_may_differ_and_other_words_may_not() -> None:
    made, _ = proposed(of_two_frozen_layers)
    text = made.defect.shows[0].text
    for word in ("lost", "bytes of", r"\(\d+\)"):
        assert word in text
    assert "weight" not in text


def of_two_frozen_parameters(a: Anatomy) -> tuple[Finding, ...]:
    both = [p.fqn for p in a.parameters if p.fqn in a.frozen and a.owners[p.fqn] == ""]
    return (wrong_gradient(name=both[0], unit=""),) if len(both) == 2 else ()


def test_another_parameter_that_is_meant_as_well_is_none_it_must_refuse() -> None:
    case = replace(two_layers(), frozen=("0.weight", "1.weight"))
    case = replace(case, plan=replace(case.plan, units=(Fsdp1Unit(path=""),)))
    made, _ = proposed(of_two_frozen_parameters, case)
    own = decode(bytes(made.defect.case))
    other = of_two_frozen_parameters(anatomy(own))[0]
    second = next(p.fqn for p in anatomy(own).parameters if p.fqn != other.name)
    assert made.defect.explains(own, replace(other, name=second))
    assert not any("of the parameter" in refused.why for refused in made.defect.refuses)


def with_two_ranks_only(a: Anatomy) -> tuple[Finding, ...]:
    return of_frozen_units(a) if a.case.world_size == 2 else ()


def test_a_world_size_that_matters_is_asked_for() -> None:
    made, _ = proposed(with_two_ranks_only, two_layers())
    assert made.defect.when.case["world_size"] == ("2",)


def from_three_ranks_on(a: Anatomy) -> tuple[Finding, ...]:
    return of_frozen_units(a) if a.case.world_size > 2 else ()


def test_world_sizes_from_one_on_are_all_asked_for() -> None:
    made, _ = proposed(from_three_ranks_on)
    assert made.defect.when.case["world_size"] == tuple("345678")


def of_small_units(a: Anatomy) -> tuple[Finding, ...]:
    small = [path for path in a.units if sum(p.numel for p in a.owned[path]) == 1]
    return tuple(wrong_gradient(name=a.owned[path][0].fqn, unit=path) for path in small)


def test_a_size_that_matters_is_asked_for_and_one_that_does_not_is_not() -> None:
    """A reduced case is small anyway, so that wider ones are tried, too."""
    one = replace(two_layers(), model=Linear(out=1, bias=False), inputs=Dense(width=1), frozen=())
    case = replace(one, plan=replace(one.plan, units=(Fsdp1Unit(path=""),)))
    made, _ = proposed(of_small_units, case)
    assert made.defect.when.unit["elements"] == ("1",)
    made, _ = proposed(of_frozen_units)
    assert "elements" not in made.defect.when.unit
    assert {"one_element", "uneven", "empty_shard"}.isdisjoint(made.defect.when.case)


def twofold(a: Anatomy) -> tuple[Finding, ...]:
    found = of_frozen_units(a)
    leak = (
        replace(found[0], invariant="resharded_after_backward", symptom="leak", name="", detail="")
        if found
        else None
    )
    other = crash(text="something else")
    alone = (other,) if len(anatomy(a.case).units) > 1 else ()
    return (*found, leak, *alone) if leak is not None else alone


def test_what_comes_and_goes_with_it_is_the_same_defect() -> None:
    """A leak shows wherever the gradient is wrong; the crash shows without, too."""
    made, _ = proposed(twofold, finding=of_frozen_units(anatomy(LARGE))[0])
    assert [shown.invariant for shown in made.defect.shows] == [
        ("grad_parity",),
        ("resharded_after_backward",),
    ]


def test_what_shows_something_else_says_nothing() -> None:
    """Under FULL_SHARD another crash comes first: nobody knows of the gradient there."""

    def judge(a: Anatomy) -> tuple[Finding, ...]:
        found = of_frozen_units(a)
        return found or ((crash(text="earlier"),) if a.frozen else ())

    made, _ = proposed(judge, two_layers())
    assert made.defect.when.unit.get("sharding") == ("SHARD_GRAD_OP",)
    assert not any("SHARD_GRAD_OP" in other.why for other in made.defect.refuses)


def test_no_case_is_run_twice() -> None:
    _, ran = proposed(of_frozen_units)
    assert len(ran) == len(set(ran))


def test_more_ranks_than_there_are_are_not_asked_for() -> None:
    _, ran = proposed(of_frozen_units, two_layers(), max_ranks=2)
    assert {case.world_size for case in ran} <= {1, 2}


@pytest.mark.parametrize("api", ["fsdp1", "fsdp2"])
def test_a_finding_that_needs_nothing_is_of_its_api_at_least(api: str) -> None:
    plan = two_layers().plan if api == "fsdp1" else Fsdp2Plan(units=(Fsdp2Unit(path=""),))
    case = replace(two_layers(), plan=plan, frozen=())

    def always(a: Anatomy) -> tuple[Finding, ...]:
        return (
            wrong_gradient(api=a.api, name=a.parameters[0].fqn, unit=a.owners[a.parameters[0].fqn]),
        )

    made, _ = proposed(always, case)
    assert made.defect.when.case["api"] == (api,)
    assert made.without == 0
    assert len(made.defect.refuses) >= 2
