"""The optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from fsdpfuzz.case.base import Part, on
from fsdpfuzz.case.dimension import ON, Dimension, Feature, Simpler
from fsdpfuzz.case.recipe import Call, Value, call
from fsdpfuzz.case.stepped import lacks_gradients
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec

MAX_RATE = 10.0
Rate = Annotated[float, Meta(ge=0.0, le=MAX_RATE)]

_CLASSES = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}
_SAID = {**_CLASSES, "own": "optimizer(parameters)"}


class Optimizer(Part, frozen=True, kw_only=True):
    """The optimizer of all parameters that the case does not hold out.

    SGD with momentum is the default because Adam hides a wrong gradient scale.
    """

    name: Literal["sgd", "adam", "adamw", "own"] = "sgd"
    """``own`` is ``optimizer(parameters)`` of the target of an imported model."""
    lr: Rate = 0.05
    momentum: Annotated[float, Meta(ge=0.0, le=0.99)] = 0.9
    """For SGD only; of one of your own, 0 says that it keeps no state."""
    eps: Annotated[float, Meta(gt=0.0, le=1.0)] = 1e-4
    """For Adam and AdamW; large, so that rounding in a gradient near zero is not blown up."""
    foreach: bool | None = None
    weight_decay: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    """Only where every step finds a gradient of all that is trained (`lacks_gradients`)."""

    @property
    def keeps_state(self) -> bool:
        """Whether it has state for a parameter once that was stepped."""
        return self.adapts or self.momentum > 0

    @property
    def may_take_lists(self) -> bool:
        """Whether it steps a list of parameters at once: by itself torch does on a GPU.

        What one of your own does is its own matter.
        """
        return self.name != "own" and self.foreach is not False

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
        # That of AdamW is 0.01 where nothing is said.
        if self.weight_decay or self.name == "adamw":
            options["weight_decay"] = self.weight_decay
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
        if self.weight_decay:
            words.append(f"weight decay {self.weight_decay:g}")
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
            excludes={
                "none": {
                    "steps": ("1", "2", "3"),
                    "foreach": ("default", "on", "off"),
                    "weight_decay": ("off", "on"),
                    "learning_rate": ("lowered", "raised", "both"),
                }
            },
        ),
        "weight_decay": Feature(
            about="off, on: the optimizer's weight decay", group="Training", values=("off", "on")
        ),
        "foreach": Feature(
            about="default, on, off: the optimizer's foreach",
            group="Training",
            values=("default", "on", "off"),
        ),
    }

    parameter_features: ClassVar[Mapping[str, Feature]] = {
        "state_tensors": Feature(
            about="none, one, several: tensors of its shape that the optimizer keeps",
            group="Training",
            values=("none", "one", "several"),
        ),
        "counted_steps": Feature(
            about="on when the optimizer counts its steps", group="Training", values=ON
        ),
        "decaying_state": Feature(
            about="on when decaying weights go into what the optimizer keeps, and not past it",
            group="Training",
            values=ON,
        ),
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Its name, which implementation, and whether weights decay."""
        optimizer = a.case.optimizer
        yield "optimizer", optimizer.name if optimizer else "none"
        if optimizer is not None:
            yield "weight_decay", "on" if optimizer.weight_decay else "off"
            names = {None: "default", True: "on", False: "off"}
            yield "foreach", names[optimizer.foreach]

    def parameter_values(self, a: Anatomy, fqn: str) -> Iterator[tuple[str, str]]:
        """What is kept of it, by an optimizer of torch's or of the target of an imported model."""
        told, own = a.case.optimizer, a.imported
        kept = told is not None and told.keeps_state and a.canonical(fqn) not in a.case.held_out
        if told is None or not kept:
            several = counts = decays = False
        elif told.name == "own" and own is not None:
            several, counts, decays = own.several_states, own.counts_steps, own.decays_state
        else:
            several = counts = told.adapts
            # AdamW moves the parameters themselves.
            decays = told.weight_decay > 0 and told.name != "adamw"
        yield "state_tensors", "several" if several else "one" if kept else "none"
        yield "counted_steps", on(counts)
        yield "decaying_state", on(decays)

    def facts(self, case: CaseSpec) -> Iterator[tuple[str, str]]:
        """Its name and settings."""
        yield "optimizer", "none" if case.optimizer is None else case.optimizer.words()

    def check(self, a: Anatomy) -> None:
        """That torch takes its parameters together, and that a target has the one it is to bring.

        A program that steps without an optimizer is refused by `Step.check`.
        """
        optimizer, own = a.case.optimizer, a.imported
        lists = optimizer is not None and optimizer.may_take_lists
        # ``_foreach_*`` of both raises "got mixed torch.Tensor and DTensor" (tensor/_dispatch.py).
        if lists and goes_through(a) and mixes_tensors(a):
            words = "torch takes no list of tensors and DTensors: foreach=False"
            raise CaseError(words, path="$.optimizer.foreach")
        if optimizer is None:
            return
        if optimizer.weight_decay and (lacking := lacks_gradients(a)):
            words = (
                f"{optimizer.weight_decay:g} moves {lacking[0]}, of which a step may find no "
                "gradient: use 0, or give each step a gradient of all that is trained"
            )
            raise CaseError(words, path="$.optimizer.weight_decay")
        if optimizer.name != "own":
            return
        if optimizer.weight_decay:
            words = "leave it out: 'own' brings its own weight decay"
            raise CaseError(words, path="$.optimizer.weight_decay")
        if own is None or not own.has("optimizer"):
            words = "'own' goes with an imported model whose target has optimizer(parameters)"
            raise CaseError(words, path="$.optimizer.name")
        if own.skips_frozen and not skips_the_same(a):
            words = "'own' takes what is trained when it is made: nothing, or not always the same"
            raise CaseError(words, path="$.optimizer.name")

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """SGD; PyTorch's choice of implementation; momentum; no weight decay."""
        optimizer = case.optimizer
        if optimizer is None:
            return
        replace = msgspec.structs.replace
        if not any(op.steps_optimizer for op in case.program):
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
        if optimizer.weight_decay:
            plain = replace(optimizer, weight_decay=0.0)
            yield Simpler(replace(case, optimizer=plain), "weight_decay")


# What is saved of one optimizer another one takes that has the same parameters.
def skips_the_same(a: Anatomy) -> bool:
    """Whether an optimizer of what is trained as it is made has parameters, and always the same."""
    program = a.case.program
    saves = any(op.saves_optimizer or op.names_state() for op in program)
    trains = any(p.fqn not in a.frozen for p in a.distinct)
    return trains and not (saves and any(op.changes_trained for op in program))


# torch.optim.Optimizer raises "optimizer got an empty parameter list".
def holds_parameters(a: Anatomy) -> bool:
    """Whether an optimizer has any parameter: none of torch's can be made without."""
    out = set(a.case.held_out)
    return a.case.optimizer is not None and any(p.fqn not in out for p in a.distinct)


def goes_through(a: Anatomy) -> bool:
    """Whether anything in the program goes through the optimizer."""
    used = any(
        op.steps_optimizer or op.clears_gradients or op.asks_optimizer for op in a.case.program
    )
    return used and holds_parameters(a)


def makes_steps(a: Anatomy) -> bool:
    """Whether there is an optimizer, and the program steps it."""
    return holds_parameters(a) and any(op.steps_optimizer for op in a.case.program)


def mixes_tensors(a: Anatomy) -> bool:
    """Whether some parameters are DTensors and others, which no unit manages, are none."""
    return not a.fsdp1 and any(None in b.managed and len(b.managed) > 1 for b in a.under_each_plan)
