"""A training that is taken up from disk: how it is saved, in words, features and calls."""

from __future__ import annotations

import msgspec
import pytest

from fsdpfuzz.case import (
    ITERATION,
    CaseSpec,
    Fsdp2Plan,
    Fsdp2Unit,
    Idle,
    Linear,
    Rebuild,
    Sequential,
    Tie,
    anatomy,
    chain,
    check,
    features,
    lower,
)
from fsdpfuzz.case.features import unit_features
from fsdpfuzz.case.recipe import Call, Do, Operation


def case(asynchronous: bool) -> CaseSpec:
    before = chain("fsdp2", (3, 4, 2), (0,), 2, ITERATION)
    rebuild = Rebuild(plan=before.plan, asynchronous=asynchronous)
    return msgspec.structs.replace(before, program=(*ITERATION, rebuild, *ITERATION))


def saved_by(given: CaseSpec) -> list[str]:
    (rebuild,) = (
        s for s in lower(anatomy(given)).main if isinstance(s, Operation) and s.name == "rebuild"
    )
    made = [d.call for d in rebuild.body if isinstance(d, Do)]
    names = [str(c.function) for c in made if isinstance(c, Call)]
    return [name for name in names if name.startswith("steps.rebuild.save")]


@pytest.mark.parametrize(
    ("asynchronous", "way", "value", "words"),
    [
        (False, "save", "off", "save, rebuild as "),
        (True, "save_meanwhile", "on", "save in the background, rebuild as "),
    ],
)
def test_it_is_saved_at_once_or_in_the_background(
    asynchronous: bool, way: str, value: str, words: str
) -> None:
    given = case(asynchronous)
    check(given)
    assert saved_by(given) == [f"steps.rebuild.{way}"]
    assert features(given)["async_save"] == value
    (rebuild,) = (op for op in given.program if isinstance(op, Rebuild))
    assert rebuild.words().startswith(words)


def test_saving_at_once_is_plainer() -> None:
    plainer = [(s.case, s.words) for s in Rebuild.simpler(case(True))]
    assert (case(False), "async_save") in plainer
    assert "async_save" not in [s.words for s in Rebuild.simpler(case(False))]


def test_what_is_read_under_another_name_of_a_tie_is_stepped() -> None:
    model = Sequential(children=(Idle(), Linear(out=1, bias=False)))
    plan = Fsdp2Plan(units=(Fsdp2Unit(path=""),))
    given = msgspec.structs.replace(
        chain("fsdp2", (1, 1), (), 2, (*ITERATION, Rebuild(plan=plan))),
        model=model,
        plan=plan,
        ties=(Tie(source="0.idle.weight", target="1.weight"),),
    )
    check(given)
    a = anatomy(given)
    assert {p.fqn: p.used for p in a.distinct} == {"0.idle.weight": True, "0.idle.bias": False}
    assert unit_features(a, "")["gradient"] == "on"
    # Of the bias alone there is no state.
    assert features(a.case)["rebuilt_state"] == "part"


def test_a_unit_is_called_only_if_it_is_whenever_it_was_made() -> None:
    given = case(asynchronous=False)
    again = Rebuild(plan=given.plan)
    for program, called in (
        (ITERATION, "on"),
        ((*ITERATION, again), "off"),
        ((again, *ITERATION), "off"),
        ((*ITERATION, again, *ITERATION), "on"),
    ):
        a = anatomy(msgspec.structs.replace(given, program=program))
        assert {unit_features(a, path)["called"] for path in a.units} == {called}
