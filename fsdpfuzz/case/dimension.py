"""What a dimension of a case has to say of itself.

A dimension is one thing that a case can vary in. It has a file of its name here, with its data,
what must not contradict, its features, its plainer neighbours and what FSDP documents to refuse;
one in ``strategies/``, which draws it; and one in ``steps/`` where it does something that torch
has no single call for. Naming it in ``dimensions.py`` is all else that it takes.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.recipe import Do, Value
    from fsdpfuzz.case.spec import CaseSpec

Group = Literal["Wrapping", "Sharding", "Parameters", "Model", "Training", "State"]
Api = Literal["fsdp1", "fsdp2"]
APIS: tuple[Api, ...] = ("fsdp1", "fsdp2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """An option in short texts: which value a case, a unit or a parameter has of it.

    Known defects are recognised by these names, the report counts their pairs, and ablation
    says which of them a finding needs. Names and values therefore stay as they are.
    """

    about: str
    group: Group
    values: tuple[str, ...] = ()
    """The values that can be listed beforehand, the plainest first."""
    open: bool = False
    """Whether there are more values than those listed: numbers, words joined by +."""
    apis: tuple[Api, ...] = APIS
    excludes: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    """For some of the values: features of a case with values that no case has beside it, by
    what they mean. Naming a pair once, at either end, will do."""


ON = ("off", "on")


@dataclass(frozen=True, slots=True)
class Rejection:
    """One documented refusal. ``pattern`` is searched for in the message of the exception."""

    name: str
    why: str
    pattern: str
    source: str
    """Where PyTorch documents it: a docstring, or the check that raises."""
    asked: Callable[[Anatomy], bool] = field(compare=False)
    """Whether a case asks for what is refused."""
    raised: str = ""
    """The type of the exception where that is mostly about FSDP's own state: AssertionError,
    RuntimeError. Empty for one of the types by which FSDP refuses."""

    def matches(self, message: str) -> bool:
        """Whether ``message`` is the documented one."""
        return re.search(self.pattern, message, re.DOTALL) is not None


@dataclass(frozen=True, slots=True)
class Simpler:
    """A plainer neighbour of a case.

    ``words`` say what the case has and the neighbour lacks; empty for a change of size or
    structure that is no option.
    """

    case: CaseSpec
    words: str = ""


class Dimension(ABC):
    """One thing that a case can vary in."""

    name: ClassVar[str]
    features: ClassVar[Mapping[str, Feature]] = {}
    unit_features: ClassVar[Mapping[str, Feature]] = {}
    parameter_features: ClassVar[Mapping[str, Feature]] = {}
    rejections: ClassVar[tuple[Rejection, ...]] = ()
    newer: ClassVar[tuple[str, ...]] = ()
    """What it needs of ``torch.distributed.fsdp`` that not every supported torch offers, as
    ``FSDPModule.reshard()`` or ``MixedPrecisionPolicy(output_dtype)``."""
    of_model: ClassVar[bool] = False
    """Whether it is settled where the model is somebody's own."""
    drawn: ClassVar[bool] = True
    """Whether it has a file in ``strategies/``; False for what follows from the others."""

    @abstractmethod
    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """The case's value of each of `features`; those of the other API are left out."""

    @abstractmethod
    def check(self, a: Anatomy) -> None:
        """Raises :class:`CaseError`, with the JSON path, for what contradicts itself."""

    def cases(self, case: CaseSpec) -> Iterator[tuple[str, CaseSpec]]:
        """Other cases that have to be sound as well, by the JSON path that stands for ``$``."""
        return iter(())

    @abstractmethod
    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """Plainer neighbours, the largest step first; sound ones and others."""

    def asked(self, a: Anatomy) -> bool:
        """Whether the case goes through any of `newer`."""
        return False

    def told(self, a: Anatomy, root: Value) -> Iterator[Do]:
        """What the outermost unit ``root``, and with it those inside, is told once all are made."""
        return iter(())

    def needs_gpu(self, a: Anatomy) -> str:
        """What of the case cannot run on CPUs alone, in words; empty if all can."""
        return ""

    def needs_gloo(self, a: Anatomy) -> str:
        """What of the case cannot run on NCCL and GPUs, as a collective on the CPU, in words; empty
        if all can."""
        return ""

    def on_ranks(self, case: CaseSpec, size: int) -> CaseSpec:
        """The case with what the dimension has to change for ``size`` ranks."""
        return case

    def facts(self, case: CaseSpec) -> Iterator[tuple[str, str]]:
        """Label and words of what `explain` says below the model; nothing for what is usual."""
        return iter(())

    def unit_values(self, a: Anatomy, path: str) -> Iterator[tuple[str, str]]:
        """The value of each of `unit_features` that the unit at ``path`` has."""
        return iter(())

    def parameter_values(self, a: Anatomy, fqn: str) -> Iterator[tuple[str, str]]:
        """The value of each of `parameter_features` that the parameter has."""
        return iter(())


def one(values: Iterable[str], *, none: str = "no", several: str = "mixed") -> str:
    """The value that all have alike; ``several`` where they differ, ``none`` where none is."""
    different = sorted(set(values))
    if not different:
        return none
    return different[0] if len(different) == 1 else several
