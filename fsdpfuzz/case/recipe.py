"""What a case does, as calls of steps with literal arguments.

A dimension of a case yields statements of this small language. Ranks execute them by calling
the named functions; a script is made by quoting the same functions, specialised to the same
arguments. So there is one place that says what happens (the case), and one that says how
(``fsdpfuzz.steps``), and neither exists twice.

Functions are named by their dotted path: ``torch.nn.Linear``, or ``steps.loss.projection`` for
one of our own. A name that begins with a dot is a method of the first argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from fsdpfuzz.errors import ContractError

Who = Literal["both", "fsdp", "reference", "averaging"]
"""Which training a statement belongs to: FSDP's, the plain model's, or both.

``averaging`` is what the plain model does where ``DistributedDataParallel`` does not do it.
"""


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of the recipe: ``model``, ``x``, ``loss``, ``rank``, ``device``, ..."""

    name: str


@dataclass(frozen=True, slots=True)
class Inside:
    """What a module holds at an FQN, a module or a parameter: ``model[0].body.weight``."""

    owner: str
    """Name of the variable that holds the module."""
    path: str


@dataclass(frozen=True, slots=True)
class Global:
    """An object by its dotted name: ``torch.float16``, ``torch.nn.Linear``."""

    name: str


@dataclass(frozen=True, slots=True)
class Index:
    """The number of a forward in the program; an affine function of the loop's ``i`` in a loop."""

    offset: int
    factor: int = 0


@dataclass(frozen=True, slots=True)
class Sum:
    """``left + right``; the only arithmetic that a recipe needs."""

    left: Value
    right: Value


@dataclass(frozen=True, slots=True)
class Items:
    """A list, tuple, set or dict of values, in the order given."""

    kind: Literal["list", "tuple", "set", "dict"]
    values: tuple[Value, ...]
    """For a dict keys and values, one after the other."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call. ``function`` is a dotted name, or a value that is called itself."""

    function: str | Variable | Inside
    args: tuple[Value, ...] = ()
    options: tuple[tuple[str, Value], ...] = ()


Value: TypeAlias = (
    bool | int | float | str | Variable | Inside | Global | Index | Sum | Items | Call | None
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Do:
    """Calls something, and puts the result into a variable, or where a module is, if asked to."""

    call: Value
    into: tuple[Variable | Inside, ...] = ()
    who: Who = "both"
    ranks: tuple[int, ...] | None = None
    """The ranks that do it; None for all."""
    looks: bool = False
    """Whether it only looks at things, so that a script goes without what it does not need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class With:
    """Statements inside a context manager."""

    context: Call | Variable
    body: tuple[Statement, ...]
    who: Who = "both"
    """Of one training alone: then its statements, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsynchronised:
    """Forwards and backwards after which gradients are not reduced: ``no_sync``.

    FSDP is told by a context manager (fsdp1), or before and afterwards (fsdp2). The plain model
    does nothing, ``DistributedDataParallel`` has a way of its own.
    """

    body: tuple[Statement, ...]
    context: Call | None = None
    before: Do | None = None
    after: Do | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """The statements of the operation with this index in the program."""

    op: int
    name: str
    """Its kind, as the flight recorder and findings name it."""
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """A block of operations that is run ``times`` times; `Index` counts on in it."""

    times: int
    body: tuple[Statement, ...]


Statement: TypeAlias = Do | With | Unsynchronised | Operation | Repeated


@dataclass(frozen=True, slots=True, kw_only=True)
class Procedure:
    """Named statements that end with a value: how a model is built, how it is sharded."""

    name: str
    parameters: tuple[str, ...]
    body: tuple[Statement, ...]
    result: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """All that a case does on one rank.

    ``procedures`` are called by ``main`` as ``recipe.NAME``. Variables that are there from the
    start: ``rank``, ``device``, ``dtype``.
    """

    procedures: tuple[Procedure, ...]
    main: tuple[Statement, ...]

    def procedure(self, name: str) -> Procedure:
        """The procedure of that name."""
        return next(procedure for procedure in self.procedures if procedure.name == name)


MODEL = Variable("model")
OPTIMIZER = Variable("optimizer")
SCALER = Variable("scaler")


def call(function: str | Variable | Inside, *args: Value, **options: Value) -> Call:
    """A call, options in the order given."""
    return Call(function, args, tuple(options.items()))


def literal(value: object) -> Value:
    """Plain data as a value; sequences become tuples."""
    if isinstance(value, list | tuple):
        return Items("tuple", tuple(literal(item) for item in value))
    if isinstance(value, dict):
        flat = (literal(item) for pair in value.items() for item in pair)
        return Items("dict", tuple(flat))
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{type(value).__name__} is no literal")


def dtype(name: str | None) -> Value:
    """``torch.float16`` and the like; None for none."""
    return None if name is None else Global(f"torch.{name}")


def walk(statements: Sequence[Statement]) -> Iterator[Statement]:
    """All statements, those inside others after what holds them."""
    for statement in statements:
        yield statement
        if not isinstance(statement, Do):
            yield from walk(statement.body)


def values(value: Value) -> Iterator[Value]:
    """A value and all that it is made of."""
    yield value
    match value:
        case Call(function, args, options):
            if not isinstance(function, str):
                yield function
            for inner in (*args, *(option for _, option in options)):
                yield from values(inner)
        case Items(_, inner_values):
            for inner in inner_values:
                yield from values(inner)
        case Sum(left, right):
            yield from values(left)
            yield from values(right)
        case _:
            pass


def mapped(value: Value, change: Callable[[Value], Value]) -> Value:
    """A value with ``change`` applied to it and to all that it is made of, the inmost first."""
    match value:
        case Call(function, args, options):
            if not isinstance(function, str):
                made = mapped(function, change)
                if not isinstance(made, Variable | Inside):
                    raise ContractError(f"{made!r} cannot be called")
                function = made
            value = Call(
                function,
                tuple(mapped(arg, change) for arg in args),
                tuple((name, mapped(option, change)) for name, option in options),
            )
        case Items(kind, inner):
            value = Items(kind, tuple(mapped(item, change) for item in inner))
        case Sum(left, right):
            value = Sum(mapped(left, change), mapped(right, change))
        case _:
            pass
    return change(value)


def rewritten(statement: Statement, change: Callable[[Value], Value]) -> Statement:
    """A statement with ``change`` applied to every value in it; see `mapped`."""

    def done(do: Do) -> Do:
        return replace(do, call=mapped(do.call, change))

    if isinstance(statement, Do):
        return done(statement)
    body = tuple(rewritten(inner, change) for inner in statement.body)
    if isinstance(statement, Unsynchronised):
        before = None if statement.before is None else done(statement.before)
        after = None if statement.after is None else done(statement.after)
        return replace(statement, body=body, before=before, after=after)
    return replace(statement, body=body)
