"""What a known defect explains, covers and applies to."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    StateDict,
    Tie,
    Variant,
    anatomy,
)
from fsdpfuzz.known import Defect, Known, Pattern, Predicate
from fsdpfuzz.verdict import Failure, Finding
from tests.unit.known.samples import TORCH, crash, defect, two_layers, wrong_gradient

replace = msgspec.structs.replace


def known(**defects: Defect) -> Known:
    return Known(defects or {"a-known-one": defect()})


def match(
    finding: Finding | None = None,
    case: CaseSpec | None = None,
    torch: str = TORCH,
    backend: str = "gloo",
) -> str | None:
    return known().match(
        case or two_layers(), finding or wrong_gradient(), torch=torch, backend=backend
    )


@pytest.mark.parametrize(
    "torch", ["2.7.1", "2.7.1+cpu", "2.13.0", "2.14.0a0+git1234", "2.9.0.dev20260101+cu130", "3.0"]
)
def test_it_explains_its_finding(torch: str) -> None:
    assert match(torch=torch) == "a-known-one"
    assert match(crash(), torch=torch) == "a-known-one"


@pytest.mark.parametrize(
    "other",
    [
        {"finding": wrong_gradient(invariant="param_parity")},
        {"finding": wrong_gradient(detail="times-ranks")},
        {"finding": wrong_gradient(name="1.weight")},
        {"finding": wrong_gradient(name="1.weight", unit="0")},
        {"finding": wrong_gradient(name="")},
        {"finding": wrong_gradient(name="2.weight")},
        {"finding": wrong_gradient(variant="none-such")},
        {"finding": crash(op=1, operation="backward")},
        {"finding": crash(type="ValueError")},
        {"finding": crash(text="we lost the shard")},
        {"finding": crash(type="", text="", exitcode=-11)},
        {"finding": replace(crash(), failure=None)},
        {"finding": wrong_gradient(invariant="no_crash", operation="forward")},
        {"case": two_layers(sharding="FULL_SHARD")},
        {"case": two_layers(frozen=False)},
        {"torch": "2.7.0"},
        {"torch": "2.6.0"},
        {"torch": "no version"},
        {"torch": ""},
        {"backend": "nccl"},
    ],
)
def test_and_nothing_else(other: dict[str, Any]) -> None:
    assert match() == "a-known-one"
    assert match(**other) is None


def test_what_an_operation_gives_of_a_parameter_is_about_it() -> None:
    of_results = Known(
        {"a-known-one": defect(shows=(Pattern(invariant=("full_params",), names="parameter"),))}
    )
    for parameter, explains in (("1.weight", False), ("0.weight", True)):
        finding = wrong_gradient(invariant="full_params", name=f"full_params[{parameter}]")
        found = of_results.match(two_layers(), finding, torch=TORCH, backend="gloo")
        assert (found is not None) is explains


def test_it_is_gone_from_a_release_on() -> None:
    entry = defect(gone="2.14")
    assert entry.applies(torch="2.13.9+cpu", backend="gloo")
    for torch in ("2.14.0", "2.14.0a0+git1234", "2.15"):
        assert not entry.applies(torch=torch, backend="gloo")


def test_the_oldest_release_on_any_backend_counts() -> None:
    entry = defect(seen={"gloo": ("2.10.0",), "nccl": ("2.8.0", "2.11.0")})
    assert entry.applies(torch="2.8.0", backend="gloo")
    assert not entry.applies(torch="2.7.9", backend="nccl")


@pytest.mark.parametrize(
    ("pattern", "finding", "fits"),
    [
        (Pattern(invariant=("no_crash",), place=("a.py",)), crash(place="a.py:f"), True),
        (Pattern(invariant=("no_crash",), place=("a.py:f",)), crash(place="a.py:f"), True),
        (Pattern(invariant=("no_crash",), place=("a.py:f",)), crash(place="a.py:g"), False),
        (Pattern(invariant=("no_crash",), place=("a.py",)), crash(place="b/a.py:f"), False),
        (Pattern(invariant=("no_crash",), text="lost"), crash(), True),
        (Pattern(invariant=("no_crash",), text="shard.*bytes"), crash(text="shard\nbytes"), True),
        (Pattern(invariant=("no_rank_death",), exitcode=(-11,)), crash(), False),
        (
            Pattern(invariant=("no_crash",), exitcode=(-11,)),
            replace(crash(), failure=Failure(exitcode=-11)),
            True,
        ),
        (
            Pattern(invariant=("no_crash",), exitcode=(-11,)),
            replace(crash(), failure=Failure(exitcode=-6)),
            False,
        ),
        (Pattern(invariant=("grad_parity",), names="unit"), wrong_gradient(), True),
        (Pattern(invariant=("grad_parity",), names="unit"), wrong_gradient(unit=""), False),
        (Pattern(invariant=("grad_parity",), names="unit"), wrong_gradient(unit=None), False),
        (Pattern(invariant=("grad_parity",), names="unit"), wrong_gradient(unit="9"), False),
        (Pattern(invariant=("grad_parity",), observed=("-1.0",)), wrong_gradient(), True),
        (Pattern(invariant=("grad_parity",), observed=("1.0",)), wrong_gradient(), False),
        (Pattern(invariant=("grad_parity",), kind=("less",)), wrong_gradient(kind="less"), True),
        (Pattern(invariant=("grad_parity",), kind=("less",)), wrong_gradient(), False),
        (Pattern(invariant=("no_crash",), operation=("forward",)), crash(), True),
        (Pattern(invariant=("no_crash",), operation=("forward no_sync",)), crash(), False),
    ],
)
def test_each_field_of_a_pattern_counts(pattern: Pattern, finding: Finding, fits: bool) -> None:
    entry = defect()
    assert pattern.fits(anatomy(two_layers()), entry.when, finding) is fits


def test_an_operation_is_meant_by_its_kind_or_its_words() -> None:
    case = two_layers()
    quiet = replace(case, program=(replace(case.program[0], sync=False), case.program[1]))
    for operation in ("forward", "forward no_sync"):
        pattern = Pattern(invariant=("no_crash",), operation=(operation,))
        assert pattern.fits(anatomy(quiet), defect().when, crash())


def test_a_unit_must_have_all_that_is_asked_of_a_unit() -> None:
    """A frozen unit beside another that is SHARD_GRAD_OP is not meant."""
    plan = Fsdp1Plan(
        units=(Fsdp1Unit(path=""), Fsdp1Unit(path="0"), Fsdp1Unit(path="1", sharding="NO_SHARD"))
    )
    when = Predicate(case={"api": ("fsdp1",)}, unit={"sharding": ("NO_SHARD",), "freeze": ("all",)})
    apart = replace(two_layers(), plan=plan)
    assert not when.covers(anatomy(apart))
    assert when.covers(anatomy(replace(apart, frozen=("1.weight",))))


def test_a_parameter_must_lie_in_a_unit_that_is_meant() -> None:
    when = Predicate(
        case={"api": ("fsdp1",)},
        unit={"sharding": ("SHARD_GRAD_OP",)},
        parameter={"frozen": ("on",)},
    )
    case = two_layers()
    assert when.covers(anatomy(case))
    assert not when.covers(anatomy(replace(case, frozen=("1.weight",))))
    assert not when.covers(anatomy(two_layers(sharding="FULL_SHARD")))


def test_a_tied_parameter_is_meant_by_either_name() -> None:
    when = Predicate(
        case={"api": ("fsdp1",)}, unit={"root": ("model",)}, parameter={"tied": ("nested",)}
    )
    shown = Pattern(invariant=("grad_parity",), names="parameter")
    a = anatomy(replace(two_layers(), ties=(Tie(source="0.weight", target="1.weight"),)))
    assert shown.fits(a, when, wrong_gradient(name="0.weight"))
    assert shown.fits(a, when, wrong_gradient(name="1.weight"))


def test_a_finding_of_a_variant_is_held_against_the_variant() -> None:
    """The variant trains what the case itself does not: only its own finding is explained."""
    variant = Variant(name="frozen", frozen=("0.weight",))
    case = replace(two_layers(frozen=False), twins=(variant,))
    assert defect().covers(case)
    assert match(wrong_gradient(variant="frozen"), case) == "a-known-one"
    assert match(wrong_gradient(), case) is None
    other = replace(case, twins=(replace(variant, name="other", frozen=()),))
    assert not defect().covers(other)
    assert match(wrong_gradient(variant="other"), other) is None


def test_a_comparison_with_a_variant_may_be_either_ones_fault() -> None:
    shown = (Pattern(invariant=("twins_agree",), names="parameter"),)
    entry = defect(shows=shown)
    variant = Variant(name="thawed", frozen=())
    case = replace(two_layers(), twins=(variant,))
    finding = wrong_gradient(invariant="twins_agree", variant="thawed", detail="other")
    assert entry.explains(case, finding)
    assert not entry.explains(replace(case, frozen=()), finding)


def test_a_second_fault_beside_a_known_one_is_not_hidden() -> None:
    findings = [wrong_gradient(), wrong_gradient(name="1.weight", unit=""), crash(text="else")]
    assert [match(finding) for finding in findings] == ["a-known-one", None, None]


def test_the_first_entry_that_explains_it_is_named() -> None:
    several = known(
        gone=defect(gone="2.8"),
        crash=defect(shows=defect().shows[1:]),
        first=defect(),
        second=defect(),
    )
    where = {"torch": TORCH, "backend": "gloo"}
    assert several.match(two_layers(), wrong_gradient(), **where) == "first"
    assert several.match(two_layers(), crash(), **where) == "crash"


def test_covering_names_all_that_apply() -> None:
    several = known(one=defect(), gone=defect(gone="2.8"), two=defect(seen={"nccl": ("2.11.0",)}))
    assert several.covering(two_layers(), torch=TORCH, backend="gloo") == ("one",)
    assert several.covering(two_layers(), torch=TORCH, backend="nccl") == ("two",)
    assert several.covering(two_layers(), torch="2.7.1", backend="gloo") == ("one", "gone")
    assert several.covering(two_layers(frozen=False), torch=TORCH, backend="gloo") == ()


@pytest.mark.parametrize(
    ("operations", "showing"),
    [
        (("backward",), True),
        (("step", "backward"), True),
        (("step",), False),
        # By how its words begin, a whole word each.
        (("state_dict full to CPU",), True),
        (("state_dict full",), True),
        (("state_dict", "step"), True),
        (("state_dict fu",), False),
        (("state_dict full rank 0 only",), False),
        ((), True),
    ],
)
def test_it_shows_where_a_case_has_the_operation(
    operations: tuple[str, ...], showing: bool
) -> None:
    entries = known(one=defect(shows=(Pattern(invariant=("no_crash",), operation=operations),)))
    saved = (Forward(), Backward(), StateDict(cpu_offload=True, given="set"))
    case = replace(two_layers(), program=saved)
    where = {"torch": TORCH, "backend": "gloo"}
    assert entries.covering(case, **where) == ("one",)
    assert entries.showing(case, **where) == (("one",) if showing else ())


def test_another_way_to_show_is_waited_for_as_well() -> None:
    ways = tuple(Pattern(invariant=("no_crash",), operation=(at,)) for at in ("step", "backward"))
    where = {"torch": TORCH, "backend": "gloo"}
    assert known(one=defect(shows=ways)).showing(two_layers(), **where) == ("one",)
    assert known(one=defect(shows=ways[:1])).showing(two_layers(), **where) == ()


def test_exits_are_plainer_cases_that_are_not_covered() -> None:
    entries = known()
    nearest = list(entries.exits(two_layers(), "a-known-one"))
    assert two_layers(sharding="FULL_SHARD") in nearest
    assert len(nearest) == 2
    assert not any(entries.defects["a-known-one"].covers(case) for case in nearest)


def test_what_explained_nothing_is_silent() -> None:
    entries = known(
        met=defect(),
        unmet=defect(shows=(Pattern(invariant=("no_hang",), operation=("forward",)),)),
        elsewhere=defect(seen={"nccl": ("2.7.1",)}),
        gone=defect(gone="2.8"),
    )
    where = {"torch": TORCH, "backend": "gloo"}
    assert entries.silent(**where) == ("met", "unmet")
    entries.match(two_layers(frozen=False), wrong_gradient(), **where)
    assert entries.silent(**where) == ("met", "unmet")
    entries.match(two_layers(), wrong_gradient(), **where)
    assert entries.silent(**where) == ("unmet",)
