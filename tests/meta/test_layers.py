"""Each room imports what the design lets it import, and torch stays in ranks and steps."""

from __future__ import annotations

from collections.abc import Callable
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.meta.imports import REPOSITORY, Import, imports, sources

COMMON = "errors observations verdict wire"
"""What is seen and said of a case: records without behaviour."""
LOW = f"{COMMON} case expect"

ROOMS = {
    "errors": "",
    "observations": "",
    "verdict": "",
    "wire": "errors observations",
    "case": "errors",
    "expect": "errors case",
    "strategies": "errors case",
    # The bound for rounding stands once, in plain Python, and scripts quote it.
    "steps": "case expect",
    "ranks": f"{LOW} steps",
    "forkserver": "errors wire",
    "pool": f"{COMMON} case forkserver",
    "invariants": LOW,
    "seeds": "errors case",
    "reduce": f"{LOW} invariants",
    "corpus": f"{LOW} invariants seeds",
    "known": f"{LOW} invariants reduce corpus",
    "repro": f"{LOW} invariants reduce",
    "own": f"{COMMON} case expect pool",
    "loop": f"{LOW} strategies invariants pool seeds reduce corpus known repro own",
    "show": f"{LOW} invariants pool seeds reduce corpus known repro loop",
    "_pytest_options": "errors case loop",
    "_pytest_check": "errors loop own",
    "": "_pytest_check",
    "properties": f"{LOW} seeds loop",
    "plugin": f"{COMMON} case seeds corpus known loop show _pytest_options _pytest_check",
    "cli": f"{LOW} invariants pool seeds reduce corpus known repro own loop show",
    "__main__": "cli",
}
"""What each room may import of the others."""

TORCH = ("fsdpfuzz.ranks", "fsdpfuzz.steps", "fsdpfuzz.repro.quoted")
"""Where torch may be imported: in ranks, and in what is only read and quoted elsewhere."""
HYPOTHESIS = (
    "fsdpfuzz.strategies",
    "fsdpfuzz.properties",
    "fsdpfuzz.loop._hypothesis",
)
PLAIN_FOR_STEPS = "fsdpfuzz.expect.rounding"

Rule = Callable[[list[Import]], list[str]]


def part_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def own(found: list[Import]) -> list[Import]:
    return [i for i in found if i.target.split(".")[0] == "fsdpfuzz"]


def against_the_rooms(found: list[Import]) -> list[str]:
    faults = []
    for i in own(found):
        importer, target = part_of(i.importer), part_of(i.target)
        if target in ("", importer):
            continue
        if importer not in ROOMS or target not in ROOMS:
            faults.append(f"{i.importer}:{i.line} or {i.target}: in no room")
        elif target not in ROOMS[importer].split():
            faults.append(f"{i.importer}:{i.line} imports {i.target}")
    return faults


def steps_are_plain(found: list[Import]) -> list[str]:
    """Whatever a step uses ends up in scripts, which import torch only."""
    return [
        f"{i.importer}:{i.line} imports {i.target}"
        for i in own(found)
        if part_of(i.importer) == "steps"
        and part_of(i.target) != "steps"
        and i.target != PLAIN_FOR_STEPS
    ]


def into_the_private(found: list[Import]) -> list[str]:
    return [
        f"{i.importer}:{i.line} imports {i.target}"
        for i in own(found)
        if part_of(i.importer) != part_of(i.target)
        and any(name.startswith("_") for name in i.target.split(".")[2:])
    ]


def circles(found: list[Import]) -> list[str]:
    """Imports in a function count as well: one there hides a circle, and breaks none."""
    return _circles([i for i in own(found) if not i.for_types])


def circles_of_types(found: list[Import]) -> list[str]:
    """Those of annotations as well, but in the language of cases.

    There they are in the matter: a case is made of its dimensions, each of which is asked about
    the whole case; a module holds modules of every kind.
    """
    return _circles([i for i in own(found) if {part_of(i.importer), part_of(i.target)} != {"case"}])


def _circles(found: list[Import]) -> list[str]:
    graph: dict[str, set[str]] = {}
    for i in found:
        if i.importer != i.target:
            graph.setdefault(i.importer, set()).add(i.target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [" imports ".join(reversed(error.args[1]))]
    return []


def torch_outside_the_ranks(found: list[Import]) -> list[str]:
    """Not even later than at the start: whoever imports torch waits for it, and may crash in it."""
    return _outside(found, "torch", TORCH)


def hypothesis_too_early(found: list[Import]) -> list[str]:
    return _outside([i for i in found if i.at_start], "hypothesis", HYPOTHESIS)


def _outside(found: list[Import], library: str, allowed: tuple[str, ...]) -> list[str]:
    return [
        f"{i.importer}:{i.line} imports {i.target}"
        for i in found
        if i.target.split(".")[0] == library
        and not any(i.importer == name or i.importer.startswith(f"{name}.") for name in allowed)
    ]


RULES: tuple[Rule, ...] = (
    against_the_rooms,
    steps_are_plain,
    into_the_private,
    circles,
    circles_of_types,
    torch_outside_the_ranks,
    hypothesis_too_early,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_sources_keep(rule: Rule) -> None:
    modules = sources()
    assert len(modules) > 50
    assert rule(list(imports(modules))) == []


def test_every_room_stands_in_the_table() -> None:
    assert {part_of(module) for module in sources()} == set(ROOMS)


def test_no_room_may_import_one_that_may_import_it() -> None:
    graph = {room: set(allowed.split()) for room, allowed in ROOMS.items()}
    assert set().union(*graph.values()) <= set(graph)
    assert len(list(TopologicalSorter(graph).static_order())) == len(ROOMS)


def injected(tmp_path: Path, files: dict[str, str]) -> list[Import]:
    for name, text in files.items():
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return list(imports(sources(tmp_path)))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("fsdpfuzz/case/x", "import fsdpfuzz.loop"),
        ("fsdpfuzz/case/x", "def f():\n    from fsdpfuzz import loop"),
        ("fsdpfuzz/case/x", "if TYPE_CHECKING:\n    from fsdpfuzz.loop import Session"),
        ("fsdpfuzz/ranks/_x", "from fsdpfuzz.strategies import cases"),
        ("fsdpfuzz/ranks/_x", "from ..invariants import judge"),
        ("strategies/x", "from fsdpfuzz.pool import Pool"),
        ("strategies/x", "from fsdpfuzz.known import Known"),
        ("fsdpfuzz/invariants/x", "try:\n    import fsdpfuzz.ranks\nexcept E:\n    pass"),
        ("fsdpfuzz/expect/x", "from fsdpfuzz.invariants import judge"),
        ("fsdpfuzz/corpus/_x", "from fsdpfuzz.repro import render"),
        ("fsdpfuzz/pool/_x", "from fsdpfuzz.ranks import serve"),
        ("fsdpfuzz/loop/_x", "import fsdpfuzz.cli"),
        ("fsdpfuzz/errors", "from fsdpfuzz import case"),
        ("fsdpfuzz/novel", "import fsdpfuzz.case"),
    ],
)
def test_an_import_against_the_rooms_is_seen(tmp_path: Path, name: str, text: str) -> None:
    files = {f"fsdpfuzz/{part}/__init__": "" for part in ("loop", "case", "cli")}
    found = injected(tmp_path, {**files, name: text})
    assert len(against_the_rooms(found)) == 1


def test_what_the_rooms_allow_is_let_through(tmp_path: Path) -> None:
    found = injected(
        tmp_path,
        {
            "fsdpfuzz/case/__init__": "from fsdpfuzz.case._x import y\nimport fsdpfuzz.errors",
            "fsdpfuzz/case/_x": "y = 1\nif TYPE_CHECKING:\n    import fsdpfuzz.case",
            "fsdpfuzz/ranks/_x": "import torch.nn\nfrom fsdpfuzz import __version__, case",
            "fsdpfuzz/steps/x": "import torch\nfrom fsdpfuzz.expect.rounding import rounding",
            "fsdpfuzz/expect/rounding": "",
            "strategies/__init__": "from ._x import y",
            "strategies/_x": "import hypothesis\nfrom fsdpfuzz.case import y",
        },
    )
    assert [rule(found) for rule in RULES] == [[]] * len(RULES)


@pytest.mark.parametrize(
    "text", ["from fsdpfuzz.case import CaseSpec", "from fsdpfuzz.expect import order"]
)
def test_a_step_that_a_script_cannot_quote_is_seen(tmp_path: Path, text: str) -> None:
    assert len(steps_are_plain(injected(tmp_path, {"fsdpfuzz/steps/x": text}))) == 1


def test_a_reach_into_another_part_is_seen(tmp_path: Path) -> None:
    found = injected(
        tmp_path,
        {
            "fsdpfuzz/loop/_x": "from fsdpfuzz.corpus._entry import decode",
            "fsdpfuzz/corpus/_entry": "",
            "fsdpfuzz/corpus/_y": "from fsdpfuzz.corpus import _entry",
        },
    )
    assert into_the_private(found) == ["fsdpfuzz.loop._x:1 imports fsdpfuzz.corpus._entry"]


@pytest.mark.parametrize("last", ["from . import a", "def f():\n    from . import a"])
def test_a_circle_is_seen(tmp_path: Path, last: str) -> None:
    found = injected(
        tmp_path,
        {
            "fsdpfuzz/case/a": "from fsdpfuzz.case.b import x",
            "fsdpfuzz/case/b": "import fsdpfuzz.case.c",
            "fsdpfuzz/case/c": last,
        },
    )
    assert len(circles(found)) == 1


@pytest.mark.parametrize(("room", "seen"), [("loop", 1), ("case", 0)])
def test_a_circle_of_annotations_is_seen_outside_of_cases(
    tmp_path: Path, room: str, seen: int
) -> None:
    found = injected(
        tmp_path,
        {
            f"fsdpfuzz/{room}/a": f"from fsdpfuzz.{room}.b import x",
            f"fsdpfuzz/{room}/b": f"if TYPE_CHECKING:\n    from fsdpfuzz.{room}.a import y",
        },
    )
    assert circles(found) == []
    assert len(circles_of_types(found)) == seen


@pytest.mark.parametrize(
    "text",
    [
        "import torch",
        "from torch.nn import Linear",
        "class A:\n    import torch.nn",
        "def f():\n    import torch",
    ],
)
@pytest.mark.parametrize("room", ["loop", "pool", "forkserver", "case", "repro"])
def test_torch_outside_the_ranks_is_seen(tmp_path: Path, text: str, room: str) -> None:
    found = injected(tmp_path, {f"fsdpfuzz/{room}/x": text})
    assert len(torch_outside_the_ranks(found)) == 1


def test_hypothesis_at_the_start_is_seen_outside_of_what_draws(tmp_path: Path) -> None:
    text = "def f():\n    from hypothesis import settings\n"
    early = injected(tmp_path, {"fsdpfuzz/loop/_x": f"import hypothesis\n{text}"})
    assert len(hypothesis_too_early(early)) == 1


def test_no_source_file_is_long() -> None:
    folders = ("fsdpfuzz", "strategies", "tests", "benchmarks")
    files = [path for folder in folders for path in (REPOSITORY / folder).rglob("*.py")]
    lengths = {str(path): len(path.read_text().splitlines()) for path in files}
    assert len(lengths) > 100
    assert {path: length for path, length in lengths.items() if length > 400} == {}
