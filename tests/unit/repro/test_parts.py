"""The parts that make a script plainer leave what it does as it is."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fsdpfuzz.repro
from fsdpfuzz.repro import layout, source
from fsdpfuzz.repro.classes import without_options
from fsdpfuzz.repro.imports import import_lines
from fsdpfuzz.repro.statements import MANY, merged, rolled
from fsdpfuzz.repro.tidy import tidied
from fsdpfuzz.repro.trainings import side_by_side
from fsdpfuzz.repro.variables import propagated

LINES = st.lists(
    st.sampled_from(
        [
            "told.append(1)",
            "told.append(2)",
            "for i in range(2):\n    told.append(i)\n    told.append(3)",
            "told.append(\n    4\n)",
            "if told:\n    told.append(6)\nelse:\n    told.append(7)",
        ]
    ),
    max_size=6,
)


def parsed(text: str) -> list[ast.stmt]:
    return ast.parse(text).body


def text_of(statements: list[ast.stmt]) -> str:
    return ast.unparse(ast.fix_missing_locations(ast.Module(statements, [])))


def told_by(text: str, **names: Any) -> list[object]:
    told: list[object] = []
    exec(text, {"told": told, **names})
    return told


@settings(deadline=None)
@given(LINES, LINES)
def test_of_two_trainings_each_runs_as_it_would_alone(first: list[str], second: list[str]) -> None:
    usual, other = "\n".join(first), "\n".join(second)
    both = text_of(side_by_side(parsed(usual), parsed(other), "variant"))
    assert told_by(both, variant=False) == told_by(usual)
    assert told_by(both, variant=True) == told_by(other)


@pytest.mark.parametrize(
    ("usual", "other", "text"),
    [
        ("a()", "a()", "a()"),
        ("a()\nb()", "a()", "a()\nif not variant:\n    b()"),
        ("a()", "b()\na()", "if variant:\n    b()\na()"),
        ("a()", "b()", "if variant:\n    b()\nelse:\n    a()"),
        ("", "", ""),
    ],
)
def test_what_two_trainings_share_is_written_once(usual: str, other: str, text: str) -> None:
    assert text_of(side_by_side(parsed(usual), parsed(other), "variant")) == text


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("if not fsdp:\n    a()\nif fsdp:\n    b()", "if fsdp:\n    b()\nelse:\n    a()"),
        (
            "if not fsdp:\n    a()\nif fsdp:\n    b()\nelse:\n    c()",
            "if fsdp:\n    b()\nelse:\n    a()\n    c()",
        ),
        ("if x:\n    a()\nelse:\n    b()\nif x:\n    c()", None),
        ("if not x:\n    a()\nif x:\n    b()", None),
    ],
)
def test_of_a_flag_both_branches_are_one(text: str, made: str | None) -> None:
    assert text_of(merged(parsed(text))) == (made or text)


def test_blocks_under_the_same_test_are_one() -> None:
    text = "if fsdp:\n    a()\nif fsdp:\n    b()\nif not fsdp:\n    c()\nd()"
    made = "if fsdp:\n    a()\n    b()\nelse:\n    c()\nd()"
    assert text_of(merged(parsed(text))) == made


def test_calls_that_differ_in_a_module_are_a_loop() -> None:
    paths = ["model[0]", "model[1].body", "model"]
    assert len(paths) == MANY
    text = "\n".join(f"fully_shard({path}, mesh=mesh)" for path in paths)
    made = "for module in (model[0], model[1].body, model):\n    fully_shard(module, mesh=mesh)"
    assert text_of(rolled(parsed(text))) == made
    fewer = "\n".join(text.splitlines()[1:])
    assert text_of(rolled(parsed(fewer))) == fewer
    other = text.replace("(model, mesh=mesh)", "(model, mesh=other)")
    assert text_of(rolled(parsed(other))) == other


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("x = 3\ntold.append(x)\ntold.append(x)", "told.append(3)\ntold.append(3)"),
        ("x = y\ntold.append(x)", "told.append(y)"),
        ("x = y\ny = 2\ntold.append(x)", None),
        ("x = []\nx.append(1)\ntold.append(x)", None),
        ("x = f()\ng()\ntold.append(x)", None),
        ("x = 1\nx = x + 1\ntold.append(x)", None),
        ("x = a.b\nfor i in y:\n    told.append(x)", None),
    ],
)
def test_variables_that_say_nothing_are_left_out(text: str, made: str | None) -> None:
    assert text_of(propagated(parsed(text))) == (made or text)


CLASS = """
class Scale:
    def __init__(self, width, flag=False, times=2):
        self.flag = flag
        self.width = width
        if flag:
            self.extra = times

    def run(self):
        if self.flag:
            return self.extra
        return self.width
"""


def test_options_that_no_call_gives_are_folded_into_a_class() -> None:
    text = text_of(without_options(parsed(f"{CLASS}\ntold.append(Scale(3).run())")))
    assert "flag" not in text
    assert "times" not in text
    assert told_by(text) == [3]


def test_options_that_differ_between_calls_stay() -> None:
    calls = "told.append(Scale(3, True).run())\ntold.append(Scale(4, times=5).run())"
    text = text_of(without_options(parsed(f"{CLASS}\n{calls}")))
    assert told_by(text) == [2, 4]
    assert "flag" in text


def test_an_attribute_that_is_set_from_outside_stays() -> None:
    use = "s = Scale(3)\ns.flag = True\ns.extra = 8\ntold.append(s.run())"
    assert told_by(text_of(without_options(parsed(f"{CLASS}\n{use}")))) == [8]


def test_a_list_is_one_object_for_all_methods() -> None:
    made = (
        "class Keeps:\n"
        "    def __init__(self):\n"
        "        self.kept = []\n"
        "    def keep(self):\n"
        "        self.kept.append(4)\n"
        "    def all(self):\n"
        "        return self.kept\n"
    )
    use = "one = Keeps()\none.keep()\none.keep()\ntold.extend(one.all())"
    assert told_by(text_of(without_options(parsed(f"{made}\n{use}")))) == [4, 4]


def test_a_class_that_only_a_folded_option_names_is_left_out() -> None:
    inner = "class Two:\n    pass\n\nclass One:\n    two = Two\n"
    made = CLASS.replace("return self.extra", "return One.two")
    text = text_of(without_options(parsed(f"{inner}{made}\ntold.append(Scale(3).run())")))
    assert "Two" not in text
    assert "One" not in text
    assert told_by(text) == [3]


NAMED = "named = dict(model.named_parameters())\n"


@pytest.mark.parametrize(
    ("text", "made"),
    [
        (f"{NAMED}f()\np = named['0.weight']\ng(p)", "p = model[0].weight\nf()\ng(p)"),
        (f"{NAMED}f()\ng(named['0.weight'])", "p = model[0].weight\nf()\ng(p)"),
        (f"{NAMED}f()\ng(named['a'], named['b'])", None),
        (f"{NAMED}f()\ng(named)", None),
        (f"{NAMED}f(named['a'])\ng(named)", None),
        (f"{NAMED}p = f()\ng(p, p)\ng(named['a'])", None),
    ],
)
def test_one_parameter_needs_no_names(text: str, made: str | None) -> None:
    found = text_of(tidied(parsed(text)))
    assert found == (made or text)


def test_a_move_to_where_all_is_leaves_nothing_behind() -> None:
    assert text_of(tidied(parsed('model.to(torch.device("cpu"))\nf(model)'))) == "f(model)"


def test_a_branch_whose_variable_nobody_reads_goes() -> None:
    assert text_of(tidied(parsed("if variant:\n    named = f(model)\ng()"))) == "g()"


def test_so_does_one_whose_name_has_a_number() -> None:
    assert (
        text_of(tidied(parsed("named = f()\nnamed_2 = g(h)\nk(named)"))) == "named = f()\nk(named)"
    )


FORWARD = """def forward(module, i):
    x = drawn(8 * i + rank)
    output = module(x)
    weights = like(output)
    return (output * weights).sum()
"""


@pytest.mark.parametrize(
    ("text", "made"),
    [
        (
            "loss = forward(model, 0)\nwith off():\n    loss = forward(model[1], 2)",
            "x = drawn(rank)\nmodel(x)\nwith off():\n    x = drawn(rank + 16)\n    model[1](x)",
        ),
        ("loss = forward(model, 0)\nforward(model, 1)\nf(loss)", None),
        ("forward(model, 0)\n" * 5, None),
    ],
)
def test_a_loss_that_nobody_reads_goes_where_values_are_compared(
    text: str, made: str | None
) -> None:
    """Where a script waits for an error, the loss may raise it."""
    found = text_of(tidied(parsed(FORWARD + text), compares=True))
    assert found == text_of(parsed(made or FORWARD + text))
    assert text_of(tidied(parsed(FORWARD + text))).startswith(FORWARD.rstrip())


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("f()\nright_2 = g()\nh(right_2)", "f()\nright = g()\nh(right)"),
        ("right_2 = g()\nh(right_2, right)", None),
        ("def right():\n    return 1\nright_2 = g()\nh(right_2)", None),
        ("len_2 = g()\nh(len_2, len_2)", None),
    ],
)
def test_a_number_behind_a_name_goes_where_it_tells_nothing_apart(
    text: str, made: str | None
) -> None:
    assert text_of(tidied(parsed(text))) == (made or text)


def test_imports_are_sorted_and_fit_into_lines() -> None:
    names = {"FSDP": ("torch.distributed.fsdp", "FullyShardedDataParallel")}
    names |= {
        name: ("torch.distributed.fsdp", name) for name in ("FullStateDictConfig", "StateDictType")
    }
    names |= {"torch": ("torch", ""), "os": ("os", ""), "nn": ("torch", "nn")}
    assert import_lines(names) == [
        "import os",
        "",
        "import torch",
        "from torch import nn",
        "from torch.distributed.fsdp import FullStateDictConfig, StateDictType",
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP",
    ]


TEXTUAL = {"replace", "split", "splitlines", "join", "sub", "index", "partition", "format"}
ABOUT_TEXT = {
    *("header.py", "layout.py", "verify.py", "issue.py", "context.py", "source.py"),
    "signature.py",
}
"""What is about words of a header, lines and columns, output, messages, or reads files."""


def _is_source(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in ("ast.unparse", "source")


def test_no_statement_is_edited_as_text() -> None:
    folder = Path(fsdpfuzz.repro.__file__).parent
    for path in folder.glob("*.py"):
        tree = ast.parse(path.read_text())
        found = {
            f"{path.name}:{node.lineno} {node.func.attr}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in TEXTUAL
            and any(_is_source(inner) for inner in [node.func.value, *node.args])
        }
        assert found == set()
        imports = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
        if path.name not in ABOUT_TEXT:
            assert "re" not in imports, path.name


def test_a_long_call_that_moves_a_tensor_is_no_lost_copy() -> None:
    """``to`` moves a module in place, and a tensor not."""
    long = ", ".join(["1"] * 40)
    text = layout.source(ast.parse(f"x = torch.zeros(({long})).to(dtype)").body)
    assert text.splitlines() == [f"x = torch.zeros(({long}))", "x = x.to(dtype)"]


def test_a_dataclass_keeps_its_fields_and_other_classes_lose_annotations() -> None:
    text = "@dataclass\nclass A:\n    x: int\n    y: int = 1\n\nclass B:\n    x: int\n"
    made = source.parsed("m", text).definitions
    assert ast.unparse(made["A"]) == "@dataclass\nclass A:\n    x: int\n    y: int = 1"
    assert ast.unparse(made["B"]) == "class B:\n    pass"
