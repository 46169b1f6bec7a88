"""What a seed is, and how a property runs its seeds before anything is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from fsdpfuzz.case import CaseSpec

T = TypeVar("T", bound=Callable[..., object])


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """One parametrisation of a source document, restated as a case."""

    document: str
    """Number of the document: ``000`` to ``004``."""
    test: str
    params: str
    """The parametrisation, as a reader would look for it in the document; may be empty."""
    case: CaseSpec
    needs: tuple[str, ...] = ()
    """What the case cannot run without, in words; empty where gloo on a CPU will do."""
    small: CaseSpec | None = None
    """The same structure at a size for machines that lack ``needs``."""

    @property
    def name(self) -> str:
        """``document: test[params]``."""
        return f"{self.document}: {self.test}[{self.params}]"

    def on(self, backend: str) -> CaseSpec | None:
        """The case to run under ``backend``; None where this machine cannot run the seed."""
        if backend == "nccl" or not self.needs:
            return self.case
        return self.small


def fitting(case: CaseSpec, seeds: Iterable[Seed], backend: str) -> CaseSpec:
    """``case``, or the form of it that runs under ``backend`` if it is a seed's."""
    for seed in seeds:
        if seed.case == case:
            return seed.on(backend) or case
    return case


def lacking(case: CaseSpec, seeds: Iterable[Seed], backend: str) -> str:
    """What a seed's case needs and a machine under ``backend`` lacks; empty for any other case."""
    for seed in seeds:
        if seed.case == case:
            return ", ".join(seed.needs) if seed.on(backend) is None else ""
    return ""


def with_seeds(seeds: Iterable[Seed]) -> Callable[[T], T]:
    """Stacks the seeds on a ``@given`` test as explicit examples, the first one outermost."""

    def decorate(test: T) -> T:
        from hypothesis import example

        for seed in reversed(tuple(seeds)):
            test = example(case=seed.case).via(seed.name)(test)
        return test

    return decorate
