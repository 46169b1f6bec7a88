"""What an operation of a training program has to say of itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from fsdpfuzz.case.base import Part
from fsdpfuzz.case.dimension import Feature, Rejection, Simpler
from fsdpfuzz.case.recipe import Call, Statement
from fsdpfuzz.errors import ContractError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.flow import Situation
    from fsdpfuzz.case.lowering import Lowering
    from fsdpfuzz.case.spec import CaseSpec
    from fsdpfuzz.case.wrap import Plan


@dataclass(slots=True)
class Progress:
    """What a check of the program has seen so far."""

    pending: list[bool] = field(default_factory=list)
    """For each forward that waits for its backward whether it synchronises."""
    reduced: bool = True
    """Whether the last backward reduced its gradients."""
    left: bool = False
    """Whether a forward without a backward has come since, which leaves some units whole."""
    cleared: bool = True
    """Whether no parameter has a gradient."""
    own: bool = False
    """Whether what no unit manages has gradients that nobody has averaged."""
    apart: bool = False
    """Whether ranks may have stepped it by such gradients."""
    form: tuple[str, bool, bool] | None = None
    """The form of state dicts that fsdp1 was told last, and its options."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A word where ``program()`` of a target lists it."""

    argument: str | None
    """What stands behind it."""
    plan: Plan
    """How the model is wrapped."""
    clips: bool
    """Whether the target has ``clip(model)``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """A word that ``program()`` of a target may list; see `fsdpfuzz.case.written`."""

    about: str
    """What it does, for the target's author."""
    means: Callable[[Listed], tuple[OperationBase, ...]]
    """The operations. :class:`UsageError` for an argument that it cannot have."""
    takes_argument: bool = False
    trains: bool = False
    """Whether a program of it alone shows anything of FSDP."""
    unreduced: bool | None = None
    """Whether it leaves gradients unreduced, or reduces them; None leaves them as they are."""
    after_reduction: bool = False
    """Whether what it does to gradients needs them reduced."""


class OperationBase(Part, frozen=True, kw_only=True, tag_field="op"):
    """Base of all operations. FSDP and the reference run them alike."""

    features: ClassVar[Mapping[str, Feature]] = {}
    rejections: ClassVar[tuple[Rejection, ...]] = ()
    wraps: ClassVar[bool] = False
    """Whether it wraps a model of its own."""
    renews: ClassVar[bool] = False
    """Whether FSDP's model is a new one afterwards: sharded, and without gradients."""
    changes_units: ClassVar[bool] = False
    """Whether it changes options of FSDP's units, where they are."""
    casts_buffers: ClassVar[bool] = False
    """Whether FSDP's root, if it has not run before, casts its buffers to their dtype for it."""
    runs_model: ClassVar[bool] = False
    """Whether it calls the model, or a module of it."""
    interrupts: ClassVar[bool] = False
    """Whether an exception ends a forward in it."""
    starts_over: ClassVar[bool] = False
    """Whether it gives up an iteration: units are sharded then, and nothing has a gradient."""
    needs_reduced: ClassVar[bool] = False
    """Whether it goes after a backward only if that has reduced the gradients."""
    joins_gradients: ClassVar[bool] = False
    """Whether what it leaves of one gradient depends on the others."""
    gives_gradients: ClassVar[bool] = False
    """Whether it goes back through the forwards that wait for it."""
    clears_gradients: ClassVar[bool] = False
    """Whether each gradient is gone, or zero, after it."""
    steps_optimizer: ClassVar[bool] = False
    """Whether it is a step of the optimizer."""
    asks_optimizer: ClassVar[bool] = False
    """Whether it hands the optimizer on, though it neither steps it nor clears gradients."""
    parts_ranks: ClassVar[bool] = False
    """Whether ranks may go different ways from then on."""
    changes_trained: ClassVar[bool] = False
    """Whether other parameters are trained from then on."""
    drops_gradients: ClassVar[bool] = False
    """Whether a step after it may leave out some parameters that require grad."""
    saves_optimizer: ClassVar[bool] = False
    """Whether it takes the optimizer's state by the model's parameters."""
    stores: ClassVar[bool] = False
    """Whether it saves a checkpoint of the training on disk."""
    takes_tensor_parallel: ClassVar[bool] = True
    """Whether it runs on parameters that are cut over two axes of ranks."""
    compared: ClassVar[tuple[Literal["grad", "param"], ...]] = ()
    """What of the parameters is compared with the reference's afterwards."""
    results: ClassVar[tuple[str, ...]] = ()
    """Variables that it gives, compared with the reference's: a whole tensor, or whole tensors by
    parameter, or for each parameter some by name. What a rank lacks is missing, but for None."""
    program_words: ClassVar[Mapping[str, Word]] = {}
    """The words of a written program that mean it, alone or with operations before it."""

    def gathered(self, a: Anatomy) -> Call | None:
        """What makes whole, on every rank, what it gives in parts; None where nothing does."""
        return None

    def cut_short(self, a: Anatomy) -> tuple[Sequence[str], Sequence[str]]:
        """The modules whose forward an exception leaves unfinished, and all whose had begun."""
        return (), ()

    @property
    def asks_trained(self) -> bool:
        """Whether what it does with a parameter hangs on whether that requires grad."""
        return False

    @property
    def replans(self) -> bool:
        """Whether the plan may be another one from there on."""
        return self.renews or self.changes_units

    @property
    def waits(self) -> bool:
        """Whether it gives a loss that waits for a backward."""
        return False

    @property
    def reduces(self) -> bool:
        """Whether gradients of its loss are reduced in the backward that it waits for."""
        return True

    @property
    def reshards(self) -> str | None:
        """The unit of fsdp2 that it shards by hand."""
        return None

    @property
    def converts(self) -> bool:
        """Whether it gives the model's parameters other storage, for which fsdp2 shards all."""
        return False

    @property
    def clips_by(self) -> str | None:
        """The type of the norm by which it clips gradients."""
        return None

    @property
    def goes_back_again(self) -> bool:
        """Whether it is several backwards, with nothing in between."""
        return False

    @property
    def parts_losses(self) -> bool:
        """Whether each of the losses that wait has a backward of its own."""
        return False

    @property
    def called(self) -> str:
        """FQN of the module of which it calls ``forward``; empty for the root, or for none."""
        return ""

    @property
    def within(self) -> str:
        """FQN of a module inside the model that it names, as that lies in the plain one."""
        return ""

    @property
    def calls_method(self) -> bool:
        """Whether it calls another method of that module than ``forward``."""
        return False

    @property
    def moves_parameters(self) -> bool:
        """Whether it moves parameters to another device and back, where there is another."""
        return False

    @property
    def looks_whole(self) -> bool:
        """Whether it gathers whole parameters, in their own dtype, to look at them."""
        return False

    @property
    def scales_rate(self) -> float:
        """By what it multiplies the optimizer's learning rate."""
        return 1.0

    @property
    def sets_data(self) -> bool:
        """Whether parameters have other tensors for their data after it, until FSDP looks."""
        return False

    @property
    def rounds(self) -> bool:
        """Whether it changes parameters to values that may be rounded otherwise without FSDP."""
        return self.steps_optimizer

    @property
    def saves_local(self) -> bool:
        """Whether it saves what each rank holds, as it lies there."""
        return False

    @property
    def saves_shards(self) -> bool:
        """Whether it saves the model or its optimizer in shards, by the names of parameters."""
        return self.stores

    @property
    def flattens_state(self) -> bool:
        """Whether it takes the optimizer's state flattened, by the name of each entry."""
        return False

    @property
    def fills_new(self) -> bool:
        """Whether it puts a full state into a new optimizer."""
        return False

    def may_refuse(self, message: str) -> bool:
        """Whether it is asked to raise this where values are not finite."""
        return False

    @property
    def frees_gradients(self) -> bool:
        """Whether no parameter of FSDP's model has a gradient after it."""
        return self.renews

    @classmethod
    def kind(cls) -> str:
        """Its name in a case."""
        tag = cls.__struct_config__.tag
        if not isinstance(tag, str):
            raise ContractError(f"{cls.__name__} has no kind")
        return tag

    def with_plan(self, change: Callable[[Plan], Plan]) -> Self:
        """The operation with the plan changed that it wraps a model under, if it does."""
        return self

    def steps(self, lowering: Lowering) -> Iterator[Statement]:
        """What it does, as statements of a recipe."""
        raise NotImplementedError

    def check(self, a: Anatomy, progress: Progress, at: str) -> None:
        """Raises :class:`CaseError` for what contradicts the case at this point."""
        raise NotImplementedError

    def names_state(self) -> bool:
        """Whether ``torch.distributed.checkpoint`` names and loads the optimizer's state in it."""
        return False

    def words(self) -> str:
        """In a word or few."""
        raise NotImplementedError

    def plan_after(self, plan: Plan) -> Plan:
        """The plan that holds from here on."""
        return plan

    def moves(self, now: Situation, a: Anatomy, rank: int) -> None:
        """What it changes of a rank's situation."""

    @classmethod
    def values(cls, a: Anatomy) -> Iterator[tuple[str, str]]:
        """The case's value of each of `features`."""
        return iter(())

    @classmethod
    def simpler(cls, case: CaseSpec) -> Iterator[Simpler]:
        """Plainer neighbours, other than a program without the operation."""
        return iter(())


def complete(kinds: Iterable[type[OperationBase]]) -> None:
    """:class:`ContractError` for an operation that leaves out what every one has to say."""
    for kind in kinds:
        for name in ("steps", "check", "words"):
            if getattr(kind, name) is getattr(OperationBase, name):
                raise ContractError(f"the operation {kind.kind()} lacks {name}()")
        if kind.features and kind.values.__func__ is OperationBase.values.__func__:  # type: ignore[attr-defined]
            raise ContractError(f"the operation {kind.kind()} has features without values")
