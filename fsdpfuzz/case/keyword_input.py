"""Inputs that the program passes by keyword."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

import msgspec

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import ON, Dimension, Feature, Simpler
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec


def named(a: Anatomy, path: str) -> bool:
    """Whether the program passes the module its input by keyword."""
    return a.case.keyword_input and any(
        op.runs_model and op.called == path for op in a.case.program
    )


class KeywordInputDimension(Dimension):
    """By position, or by the name that the called module has for it."""

    name = "keyword_input"
    of_model: ClassVar[bool] = True
    features: ClassVar[Mapping[str, Feature]] = {
        "keyword_input": Feature(
            about="on when the program passes inputs by keyword, also to a unit that it calls by "
            "itself",
            group="Training",
            values=ON,
        )
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Whether it does."""
        yield "keyword_input", on(a.case.keyword_input)

    def facts(self, case: CaseSpec) -> Iterator[tuple[str, str]]:
        """That they are."""
        if case.keyword_input:
            yield "passed", "inputs by keyword"

    def check(self, a: Anatomy) -> None:
        """An imported model is called as its target says; some forward has to be there."""
        if not a.case.keyword_input:
            return
        at = "$.keyword_input"
        if a.imported is not None:
            raise CaseError("batch(step, rank) says what an imported model is given", path=at)
        if not any(op.runs_model for op in a.case.program):
            raise CaseError("leave it out where nothing is called", path=at)

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """By position."""
        if case.keyword_input:
            plain = msgspec.structs.replace(case, keyword_input=False)
            yield Simpler(plain, "inputs by keyword")
