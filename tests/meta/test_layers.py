"""Imports run one way through the layers, and torch stays in the ranks."""

from __future__ import annotations

from collections.abc import Callable
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.meta.imports import REPOSITORY, Import, imports, sources

LAYERS = (
    ("errors",),
    ("spec",),
    ("observations",),
    ("verdict", "wire"),
    ("strategies", "ranks", "invariants", "seeds", "forkserver"),
    ("pool",),
    ("corpus", "repro"),
    ("loop",),
    ("show",),
    ("_pytest_options",),
    ("plugin", "cli", "properties"),
    ("__main__",),
)
"""A part may import what stands in a line above its own; those in one line never each other."""

Rule = Callable[[list[Import]], list[str]]

HEIGHT = {part: height for height, line in enumerate(LAYERS) for part in line}


def part_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def own(found: list[Import]) -> list[Import]:
    return [i for i in found if i.target.split(".")[0] == "fsdpfuzz"]


def against_the_layers(found: list[Import]) -> list[str]:
    faults = []
    for i in own(found):
        importer, target = part_of(i.importer), part_of(i.target)
        if target in ("", importer):
            continue
        if importer not in HEIGHT or target not in HEIGHT:
            faults.append(f"{i.importer}:{i.line} or {i.target}: in no layer")
        elif HEIGHT[target] >= HEIGHT[importer]:
            faults.append(f"{i.importer}:{i.line} imports {i.target}")
    return faults


def into_the_private(found: list[Import]) -> list[str]:
    return [
        f"{i.importer}:{i.line} imports {i.target}"
        for i in own(found)
        if part_of(i.importer) != part_of(i.target)
        and any(name.startswith("_") for name in i.target.split(".")[2:])
    ]


def circles(found: list[Import]) -> list[str]:
    graph: dict[str, set[str]] = {}
    for i in own(found):
        if i.at_start and i.importer != i.target:
            graph.setdefault(i.importer, set()).add(i.target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [" imports ".join(reversed(error.args[1]))]
    return []


def torch_outside_the_ranks(found: list[Import]) -> list[str]:
    return [
        f"{i.importer}:{i.line} imports {i.target}"
        for i in found
        if i.target.split(".")[0] == "torch" and i.at_start and part_of(i.importer) != "ranks"
    ]


RULES: tuple[Rule, ...] = (against_the_layers, into_the_private, circles, torch_outside_the_ranks)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_sources_keep(rule: Rule) -> None:
    modules = sources()
    assert len(modules) > 50
    assert rule(list(imports(modules))) == []


def test_every_part_has_its_layer() -> None:
    assert {part_of(module) for module in sources()} - {""} <= set(HEIGHT)


def planted(tmp_path: Path, files: dict[str, str]) -> list[Import]:
    for name, text in files.items():
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return list(imports(sources(tmp_path)))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("fsdpfuzz/spec/_x", "import fsdpfuzz.loop"),
        ("fsdpfuzz/spec/_x", "def f():\n    from fsdpfuzz import loop"),
        ("fsdpfuzz/spec/_x", "if TYPE_CHECKING:\n    from fsdpfuzz.loop import Session"),
        ("fsdpfuzz/ranks/_x", "from fsdpfuzz.strategies import cases"),
        ("strategies/_x", "from fsdpfuzz.pool import Pool"),
        ("fsdpfuzz/invariants/_x", "try:\n    import fsdpfuzz.ranks\nexcept E:\n    pass"),
        ("fsdpfuzz/ranks/_x", "from ..invariants import judge"),
        ("fsdpfuzz/corpus/_x", "from fsdpfuzz.repro import render"),
        ("fsdpfuzz/loop/_x", "import fsdpfuzz.cli"),
        ("fsdpfuzz/errors", "from fsdpfuzz import spec"),
        ("fsdpfuzz/novel", "import fsdpfuzz.spec"),
    ],
)
def test_an_import_against_the_layers_is_seen(tmp_path: Path, name: str, text: str) -> None:
    files = {f"fsdpfuzz/{part}/__init__": "" for part in ("loop", "spec", "cli")}
    found = planted(tmp_path, {**files, name: text})
    assert len(against_the_layers(found)) == 1


def test_what_the_layers_allow_is_let_through(tmp_path: Path) -> None:
    found = planted(
        tmp_path,
        {
            "fsdpfuzz/spec/__init__": "from fsdpfuzz.spec._x import y\nimport fsdpfuzz.errors",
            "fsdpfuzz/spec/_x": "y = 1\ndef f():\n    import torch, fsdpfuzz.spec",
            "fsdpfuzz/ranks/_x": "import torch.nn\nfrom fsdpfuzz import __version__, spec",
            "strategies/__init__": "from ._x import y",
            "strategies/_x": "from fsdpfuzz.spec import y",
        },
    )
    assert [rule(found) for rule in RULES] == [[], [], [], []]


def test_a_reach_into_another_part_is_seen(tmp_path: Path) -> None:
    found = planted(
        tmp_path,
        {
            "fsdpfuzz/loop/_x": "from fsdpfuzz.spec._codec import decode",
            "fsdpfuzz/spec/_codec": "",
            "fsdpfuzz/spec/_y": "from fsdpfuzz.spec import _codec",
        },
    )
    assert into_the_private(found) == ["fsdpfuzz.loop._x:1 imports fsdpfuzz.spec._codec"]


def test_a_circle_is_seen(tmp_path: Path) -> None:
    found = planted(
        tmp_path,
        {
            "fsdpfuzz/spec/_a": "from fsdpfuzz.spec._b import x",
            "fsdpfuzz/spec/_b": "import fsdpfuzz.spec._c",
            "fsdpfuzz/spec/_c": "from . import _a",
        },
    )
    assert len(circles(found)) == 1


@pytest.mark.parametrize(
    "text", ["import torch", "from torch.nn import Linear", "class A:\n    import torch.nn"]
)
def test_torch_outside_the_ranks_is_seen(tmp_path: Path, text: str) -> None:
    assert len(torch_outside_the_ranks(planted(tmp_path, {"fsdpfuzz/loop/_x": text}))) == 1


def test_no_source_file_is_long() -> None:
    folders = ("fsdpfuzz", "strategies", "tests", "benchmarks")
    files = [path for folder in folders for path in (REPOSITORY / folder).rglob("*.py")]
    lengths = {str(path): len(path.read_text().splitlines()) for path in files}
    assert len(lengths) > 100
    assert {path: length for path, length in lengths.items() if length > 400} == {}
