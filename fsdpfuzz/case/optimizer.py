"""The optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from fsdpfuzz.case.base import Part
from fsdpfuzz.case.dimension import Dimension, Feature, Simpler
from fsdpfuzz.case.recipe import Call, Value, call
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec

Rate = Annotated[float, Meta(ge=0.0, le=10.0)]

_CLASSES = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}
_SAID = {**_CLASSES, "own": "optimizer(parameters)"}


class Optimizer(Part, frozen=True, kw_only=True):
    """The optimizer of all parameters that the case does not hold out.

    SGD with momentum is the default because Adam hides a wrong gradient scale. There is no
    weight decay: it would tell a parameter without a gradient from one whose gradient is zero,
    and FSDP may give either for an unused parameter.
    """

    name: Literal["sgd", "adam", "adamw", "own"] = "sgd"
    """``own`` is ``optimizer(parameters)`` of the target of an imported model."""
    lr: Rate = 0.05
    momentum: Annotated[float, Meta(ge=0.0, le=0.99)] = 0.9
    """For SGD only; of one of your own, 0 says that it keeps no state."""
    eps: Annotated[float, Meta(gt=0.0, le=1.0)] = 1e-4
    """For Adam and AdamW; large, so that rounding in a gradient near zero is not blown up."""
    foreach: bool | None = None

    @property
    def keeps_state(self) -> bool:
        """Whether it has state for a parameter once that was stepped."""
        return self.adapts or self.momentum > 0

    @property
    def adapts(self) -> bool:
        """Whether it divides a gradient by its own size, with an ``eps`` that is known."""
        return self.name in ("adam", "adamw")

    def made(self, parameters: Value) -> Call:
        """The optimizer of torch's over ``parameters``."""
        options: dict[str, Value] = {"lr": self.lr}
        if self.name == "sgd":
            options |= {"momentum": self.momentum} if self.momentum else {}
        else:
            options["eps"] = self.eps
            options |= {"weight_decay": 0.0} if self.name == "adamw" else {}
        if self.foreach is not None:
            options["foreach"] = self.foreach
        return call(f"torch.optim.{_CLASSES[self.name]}", parameters, **options)

    def words(self) -> str:
        """Name and settings."""
        if self.name == "own":
            return "optimizer(parameters) of the target"
        words = [self.name, f"lr {self.lr:g}"]
        if self.name == "sgd":
            words += [f"momentum {self.momentum:g}"] if self.momentum else []
        else:
            words.append(f"eps {self.eps:g}")
        if self.foreach is not None:
            words.append("foreach" if self.foreach else "no foreach")
        return ", ".join(words)


class OptimizerDimension(Dimension):
    """SGD, Adam or AdamW, or none."""

    name = "optimizer"
    features: ClassVar[Mapping[str, Feature]] = {
        "optimizer": Feature(
            about="sgd, adam, adamw, none",
            group="Training",
            values=("sgd", "adam", "adamw", "none"),
            excludes={"none": {"steps": ("1", "2", "3"), "foreach": ("default", "on", "off")}},
        ),
        "foreach": Feature(
            about="default, on, off: the optimizer's foreach",
            group="Training",
            values=("default", "on", "off"),
        ),
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Its name, and which implementation."""
        optimizer = a.case.optimizer
        yield "optimizer", optimizer.name if optimizer else "none"
        if optimizer is not None:
            names = {None: "default", True: "on", False: "off"}
            yield "foreach", names[optimizer.foreach]

    def facts(self, case: CaseSpec) -> Iterator[tuple[str, str]]:
        """Its name and settings."""
        yield "optimizer", "none" if case.optimizer is None else case.optimizer.words()

    def check(self, a: Anatomy) -> None:
        """Whether there is one for each step, the steps say; one of its own the target has."""
        optimizer, own = a.case.optimizer, a.imported
        if optimizer is None or optimizer.name != "own":
            return
        if own is None or not own.has("optimizer"):
            words = "'own' goes with an imported model whose target has optimizer(parameters)"
            raise CaseError(words, path="$.optimizer.name")

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """SGD; PyTorch's choice of implementation; no momentum."""
        optimizer = case.optimizer
        if optimizer is None:
            return
        replace = msgspec.structs.replace
        if not any(op.kind() == "step" for op in case.program):
            yield Simpler(replace(case, optimizer=Optimizer()))
        if optimizer.name != "sgd":
            plain = replace(optimizer, name="sgd")
            if optimizer.name == "own":
                plain = Optimizer()
            yield Simpler(replace(case, optimizer=plain), _SAID[optimizer.name])
        if optimizer.foreach is not None:
            plain = replace(optimizer, foreach=None)
            yield Simpler(replace(case, optimizer=plain), f"foreach={optimizer.foreach}")
        if optimizer.momentum == 0.0 and optimizer.name == "sgd":
            yield Simpler(replace(case, optimizer=replace(optimizer, momentum=0.9)))


def holds_parameters(a: Anatomy) -> bool:
    """Whether an optimizer has any parameter: none of torch's can be made without."""
    out = set(a.case.held_out)
    return a.case.optimizer is not None and any(p.fqn not in out for p in a.distinct)


def has_state_after(a: Anatomy) -> int:
    """The operation after which the optimizer has state; past the last one if it never has any."""
    optimizer, trained = a.case.optimizer, False
    keeps = optimizer is not None and optimizer.keeps_state
    for i, op, now in a.situations(0):
        trained |= op.waits and any(p.used and now.trained[p.fqn] for p in a.parameters)
        if keeps and trained and op.kind() == "step":
            return i
    return len(a.case.program)


def makes_steps(a: Anatomy) -> bool:
    """Whether there is an optimizer, and the program steps it."""
    return holds_parameters(a) and any(op.kind() == "step" for op in a.case.program)
