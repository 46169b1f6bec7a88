"""The wheel, built from the source distribution, holds what the checkout does and works alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name
from packaging.version import Version

from tests.meta.imports import REPOSITORY, sources

BUILD = """
import sys
from setuptools import build_meta
print(getattr(build_meta, "build_" + sys.argv[1])(sys.argv[2]))
"""
NOT_SOURCE = shutil.ignore_patterns(
    ".git", ".venv", ".*cache", ".hypothesis", ".fsdpfuzz", "__pycache__", "build", "dist",
    "*.egg-info", "tests",
)  # fmt: skip
TRY = """
import importlib, sys
from pathlib import Path
import fsdpfuzz, fsdpfuzz.strategies
from fsdpfuzz.known import Known
from fsdpfuzz.loop import default_known
here = Path(fsdpfuzz.__file__).parent
assert here == Path(sys.argv[1], "fsdpfuzz"), here
for name in sys.argv[2:]:
    file = importlib.import_module(name).__file__
    assert Path(file).is_relative_to(here), file
assert default_known() == here / "saved" / "known"
assert Known.load(default_known()).defects
assert "torch" not in sys.modules
assert fsdpfuzz.strategies.cases()
from fsdpfuzz.repro import Context, render
from fsdpfuzz.seeds import SEEDS
assert "import torch" in render(SEEDS[0].case, None, Context()), "the steps' sources are there"
assert "torch" not in sys.modules
print("works")
"""


@dataclass(frozen=True)
class Built:
    sdist: Path
    wheel: Path


def build(kind: str, source: Path, target: Path) -> Path:
    target.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", BUILD, kind, str(target)],
        cwd=source,
        text=True,
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return target / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("a place to build")
    shutil.copytree(REPOSITORY, folder / "source", symlinks=True, ignore=NOT_SOURCE)
    sdist = build("sdist", folder / "source", folder / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    return Built(sdist, build("wheel", unpacked, folder / "wheel"))


def files(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def wanted() -> set[str]:
    """What a checkout makes importable as fsdpfuzz, its links followed by hand."""
    package = REPOSITORY / "fsdpfuzz"
    links = {path.name for path in package.iterdir() if path.is_symlink()}
    assert links == {"saved", "strategies"}
    found = {f"fsdpfuzz/{name}" for name in files(package) if Path(name).parts[0] not in links}
    found |= {f"fsdpfuzz/strategies/{name}" for name in files(REPOSITORY / "strategies")}
    for folder in ("seeds", "known"):
        names = [n for n in files(REPOSITORY / "corpus" / folder) if n.endswith(".json")]
        assert names
        found |= {f"fsdpfuzz/saved/{folder}/{name}" for name in names}
    return found


def test_the_wheel_holds_the_package_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        content = set(archive.namelist())
    about = {name for name in content if re.match(r"fsdpfuzz-[^/]+\.dist-info/", name)}
    assert content - about == wanted()
    assert {name.partition("/")[2] for name in about} == {
        "METADATA",
        "RECORD",
        "WHEEL",
        "entry_points.txt",
        "licenses/LICENSE",
        "top_level.txt",
    }


def test_the_source_distribution_holds_each_file_once(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    sources = [name for name in names if name.endswith(".py")]
    assert len(sources) == len(set(sources))
    assert "strategies/__init__.py" in names
    assert any(re.fullmatch(r"corpus/known/[^/]+\.json", name) for name in names)
    assert not [name for name in names if name.startswith(("fsdpfuzz/strategies/", "tests/"))]


def test_the_installed_wheel_works_in_an_empty_folder(built: Built, tmp_path: Path) -> None:
    site, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    installer = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run(
        [*installer, "--disable-pip-version-check", "--target", str(site), str(built.wheel)],
        cwd=empty,
        check=True,
        timeout=120,
    )
    parts = {path.split("/")[1] for path in wanted() if path.endswith("/__init__.py")}
    modules = [f"fsdpfuzz.{part}" for part in sorted(parts - {"__init__.py"})]
    done = subprocess.run(
        [sys.executable, "-c", TRY, str(site), *modules],
        cwd=empty,
        env={**os.environ, "PYTHONPATH": str(site)},
        text=True,
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.stdout.split() == ["works"], done.stderr


def project() -> dict[str, object]:
    with (REPOSITORY / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)


def test_the_packages_are_listed_once_and_in_order() -> None:
    tool = project()["tool"]
    assert isinstance(tool, dict)
    packages = tool["setuptools"]["packages"]
    assert packages == sorted(set(packages))
    found = {name for name, path in sources().items() if path.name == "__init__.py"}
    assert set(packages) == found | {"fsdpfuzz.saved"}


def pins() -> Mapping[NormalizedName, str]:
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    found = {canonicalize_name(name): version for name, version in pairs}
    assert len(found) == len(pairs), "pinned twice"
    return found


def requirements() -> list[Requirement]:
    table = project()["project"]
    system = project()["build-system"]
    assert isinstance(table, dict)
    assert isinstance(system, dict)
    extras = table["optional-dependencies"].values()
    given = [
        *table["dependencies"],
        *system["requires"],
        *(line for extra in extras for line in extra),
    ]
    return [Requirement(line) for line in given]


def test_every_requirement_is_pinned_to_a_version_that_it_allows() -> None:
    found = pins()
    assert found[canonicalize_name("torch")] == "2.13.0"
    for requirement in requirements():
        assert requirement.specifier.contains(found[canonicalize_name(requirement.name)]), (
            requirement
        )


def test_what_the_requirements_require_is_pinned_as_well() -> None:
    found, seen = pins(), set[NormalizedName]()
    todo = [canonicalize_name(requirement.name) for requirement in requirements()]
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        assert name in found, f"{name} would drift: add it to constraints.txt"
        # These tests run on other torches as well, and what those require is not installed by us.
        if name == "torch" and Version(metadata.version(name)).base_version != found[name]:
            continue
        try:
            lines = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        todo += [
            canonicalize_name(requirement.name)
            for requirement in map(Requirement, lines)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        ]
    assert len(seen) > 20
