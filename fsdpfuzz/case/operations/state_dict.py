"""Saving and loading a state dict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from fsdpfuzz.case.base import ModulePath, on
from fsdpfuzz.case.dimension import ON, Feature, Simpler, one
from fsdpfuzz.case.modules.extra_state import STEPS, has_extra_state
from fsdpfuzz.case.names import check_names
from fsdpfuzz.case.operations.average_unmanaged import differs_by_rank
from fsdpfuzz.case.operations.base import OperationBase, Progress, Word
from fsdpfuzz.case.paths import within
from fsdpfuzz.case.recipe import MODEL, Call, Do, Inside, Statement, Value, Variable, call, literal
from fsdpfuzz.case.strides import without_elements
from fsdpfuzz.case.wrap import Fsdp2Plan
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.lowering import Lowering
    from fsdpfuzz.case.spec import CaseSpec


UNTOUCHED = -51
"""What a model holds before some of it is loaded: not zero, which a load might put where it has no
entry, nor anything else that a parameter starts with, as an orthogonal weight does with -1."""
_SUBMODULE = ("no", "prefix kept", "prefix dropped")


class StateDict(OperationBase, tag="state_dict", frozen=True, kw_only=True):
    """Takes the state dict, compares it with the reference, and loads it into a zeroed model.

    ``local`` is a form of fsdp1 alone. ``rank0_only`` goes with ``full``; fsdp2 has it only
    together with the offload of a full state dict, so there either one asks for both.
    """

    features: ClassVar[Mapping[str, Feature]] = {
        "state_dict": Feature(
            about="no, full, sharded, local, several (different forms)",
            group="State",
            values=("no", "full", "sharded", "local", "several"),
            excludes={
                "no": {
                    "state_offload": ("on",),
                    "state_rank0": ("on",),
                    "state_frozen": ("left out", "missing"),
                    "state_submodule": _SUBMODULE[1:],
                    "state_form": ("set", "kept"),
                    "state_again": ("on", "rank 0"),
                },
                "sharded": {"state_rank0": ("on",), "state_again": ("rank 0",)},
                "local": {
                    "state_rank0": ("on",),
                    "state_again": ("rank 0",),
                    "api": ("fsdp2",),
                },
            },
        ),
        "state_offload": Feature(
            about="on when a state dict is offloaded to the CPU", group="State", values=ON
        ),
        "state_rank0": Feature(
            about="on when a state dict is for rank 0 only", group="State", values=ON
        ),
        "state_frozen": Feature(
            about="saved, left out, missing: whether a state dict has what is frozen by then; "
            "missing when a module's entries, which it is left out of, have no such key (fsdp2 "
            "only)",
            group="State",
            values=("saved", "left out", "missing"),
            apis=("fsdp2",),
            excludes={"missing": {"state_submodule": ("no",)}},
        ),
        "state_submodule": Feature(
            about="no, prefix kept, prefix dropped: whether a state dict is that of one module in "
            "the model, and with which keys (fsdp2 only)",
            group="State",
            values=_SUBMODULE,
            apis=("fsdp2",),
        ),
        "state_form": Feature(
            about="context, set, kept: whether a context manager gives the form of a state dict, "
            "or set_state_dict_type, of that state dict or of one before it (fsdp1 only)",
            group="State",
            values=("context", "set", "kept"),
            apis=("fsdp1",),
        ),
        "state_again": Feature(
            about="off, on, rank 0: whether the same state dict is loaded into two models, and "
            "whether one that rank 0 alone has, by keys of the whole model",
            group="State",
            values=("off", "on", "rank 0"),
        ),
    }

    program_words: ClassVar[Mapping[str, Word]] = {
        "state_dict": Word(
            about="saves a full state dict and loads it into another model",
            means=lambda _: (StateDict(),),
            trains=True,
            after_reduction=True,
        )
    }
    wraps: ClassVar[bool] = True
    casts_buffers: ClassVar[bool] = True
    needs_reduced: ClassVar[bool] = True

    form: Literal["full", "sharded", "local"] = "full"
    rank0_only: bool = False
    cpu_offload: bool = False
    given: Literal["context", "set", "kept"] = "context"
    """How the form is given (fsdp1): ``kept`` is what was set last, in the same options."""
    ignore_frozen: bool = False
    """``ignore_frozen_params`` (fsdp2): what is frozen by then is neither saved nor loaded."""
    submodule: ModulePath = ""
    """The module of which alone entries are saved and loaded (fsdp2); empty for all of them."""
    prefix: Literal["kept", "dropped"] = "kept"
    """``keep_submodule_prefixes``: whether keys of a module's entries begin with its FQN."""
    again: bool = False
    """Loaded into two models, one after the other, as when one of them is to stay as it is."""

    @property
    def looks_whole(self) -> bool:
        """Unless each rank saves what it holds."""
        return self.form != "local"

    @property
    def saves_shards(self) -> bool:
        """As ``SHARDED_STATE_DICT``, or with ``full_state_dict=False``."""
        return self.form == "sharded"

    @property
    def saves_local(self) -> bool:
        """As ``LOCAL_STATE_DICT``."""
        return self.form == "local"

    @property
    def partial(self) -> bool:
        """Whether it has only some of what is in the model, and a load leaves the rest alone."""
        return self.ignore_frozen or bool(self.submodule)

    def on_rank0(self, a: Anatomy) -> bool:
        """Whether rank 0 alone gets it.

        With fsdp2 a full state dict that is offloaded exists on rank 0 alone, as
        ``StateDictOptions`` documents.
        """
        return self.rank0_only or (not a.fsdp1 and self.form == "full" and self.cpu_offload)

    @property
    def named(self) -> Value:
        """The state as it was taken, by keys of the whole model."""
        if self.prefix == "kept":
            return Variable("state")
        return call("steps.state_dict.prefixed", Variable("state"), f"{self.submodule}.")

    def gathered(self, a: Anatomy) -> Call | None:
        """The state by the names of the plain model, unless rank 0 alone has it."""
        if self.on_rank0(a):
            return None
        options: dict[str, Value] = {}
        if a.fsdp1 and self.form == "sharded" and (names := without_elements(a)):
            options["empty"] = literal(names)
        step = f"steps.{a.api}.state_dict.whole"
        return call(step, MODEL, self.form, self.named, **options)

    def check(self, a: Anatomy, progress: Progress, at: str) -> None:
        """The API has the form, and the form the option."""
        if self.form == "local" and isinstance(a.plan, Fsdp2Plan):
            raise CaseError("fsdp2 has no form='local'; use 'sharded'", path=f"{at}.form")
        if self.rank0_only and self.form != "full":
            raise CaseError(f"form={self.form!r} is on every rank", path=f"{at}.rank0_only")
        if self.given != "context" and not a.fsdp1:
            raise CaseError("an option of fsdp1 alone", path=f"{at}.given")
        if self.ignore_frozen and a.fsdp1:
            raise CaseError("an option of fsdp2 alone", path=f"{at}.ignore_frozen")
        self._check_submodule(a, at)
        form = (self.form, self.rank0_only, self.cpu_offload)
        if self.given == "kept" and form != progress.form:
            raise CaseError("the form that was set last is another one", path=f"{at}.given")
        if self.on_rank0(a) and differs_by_rank(a, progress):
            raise CaseError("rank 0's alone, of what each rank has trained by itself", path=at)
        if self.given == "set":
            progress.form = form

    def _check_submodule(self, a: Anatomy, at: str) -> None:
        if not self.submodule:
            if self.prefix != "kept":
                raise CaseError("the model has no prefix", path=f"{at}.prefix")
            return
        if a.fsdp1:
            raise CaseError("an option of fsdp2 alone", path=f"{at}.submodule")
        check_names((self.submodule,), a.by_path, f"{at}.submodule", "module")

    def steps(self, lowering: Lowering) -> Iterator[Statement]:
        """Save, and load into a model that differs in every element."""
        a = lowering.a
        room = f"steps.{a.api}.state_dict"
        rank0 = self.on_rank0(a)
        state, loaded = Variable("state"), Variable("loaded")
        save: dict[str, Value] = {}
        if self.cpu_offload or (rank0 and not a.fsdp1):
            save["offload"] = True
        if self.ignore_frozen:
            save["ignore_frozen"] = True
        if self.submodule:
            save |= {"prefix": self.prefix, "part": Inside("model", self.submodule)}
        if rank0 and a.fsdp1:
            save["rank0_only"] = True
        if self.given == "context":
            taken = call(f"{room}.save", MODEL, self.form, **save)
        else:
            taken = call(".state_dict", MODEL)
        if self.given == "set":
            yield Do(call=call(f"{room}.set_form", MODEL, self.form, **save), who="fsdp")
        yield Do(call=taken, into=(state,), who="fsdp")
        if not lowering.loads_state:
            return
        given: Value = state
        if rank0 and a.fsdp1:
            # fsdp1 loads on every rank what that rank is given; fsdp2 takes rank 0's by itself.
            given = call(state_step(a, "broadcast"), state, Variable("device"))
        # Into a model of its own, which differs everywhere: one that is loaded in vain is told from
        # it.
        fill = (UNTOUCHED, 0) if self.partial else ()
        blank = call(state_step(a, "blank"), call("recipe.build", Variable("dtype")), *fill)
        models = (Variable("first"), loaded) if self.again else (loaded,)
        for model in models:
            yield Do(call=call(f"recipe.{lowering.shard}", blank), into=(model,), who="fsdp")
        if self.given != "context":
            for model in models:
                yield Do(call=call(f"{room}.set_form", model, self.form, **save), who="fsdp")
                yield Do(call=call(".load_state_dict", model, given), who="fsdp")
            return
        load: dict[str, Value] = {"broadcast": True} if rank0 and not a.fsdp1 else {}
        if self.ignore_frozen:
            load["ignore_frozen"] = True
        if self.submodule:
            load["prefix"] = self.prefix
        for model in models:
            if self.prefix == "dropped":
                load["part"] = Inside(model.name, self.submodule)
            yield Do(call=call(f"{room}.load", model, self.form, given, **load), who="fsdp")

    def words(self) -> str:
        """``state_dict full rank 0 only to CPU``."""
        words = ["state_dict", self.form]
        words += ["rank 0 only"] if self.rank0_only else []
        words += ["to CPU"] if self.cpu_offload else []
        words += ["without what is frozen"] if self.ignore_frozen else []
        words += [f"of {self.submodule}"] if self.submodule else []
        words += ["without its prefix"] if self.prefix == "dropped" else []
        words += [] if self.given == "context" else [self.given]
        words += ["loaded twice"] if self.again else []
        return " ".join(words)

    @classmethod
    def values(cls, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Forms and options over the program."""
        taken = taken_in(a.case)
        yield "state_dict", one((op.form for op in taken), several="several")
        yield "state_offload", on(any(op.cpu_offload for op in taken))
        yield "state_rank0", on(any(op.rank0_only for op in taken))
        again = [op for op in taken if op.again]
        alone = any(op.on_rank0(a) and op.prefix == "kept" for op in again)
        yield "state_again", "rank 0" if alone else on(bool(again))
        if a.fsdp1:
            given = {op.given for op in taken}
            yield "state_form", next((g for g in ("kept", "set") if g in given), "context")
        else:
            missing = any(_misses_frozen(a, at) for at in range(len(a.case.program)))
            lacks = any(op.ignore_frozen for op in taken)
            yield "state_frozen", "missing" if missing else "left out" if lacks else "saved"
            of = {f"prefix {op.prefix}" for op in taken if op.submodule}
            yield "state_submodule", max(of, default="no", key=_SUBMODULE.index)

    @classmethod
    def simpler(cls, case: CaseSpec) -> Iterator[Simpler]:
        """On the device; on every rank; in a context."""
        replace = msgspec.structs.replace
        plainer = (
            ("cpu_offload", False, "offload of the state dict"),
            ("rank0_only", False, "a state dict on rank 0 only"),
            ("given", "context", "set_state_dict_type"),
            ("ignore_frozen", False, "ignore_frozen_params"),
            ("prefix", "kept", "keep_submodule_prefixes"),
            ("submodule", "", "submodules"),
            ("again", False, "a second load"),
        )
        for name, value, words in plainer:
            changes: dict[str, object] = {name: value}
            if name == "submodule":
                changes["prefix"] = "kept"
            program = tuple(
                replace(op, **changes) if isinstance(op, StateDict) else op for op in case.program
            )
            if program != case.program:
                yield Simpler(replace(case, program=program), words)


def taken_in(case: CaseSpec) -> list[StateDict]:
    """The state dicts of a program."""
    return [op for op in case.program if isinstance(op, StateDict)]


def saved_of(a: Anatomy, at: int, keys: Iterable[str]) -> frozenset[str]:
    """Those of the plain model's keys that the state dict at an operation has."""
    op = a.case.program[at]
    kept = frozenset(keys)
    if isinstance(op, StateDict):
        kept = frozenset(key for key in kept if within(key, op.submodule)) - left_out(a, at)
    return kept


def left_alone(a: Anatomy, at: int) -> frozenset[str]:
    """FQNs of the parameters of which the load at an operation has no entry, by any name."""
    op = a.case.program[at]
    if not isinstance(op, StateDict) or not op.partial:
        return frozenset()
    first = a.source | a.brought_ties
    loaded = {first.get(key, key) for key in saved_of(a, at, (*a.by_fqn, *first))}
    return frozenset(p.fqn for p in a.parameters if first.get(p.fqn, p.fqn) not in loaded)


def saves_any(a: Anatomy, path: str) -> bool:
    """Whether a module holds parameters or buffers."""
    return any(
        within(place.path, path) and (place.parameters or place.buffers) for place in a.places
    )


def left_out(a: Anatomy, at: int) -> frozenset[str]:
    """What the state dict at an operation ignores: by each name that it has in the model."""
    op = a.case.program[at]
    if not isinstance(op, StateDict) or not op.ignore_frozen:
        return frozenset()
    trained = next(now.trained for i, _, now in a.situations(0) if i == at)
    frozen = {fqn for fqn, is_trained in trained.items() if not is_trained}
    second = {name for name, first in a.brought_ties.items() if first in frozen}
    return frozenset(frozen | second)


# ``_get_model_state_dict`` looks for what is frozen among the keys that are there by then.
def _misses_frozen(a: Anatomy, at: int) -> bool:
    """Whether a state dict at an operation is to leave out a key that it does not have."""
    op, frozen = a.case.program[at], left_out(a, at)
    if not isinstance(op, StateDict):
        return False
    return any(op.prefix == "dropped" or not within(fqn, op.submodule) for fqn in frozen)


def dcp_options(
    *,
    full: bool,
    offload: bool = False,
    broadcast: bool = False,
    flatten: bool = False,
    ignore_frozen: bool = False,
    strict: bool = True,
) -> dict[str, Value]:
    """The arguments of ``StateDictOptions`` that differ from its defaults."""
    given = {
        "full_state_dict": full,
        "cpu_offload": offload,
        "ignore_frozen_params": ignore_frozen,
        "flatten_optimizer_state_dict": flatten,
        "broadcast_from_rank0": broadcast,
    }
    options: dict[str, Value] = {name: True for name, asked in given.items() if asked}
    return options | ({} if strict else {"strict": False})


def state_step(a: Anatomy, name: str) -> str:
    """The step of that name that takes state dicts as this model has them."""
    return f"{STEPS if has_extra_state(a) else 'steps.state_dict'}.{name}"


def takes_local(program: Iterable[OperationBase]) -> bool:
    """Whether a local state dict is taken of fsdp1's units."""
    return any(isinstance(op, StateDict) and op.form == "local" for op in program)
