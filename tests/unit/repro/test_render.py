"""A script is sound Python, short, and imports torch and the standard library alone."""

from __future__ import annotations

import ast
import builtins
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal
from unittest import mock

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fsdpfuzz.case import (
    Backward,
    Buffered,
    CaseSpec,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Precision,
    Sequential,
    StateDict,
    Step,
    check,
)
from fsdpfuzz.case.grad_scaler import GradScaler
from fsdpfuzz.case.operations import Transfer, UpdateScale
from fsdpfuzz.invariants import judge
from fsdpfuzz.loop import PROPERTIES, Scope
from fsdpfuzz.reduce import Ablation
from fsdpfuzz.repro import Context, environment_of, render
from fsdpfuzz.repro.source import COMPREHENSIONS, source_of
from fsdpfuzz.seeds import SEEDS
from fsdpfuzz.verdict import Failure, Finding
from fsdpfuzz.wire import Machine
from tests.unit.invariants.faults import FAULTS
from tests.unit.repro.examples import counted, every_kind, finding, single_unit

CONTEXT = Context(
    torch="2.13.0",
    backend="gloo",
    environment=environment_of(
        Machine(
            python="3.11.9",
            torch="2.13.0+cu130",
            os="Debian GNU/Linux 12 (bookworm) (x86_64)",
            cuda="13.0",
        )
    ),
    ablation=Ablation(needed=("use_orig_params=True",), absent=("with FSDP2", "at world size 3")),
)
KINDS = [(api, kind) for api in ("fsdp1", "fsdp2") for kind in every_kind(api)]
MAX_LINES = 60
UPDATING = Sequential(children=(Linear(out=3), Buffered(updates=True)))
DRAWN = st.one_of([item.strategy(Scope()) for item in PROPERTIES.values()])


def names_of(tree: ast.Module) -> tuple[set[str], set[str]]:
    """What is bound somewhere, and what is read somewhere."""
    bound = {"__name__", "__file__"} | set(dir(builtins))
    read = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                read.add(name)
            case ast.Name(id=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
            case ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
                bound.add(name)
            case ast.alias(name=name, asname=other):
                bound.add(other or name.partition(".")[0])
            case _:
                pass
    return bound, read


def bound_too_late(tree: ast.Module) -> set[str]:
    """Names of the whole script that a function reads before it binds them itself."""

    def names(node: ast.AST) -> Iterator[ast.Name]:
        """All but those of comprehensions, which have a scope of their own."""
        for inner in ast.iter_child_nodes(node):
            if isinstance(inner, ast.Name):
                yield inner
            elif not isinstance(inner, COMPREHENSIONS):
                yield from names(inner)

    def stored(found: Iterable[ast.Name]) -> set[str]:
        return {n.id for n in found if isinstance(n.ctx, ast.Store)}

    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    top = stored([n for s in tree.body if not isinstance(s, ast.FunctionDef) for n in names(s)])
    late: set[str] = set()
    for function in functions:
        # What a line reads comes before what it binds.
        order = sorted(names(function), key=lambda n: (n.lineno, isinstance(n.ctx, ast.Store)))
        both = top & stored(order) - {a.arg for a in ast.walk(function) if isinstance(a, ast.arg)}
        first = {n.id: n for n in reversed(order)}
        late |= {name for name in both if isinstance(first[name].ctx, ast.Load)}
    return late


def assert_sound(text: str) -> None:
    compile(text, "repro.py", "exec")
    tree = ast.parse(text)
    bound, read = names_of(tree)
    assert read <= bound, read - bound
    assert not bound_too_late(tree)
    for node in ast.walk(tree):
        modules = (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
        for module in modules:
            top = module.partition(".")[0]
            assert top == "torch" or top in sys.stdlib_module_names
    assert ast.get_docstring(tree)


@pytest.mark.parametrize(("api", "kind"), KINDS)
def test_a_single_unit_finding_is_sound_and_short(api: str, kind: str) -> None:
    case, found = every_kind(api)[kind]
    text = render(case, found, CONTEXT)
    assert_sound(text)
    assert len(text.splitlines()) <= MAX_LINES, text
    assert max(map(len, text.splitlines())) <= 100
    assert "fails only with use_orig_params=True" in " ".join(text.split())
    assert found.invariant in text


@pytest.mark.parametrize("api", ["fsdp1", "fsdp2"])
def test_a_gradient_that_is_missing_counts_as_zeros(api: str) -> None:
    case, found = every_kind(api)["missing"]
    assert "zeros_like" in render(case, found, CONTEXT)
    there = msgspec.structs.replace(found, detail="zero")
    assert "zeros_like" not in render(case, there, CONTEXT)


def test_the_script_of_every_seed_is_sound_and_clean(tmp_path: Path) -> None:
    for i, seed in enumerate(SEEDS):
        prints = i % 2 == 0
        text = render(seed.case, None, CONTEXT, print_losses=prints)
        assert_sound(text)
        (tmp_path / f"{i}.py").write_text(text)
    assert_clean(tmp_path)


def test_the_scripts_of_findings_are_clean(tmp_path: Path) -> None:
    for api, kind in KINDS:
        case, found = every_kind(api)[kind]
        (tmp_path / f"{api}_{kind}.py").write_text(render(case, found, CONTEXT))
    assert_clean(tmp_path)


@pytest.mark.parametrize("name", FAULTS)
def test_the_script_of_every_fault_is_sound(name: str) -> None:
    fault = FAULTS[name]
    for found in judge(fault.case, fault.fault).findings:
        assert_sound(render(fault.case, found, CONTEXT))


@pytest.mark.parametrize("into", ["fsdp1", "fsdp2"])
def test_another_mesh_beside_that_of_the_units_has_another_name(
    into: Literal["fsdp1", "fsdp2"],
) -> None:
    units = (Fsdp2Unit(path=""), Fsdp2Unit(path="0"))
    case = single_unit("fsdp2", program=(Transfer(into=into),), plan=Fsdp2Plan(units=units))
    found = finding("transferred", op=0, operation="transfer", quantity="result")
    named = msgspec.structs.replace(found, name="transferred[0.weight]")
    text = render(case, named, CONTEXT)
    assert text.count("init_device_mesh(") == 2
    assert_sound(text)


def assert_clean(folder: Path) -> None:
    """No name is unused or undefined, no f-string is empty: what ruff calls F."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select=F"]
    seen = subprocess.run([*command, str(folder)], capture_output=True, text=True, check=False)
    assert seen.returncode == 0, seen.stdout


@settings(
    max_examples=60,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(case=DRAWN, losses=st.booleans())
def test_whatever_is_drawn_can_be_written(case: CaseSpec, losses: bool) -> None:
    assert_sound(render(case, None, CONTEXT, print_losses=losses))


HOSTILE = 'x=1\\", """; import os #\n\x1b[2J\u202e "" \\N{BULLET} ```\n# heading'


FAILED = Failure(type="RuntimeError", text=HOSTILE, place=HOSTILE, stage=HOSTILE)


@pytest.mark.parametrize(
    "odd",
    [
        finding("grad_parity", observed=HOSTILE, expected=HOSTILE, note=HOSTILE, op=1),
        counted("no_crash", HOSTILE, "crash", failure=FAILED, op=1),
        counted("no_hang", HOSTILE, "hang", operation=HOSTILE, op=1),
        counted("no_rank_death", HOSTILE, "rank_death", failure=FAILED, op=1),
    ],
    ids=lambda odd: odd.symptom,
)
def test_nothing_breaks_out_of_the_docstring(odd: Finding) -> None:
    context = Context(torch=HOSTILE, backend=HOSTILE, environment=(HOSTILE,), rate=HOSTILE)
    text = render(single_unit("fsdp2"), odd, context)
    assert_sound(text)
    assert "\x1b" not in text
    body = ast.parse(text).body
    plain = ast.parse(render(single_unit("fsdp2"), finding("grad_parity", op=1), context)).body
    assert isinstance(body[0], ast.Expr)
    assert isinstance(body[0].value, ast.Constant)
    # Nothing that was said became a statement.
    assert {ast.unparse(s) for s in body if "heading" in ast.unparse(s)} <= {
        ast.unparse(s) for s in body if isinstance(s, ast.Expr | ast.Try)
    }
    assert [type(s) for s in body[:4]] == [type(s) for s in plain[:4]]


def test_the_header_says_what_a_report_needs() -> None:
    case, found = every_kind("fsdp1")["grad"]
    text = " ".join(render(case, found, CONTEXT).split())
    for part in (
        "torchrun --nproc-per-node 2 repro.py",
        "PyTorch version: 2.13.0, CUDA used to build PyTorch: 13.0, Python version: 3.11.9, "
        "OS: Debian GNU/Linux 12 (bookworm) (x86_64)",
        "gloo",
        "2 ranks",
        "repro.py # or with plain python",
        "1.5 [0.weight, rank 0, backward program[1]]",
        "0.5 within 1e-05 (assert_close by default: 1.1e-05), in float64 without FSDP",
        "equal seeds on all ranks",
    ):
        assert part in text, part


def test_a_flaky_finding_says_how_often() -> None:
    case, found = every_kind("fsdp2")["grad"]
    assert "failed 3 of 10 runs" in render(case, found, Context(rate="3 of 10"))


def test_what_is_to_be_copied_is_one_line() -> None:
    case, found = every_kind("fsdp2")["grad"]
    name = f"grad_parity-{'x' * 120}.py"
    text = render(case, found, Context(script=name))
    (line,) = (line for line in text.splitlines() if line.startswith("Run:"))
    assert shlex.split(line.removeprefix("Run:"), comments=True) == [
        *("torchrun", "--nproc-per-node", "2", name)
    ]
    (odd,) = (
        line
        for line in render(case, found, Context(script="a b.py")).splitlines()
        if line.startswith("Run:")
    )
    assert shlex.split(odd.removeprefix("Run:"), comments=True)[-1] == "a b.py"


def test_options_at_their_defaults_are_no_part_of_a_module() -> None:
    case, found = every_kind("fsdp2")["buffer"]
    text = render(case, found, CONTEXT)
    assert "class Buffered" in text
    assert "updates" not in text
    updating = single_unit("fsdp2", model=UPDATING)
    assert "self.calls += 1" in render(updating, found, CONTEXT)


def test_constants_are_those_of_the_steps() -> None:
    case, found = every_kind("fsdp1")["grad"]
    for number in (3, 4_242):
        with mock.patch.dict(
            source_of("fsdpfuzz.steps.loss").constants, PROJECTION=ast.Constant(number)
        ):
            assert f"manual_seed({number})" in render(case, found, CONTEXT)


def test_a_model_that_is_loaded_into_is_wrapped_by_its_own_modules() -> None:
    plan = Fsdp1Plan(units=(Fsdp1Unit(path=""), Fsdp1Unit(path="0")), wrap="custom_policy")
    case = single_unit("fsdp1", plan=plan, program=(StateDict(),))
    text = render(case, None, CONTEXT)
    assert "loaded = blank(build(dtype))" in text
    assert "chosen({loaded[0]: True})" in text
    # Where nothing else names it the model goes straight into the call.
    assert "FSDP(blank(build(dtype))" in render(
        single_unit("fsdp1", program=(StateDict(),)), None, CONTEXT
    )


def test_a_scaler_is_chosen_by_the_dtype_that_the_plain_model_has() -> None:
    low = Fsdp1Unit(path="", precision=Precision(param="float16"))
    case = msgspec.structs.replace(
        single_unit("fsdp1"),
        plan=Fsdp1Plan(units=(low,)),
        program=(Forward(), Backward(), Step(), UpdateScale()),
        grad_scaler=GradScaler(),
    )
    check(case)
    text = render(case, None, CONTEXT)
    assert_sound(text)
    assert "if dtype == torch.float16:" in text
