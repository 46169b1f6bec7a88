"""The properties by name: what `fsdpfuzz run` can run and the pytest modules draw from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from fsdpfuzz.errors import UsageError
from fsdpfuzz.loop._settings import APIS, Api

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from fsdpfuzz.case import CaseSpec, Imported, Plan
    from fsdpfuzz.strategies.drawing import Focus


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What may be drawn in this run."""

    apis: tuple[Api, ...] = APIS
    world_sizes: tuple[int, ...] = (2,)
    offers: tuple[str, ...] = ()
    """What of `fsdpfuzz.case.NEWER` the ranks' torch has; the rest is not drawn."""
    model: Imported | None = None
    """The only model to be drawn, if it is somebody's own."""
    plan: Plan | None = None
    """How its own code wraps it, if that is what is asked."""
    around: bool = False
    """Whether to change a thing or two of that."""
    words: tuple[str, ...] = ()
    """Its own program, in words of `fsdpfuzz.case.WRITTEN`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Property:
    """A named property: where drawing looks most. What must hold of cases, the invariants say.

    All properties draw from one space; ``name`` is also the focus of `strategies.cases`.
    """

    name: str
    about: str

    def strategy(self, scope: Scope) -> SearchStrategy[CaseSpec]:
        """The cases that it draws."""
        from fsdpfuzz.strategies import cases

        # A name that is no focus is refused by `cases`.
        focus = cast("Focus", self.name)
        return cases(
            focus=focus,
            apis=scope.apis,
            world_sizes=scope.world_sizes,
            offers=scope.offers,
            model=scope.model,
            plan=scope.plan,
            around=scope.around,
            words=scope.words,
        )


PROPERTIES: dict[str, Property] = {
    item.name: item
    for item in (
        Property(
            name="parity",
            about="FSDP trains as DDP does: losses, outputs, gradients, parameters, buffers",
        ),
        Property(
            name="state_dict",
            about="a state dict has the plain model's keys and values; loading it restores them",
        ),
        Property(
            name="memory",
            about="a rank holds its shards and no more; the memory tracker counts right",
        ),
        Property(
            name="checkpoint",
            about="recomputing and offloading activations changes nothing but memory",
        ),
        Property(
            name="fine_tune",
            about="what is frozen stays as it is, trains otherwise nowhere, and is resharded",
        ),
        Property(
            name="exec_order",
            about="ranks that take another path are told so: in time, once, and only they",
        ),
    )
}


def properties_named(names: tuple[str, ...], *, origin: str = "PROPERTY") -> tuple[Property, ...]:
    """The properties of those names, each once; all of them for none. :class:`UsageError`."""
    for name in names:
        if name not in PROPERTIES:
            raise UsageError(
                f"{origin}: there is no property {name!r}; those that exist: "
                f"{', '.join(PROPERTIES)}"
            )
    return tuple(PROPERTIES[name] for name in dict.fromkeys(names or PROPERTIES))


_scope = Scope()


def set_scope(scope: Scope) -> None:
    """What `drawn` draws from now on. The pytest plugin sets it from its options."""
    global _scope
    _scope = scope


def scope_now() -> Scope:
    """What `drawn` draws."""
    return _scope


def drawn(name: str) -> SearchStrategy[CaseSpec]:
    """The cases of a property within the scope at the time of the draw, not of this call.

    Test modules are imported before it is known how many ranks there are. Shrinks as the
    property's own strategy does.
    """
    from hypothesis import strategies as st

    chosen = PROPERTIES[name]
    strategies: dict[Scope, SearchStrategy[CaseSpec]] = {}

    # Composite, so that it is called for each example, when the plugin has set the scope.
    @st.composite
    def cases_in_scope(draw: st.DrawFn) -> CaseSpec:
        scope = scope_now()
        if scope not in strategies:
            strategies[scope] = chosen.strategy(scope)
        return draw(strategies[scope])

    return cases_in_scope()
