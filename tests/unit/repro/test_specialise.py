"""Steps are quoted for the arguments of one script, and come to the same."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from unittest import mock

import pytest

from fsdpfuzz.errors import ContractError
from fsdpfuzz.repro import meaning, source
from fsdpfuzz.repro.layout import source as text_of
from fsdpfuzz.repro.source import Source, parsed
from fsdpfuzz.repro.specialise import Specialiser

STEPS = '''
"""A module of steps."""
from __future__ import annotations
import os
from torch import nn
from fsdpfuzz.steps.other import helper, OFFSET

SEED = 40

def seeded(extra: int) -> int:
    """A docstring."""
    return SEED + extra

def branches(told, form, lacking=False):
    if form == "full":
        told.append("full")
    else:
        told.append("sharded")
    if lacking:
        told.append("lacking")

def early(x, lacking):
    if not lacking:
        return x
    return -x

def long(told, x):
    told.append(x)
    told.append(x + 1)
    told.append(x + 2)

def answer(told, x):
    value = helper(x)
    told.append(value)
    return value

def inside(told, x):
    with told:
        value = [x]
        if x > 1:
            told.append(value)
        return value

def around(told, x):
    told.append(x)
    value = x + 1
    told.append(value)
    told.append(x)
    return value + x

def handed_on(told, function, *args):
    told.append(function(*args))

def named(told, function, x, **kwargs):
    told.append(function(x, **kwargs))

def first_named(x, **kwargs):
    for name in sorted(kwargs):
        if name > x:
            return kwargs[name]
    return -1

def twice(told, x):
    told.append(x)
    told.append(x)

def many(x):
    for k in range(3):
        if k == x:
            return k
    return -1

def commented(told):
    # Order matters.
    told.append(1)  # first

def adder(number):
    sum = number

    def added(x, later=number):
        return x + sum + later

    return added

class Base:
    def __init__(self, size):
        self.size = size

class Derived(Base):
    def grown(self):
        return self.size + OFFSET
'''
OTHER = """
OFFSET = 7

def helper(x):
    return 10 * x
"""


@pytest.fixture(autouse=True)
def _steps() -> Iterator[None]:
    modules: Mapping[str, Source] = {
        "fsdpfuzz.steps.some": parsed("fsdpfuzz.steps.some", STEPS),
        "fsdpfuzz.steps.other": parsed("fsdpfuzz.steps.other", OTHER),
    }
    with (
        mock.patch.object(source, "source_of", modules.__getitem__),
        mock.patch.object(meaning, "source_of", modules.__getitem__),
    ):
        yield


def script(*calls: str) -> str:
    """The text that calls of steps become, with the functions that they need."""
    specialiser = Specialiser()
    made = specialiser.script([_call(line) for line in calls], {"told"})
    return text_of([*specialiser.quoted.definitions.values(), *made])


def _call(line: str) -> ast.stmt:
    """``x = some.step(...)`` with the step's dotted name as one name, as recipes are written."""

    class Dotted(ast.NodeTransformer):
        def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
            self.generic_visit(node)
            owner = node.value
            if isinstance(owner, ast.Name) and owner.id == "some":
                return ast.Name(f"steps.some.{node.attr}", ast.Load())
            return node

    (statement,) = ast.parse(line).body
    made: ast.stmt = Dotted().visit(statement)
    return made


def run(text: str) -> list[object]:
    told: list[object] = []
    exec(text, {"told": told})
    return told


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("x = some.seeded(2)", "x = 42"),
        ("x = some.seeded(rank)", "x = rank + 40"),
        ("some.branches(told, 'full')", "told.append('full')"),
        ("some.branches(told, 'local')", "told.append('sharded')"),
        (
            "some.branches(told, 'full', lacking=True)",
            "told.append('full')\ntold.append('lacking')",
        ),
        ("x = some.early(y, False)", "x = y"),
        ("x = some.early(y, True)", "x = -y"),
        ("y = some.answer(told, 4)", "told.append(40)\ny = 40"),
        ("some.twice(told, y)", "told.append(y)\ntold.append(y)"),
        ("some.twice(told, f(y))", "x = f(y)\ntold.append(x)\ntold.append(x)"),
        ("some.handed_on(told, f, 1, y)", "told.append(f(1, y))"),
        ("some.named(told, f, 1, a=y, b=2)", "told.append(f(1, a=y, b=2))"),
        ("some.named(told, f, x=1)", "told.append(f(1))"),
        # What is given back is wanted by nobody, and so is a `pass` in its place.
        ("some.inside(told, 2)", "with told:\n    value = [2]\n    told.append(value)"),
        ("some.commented(told)", "# Order matters.\ntold.append(1)  # first"),
    ],
)
def test_a_call_becomes_what_it_does(call: str, text: str) -> None:
    assert script(call) == text


def test_a_long_body_called_again_is_a_function() -> None:
    once = script("some.long(told, 3)")
    assert "def" not in once
    assert run(once) == [3, 4, 5]
    again = script("some.long(told, 3)", "some.long(told, 5)")
    assert again.count("def long") == 2
    assert run(again) == [3, 4, 5, 5, 6, 7]


def test_what_returns_in_the_middle_is_a_function() -> None:
    text = script("told.append(some.many(2))")
    assert "def many" in text
    assert run(text) == [2]
    assert run(script("x = some.many(5)", "told.append(x)")) == [-1]


def test_a_function_is_called_by_keywords_as_the_step_is() -> None:
    text = script("told.append(some.first_named('a', a=1, b=2, c=3))")
    assert "def first_named(**kwargs):" in text
    assert run(text) == [2]
    with pytest.raises(ContractError, match="many takes no argument 'y'"):
        script("told.append(some.many(1, y=2))")


def test_a_step_inside_of_itself_is_the_same() -> None:
    assert run(script("told.append(some.seeded(some.seeded(1)))")) == [81]


@pytest.mark.parametrize("target", ["x", "value", "other", "told_2"])
def test_a_result_may_have_any_name(target: str) -> None:
    assert run(script(f"{target} = some.answer(told, 4)", f"told.append({target})")) == [40, 40]
    text = script(f"{target} = 3", f"{target} = some.around(told, {target})")
    assert run(f"{text}\ntold.append({target})") == [3, 4, 3, 7]


def test_variables_of_a_body_do_not_meet_those_of_the_script() -> None:
    text = script("value = 1", "x = some.answer(told, 2)", "told.append(value)")
    assert run(text) == [20, 1]


def test_an_argument_is_evaluated_once() -> None:
    assert run(script("some.twice(told, len(told.__iadd__([9])))")) == [9, 1, 1]


@pytest.mark.parametrize("target", ["f", "added", "sum", "x", "later"])
def test_a_function_that_is_made_may_have_any_name(target: str) -> None:
    text = script(f"{target} = 3", f"{target} = some.adder({target})", f"told.append({target}(1))")
    assert run(text) == [7]


def test_a_class_brings_what_it_builds_on() -> None:
    text = script("told.append(some.Derived(3).grown())")
    assert text.index("class Base") < text.index("class Derived(Base)")
    assert run(text) == [10]


@pytest.mark.parametrize(
    "call", ["some.missing()", "some.seeded()", "some.seeded(1, 2)", "some.seeded(other=1)"]
)
def test_a_call_that_cannot_be_is_an_error(call: str) -> None:
    with pytest.raises(ContractError):
        script(call)


def test_docstrings_and_annotations_stay_behind() -> None:
    text = script("told.append(some.many(rank))")
    assert "docstring" not in text
    assert "->" not in text
