"""The cases that are kept with the project, read without what manages them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from fsdpfuzz.case import CaseSpec, decode

CORPUS = Path(__file__).parents[3] / "corpus"


@cache
def documents() -> dict[str, dict[str, Any]]:
    """The case of each seed and each known defect, as it stands in its file."""
    files = (*sorted(_seeds()), *sorted((CORPUS / "known").glob("*.json")))
    return {file.stem: json.loads(file.read_text())["case"] for file in files}


@cache
def saved(name: str) -> CaseSpec:
    """The case of that seed, or known defect."""
    return decode(json.dumps(documents()[name]).encode())


@cache
def seeds() -> tuple[str, ...]:
    """The names of the seeds."""
    return tuple(file.stem for file in sorted(_seeds()))


@cache
def known() -> tuple[str, ...]:
    """The names of the known defects."""
    return tuple(name for name in documents() if name not in seeds())


def _seeds() -> list[Path]:
    return list((CORPUS / "seeds").glob("*.json"))
