"""A recipe runs as it is written: who does what, in which order, with which values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from fsdpfuzz.case import anatomy, lower
from fsdpfuzz.case.recipe import (
    Call,
    Do,
    Global,
    Index,
    Inside,
    Items,
    Operation,
    Procedure,
    Recipe,
    Repeated,
    Statement,
    Sum,
    Unsynchronised,
    Value,
    Variable,
    Who,
    With,
    call,
    values,
    walk,
)
from fsdpfuzz.errors import ContractError
from fsdpfuzz.ranks._execute import Role, resolve
from tests.unit.case.saved import documents, saved
from tests.unit.ranks.executed import Noting, execution, run

OUT = Variable("out")


def put(value: Value, name: str = "out", who: Who = "both") -> Do:
    return Do(call=value, into=(Variable(name),), who=who)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3),
        (None, None),
        ("text", "text"),
        (Variable("rank"), 1),
        (Variable("dtype"), torch.float32),
        (Index(4), 4),
        (Sum(3, Index(2)), 5),
        (Global("torch.float16"), torch.float16),
        (Items("tuple", (1, Index(2))), (1, 2)),
        (Items("list", (1,)), [1]),
        (Items("set", (1, 1)), {1}),
        (Items("dict", ("a", 1, "b", 2)), {"a": 1, "b": 2}),
        (call("builtins.max", 3, Index(4)), 4),
        (call("builtins.sorted", Items("list", (1, 3, 2)), reverse=True), [3, 2, 1]),
        (call(".upper", "text"), "TEXT"),
        (call("steps.names.item", Items("list", (1, 2)), 1), 2),
    ],
)
def test_values(value: Value, expected: object) -> None:
    assert run(put(value), rank=1)["out"] == expected


def test_what_a_module_holds_is_read_and_replaced() -> None:
    model = call("torch.nn.Sequential", call("torch.nn.Linear", 2, 3), call("torch.nn.ReLU"))
    found = run(
        put(model, "model"),
        put(Inside("model", "0.weight"), "weight"),
        Do(call=call("torch.nn.Tanh"), into=(Inside("model", "1"),)),
        put(Call(Inside("model", "1"), (Inside("model", "0.bias"),)), "bounded"),
    )
    assert tuple(found["weight"].shape) == (3, 2)
    assert isinstance(found["model"][1], nn.Tanh)
    assert torch.equal(found["bounded"], found["model"][0].bias.tanh())


@pytest.mark.parametrize(
    ("role", "done"),
    [
        ("fsdp", {"both", "fsdp"}),
        ("plain", {"both", "reference", "averaging"}),
        ("ddp", {"both", "reference"}),  # it averages by itself
    ],
)
def test_each_training_does_what_is_its_own(role: Role, done: set[str]) -> None:
    whose: tuple[Who, ...] = ("both", "fsdp", "reference", "averaging")
    found = run(*(put(True, name, name) for name in whose), role=role)
    assert {name for name in whose if name in found} == done


def test_a_statement_may_be_for_some_ranks() -> None:
    only = Do(call=1, into=(OUT,), ranks=(1, 2))
    assert "out" in run(only, rank=1)
    assert "out" not in run(only, rank=0)


@contextlib.contextmanager
def marked(into: list[str]) -> Iterator[None]:
    into.append("begin")
    yield
    into.append("end")


def noted(text: str) -> Do:
    return Do(call=call(".append", Variable("notes"), text))


MARKED = call(f"{__name__}.marked", Variable("notes"))
UNSYNCHRONISED = Unsynchronised(
    body=(noted("body"),), context=MARKED, before=noted("before"), after=noted("after")
)


@pytest.mark.parametrize(
    ("statement", "role", "notes"),
    [
        (With(context=MARKED, body=(noted("body"),)), "plain", ["begin", "body", "end"]),
        (UNSYNCHRONISED, "fsdp", ["before", "begin", "body", "end", "after"]),
        (UNSYNCHRONISED, "plain", ["body"]),
    ],
)
def test_contexts(statement: Statement, role: Role, notes: list[str]) -> None:
    assert run(put(Items("list", ()), "notes"), statement, role=role)["notes"] == notes


def test_ddp_has_a_way_of_its_own_not_to_synchronise() -> None:
    with pytest.raises(ContractError, match="under DDP the model is a Linear"):
        run(put(call("torch.nn.Linear", 1, 1), "model"), UNSYNCHRONISED, role="ddp")


def test_what_a_procedure_assigns_stays_in_it() -> None:
    procedure = Procedure(
        name="made", parameters=("a",), body=(put(Sum(Variable("a"), 1), "b"),), result="b"
    )
    main = (put(5, "a"), put(call("recipe.made", 2)))
    watcher = Noting()
    found = execution(Recipe(procedures=(procedure,), main=main), watcher=watcher).run()
    assert (found["a"], found["out"]) == (5, 3)
    assert "b" not in found
    assert watcher.told == ["a assigned", "out assigned"]


def operation(op: int, *body: Statement) -> Operation:
    return Operation(op=op, name="forward", body=body)


def test_a_watcher_is_told_and_may_leave_an_operation() -> None:
    main = (operation(0, put(1, "loss"), put(2, "rest")), operation(1, put(3, "output")))
    watcher = Noting(leaves_at=["loss"])
    found = execution(Recipe(procedures=(), main=main), watcher=watcher).run()
    assert "rest" not in found
    assert watcher.told == [
        *("before forward[0]", "loss assigned", "after forward[0]"),
        *("before forward[1]", "output assigned", "after forward[1]"),
    ]


def test_the_flight_recorder_is_told_the_stage() -> None:
    failing = Do(call=call("builtins.int", "x"))
    made = execution(Recipe(procedures=(), main=(operation(3, failing),)))
    with pytest.raises(ValueError, match="invalid literal"):
        made.run()
    assert made.env.flight.now == "case:forward[3]"


def test_wrapping_is_a_stage_of_its_own() -> None:
    stages: list[str] = []
    shard = Procedure(name="shard", parameters=("model",), body=(), result="model")
    made = execution(Recipe(procedures=(shard,), main=(put(call("recipe.shard", 1), "model"),)))
    made.run()
    stages.append(made.env.flight.now)
    loads = (put(1, "named"), put(call("recipe.shard", 1), "loaded"))
    loading = execution(Recipe(procedures=(shard,), main=loads))
    loading.run()
    assert [*stages, loading.env.flight.now] == ["case:wrap", "case:build"]


def test_what_is_no_recipe_for_ranks_is_refused() -> None:
    with pytest.raises(ContractError, match="one by one"):
        run(Repeated(times=2, body=()))
    with pytest.raises(ContractError, match="names nothing"):
        resolve("no.such.thing")
    with pytest.raises(AttributeError, match="novel"):
        resolve("steps.names.novel")


def functions(recipe: Recipe) -> set[str]:
    """The dotted names that a recipe calls or mentions."""
    bodies = [recipe.main, *(procedure.body for procedure in recipe.procedures)]
    found: set[str] = set()
    for statement in (s for body in bodies for s in walk(body)):
        if isinstance(statement, Do):
            told = list(values(statement.call))
        else:
            told = list(values(getattr(statement, "context", None)))
        found |= {v.function for v in told if isinstance(v, Call) and isinstance(v.function, str)}
        found |= {v.name for v in told if isinstance(v, Global)}
    return found


def test_all_that_saved_cases_name_is_there() -> None:
    named: set[str] = set()
    for name in documents():
        named |= functions(lower(anatomy(saved(name))))
    ours = {name for name in named if name.startswith("steps.")}
    assert len(ours) > 20
    for name in named:
        if not name.startswith((".", "recipe.")):
            assert resolve(name) is not None
