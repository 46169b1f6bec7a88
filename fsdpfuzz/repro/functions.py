"""Which parts of a recipe become functions of a script: what is called, or done, more than once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fsdpfuzz.case.modules.imported import OWN
from fsdpfuzz.case.recipe import (
    MODEL,
    Call,
    Do,
    Index,
    Inside,
    Operation,
    Procedure,
    Recipe,
    Statement,
    Value,
    Variable,
    Who,
    With,
    mapped,
    rewritten,
    values,
    walk,
)


def calls(statement: Statement, name: str) -> bool:
    """Whether a statement calls something, at any depth."""
    if not isinstance(statement, Do):
        return False
    return any(getattr(v, "function", None) == name for v in values(statement.call))


def makes(statement: Statement, name: str) -> bool:
    """Whether a statement assigns a variable, others besides it or not."""
    return isinstance(statement, Do) and Variable(name) in statement.into


def told(statement: Statement) -> Statement:
    """Calls that shard also say who trains."""

    def change(value: Value) -> Value:
        if isinstance(value, Call) and value.function == "recipe.shard":
            return replace(value, args=(*value.args, Variable("fsdp")))
        return value

    return rewritten(statement, change)


def forwards(
    statements: Sequence[Statement], needed: list[str]
) -> tuple[list[Statement], Procedure | None]:
    """Forwards as calls of one function, where there are several to be written."""
    # Counted as they will be written: a loop over ten iterations has one forward.
    found = [s for s in walk(statements) if isinstance(s, Operation) and s.name == "forward"]
    if len(found) < 2:
        return list(statements), None
    # The caller of one of them may have to look for a checkpoint.
    looks = any(calls(s, _LOOKS) for forward in found for s in walk(forward.body))
    bodies = [_in_common(forward, looks) for forward in found]
    inner = max(bodies, key=bodies.count)
    # A module may take its input by another name than the rest: that forward is written out.
    if bodies.count(inner) < 2:
        return list(statements), None
    used = {v for do in inner for v in values(do.call)}
    given = tuple(name for name in ("model", "dtype") if Variable(name) in used)
    procedure = Procedure(
        name="forward",
        parameters=("module", "i", *given),
        body=tuple(inner),
        result=", ".join(needed),
    )

    def shortened(statement: Statement) -> Statement:
        if isinstance(statement, Operation) and statement.name == "forward":
            if _in_common(statement, looks) != inner:
                return statement
            return replace(statement, body=tuple(_shortened(statement.body, needed, given)))
        if isinstance(statement, Do):
            return statement
        return replace(statement, body=tuple(map(shortened, statement.body)))

    return list(map(shortened, statements)), procedure


def _in_common(forward: Operation, looks: bool) -> list[Do]:
    """What a function of forwards does in place of this one."""
    body = [s for s in walk(forward.body) if isinstance(s, Do)]
    # What one rank alone does is no part of every forward.
    return [
        _parametrised(do, looks)
        for do in body
        if calls(do, "torch.manual_seed")
        or (do.ranks is None and do.into and isinstance(do.into[0], Variable))
    ]


def _parametrised(do: Do, looks: bool) -> Do:
    """A statement of a forward with the module and the number as parameters."""

    def change(value: Value) -> Value:
        match value:
            case Index():
                return Variable("i")
            case Call(function, args, options) if not isinstance(function, str):
                module = Variable("module")
                if looks:
                    return Call(_LOOKS, (module, *args), options)
                return Call(module, args, options)
            case Call(str(function), args, options) if _calls_first(function):
                return Call(function, (Variable("module"), *args[1:]), options)
            case _:
                return value

    return replace(do, call=mapped(do.call, change))


def _calls_first(function: str) -> bool:
    """Whether a function is handed the module that a forward is of."""
    if function.startswith(f"{OWN}."):
        return function.endswith(".loss")
    return function in _CALL_FIRST


_LOOKS = "steps.checkpointing.call"
_CALL_FIRST = (
    _LOOKS,
    "steps.modules.imported.returned",
    "steps.modules.imported.loss_in",
)


def _shortened(
    body: Sequence[Statement], needed: list[str], given: Sequence[str]
) -> Iterator[Statement]:
    """A forward as a call of the function, with what stands before and behind it."""
    own = ("x", "output", "loss")
    index: Value = Index(0)
    module: Value = MODEL
    for do in walk(body):
        if not isinstance(do, Do):
            continue
        for value in values(do.call):
            if isinstance(value, Index):
                index = value
            if isinstance(value, Call) and not isinstance(value.function, str):
                module = value.function
            elif isinstance(value, Call) and _calls_first(str(value.function)):
                module = value.args[0]
    args: list[Value] = [module, index, *(Variable(name) for name in given)]
    done = Do(
        call=Call("recipe.forward", tuple(args)), into=tuple(Variable(name) for name in needed)
    )
    placed = False
    for statement in body:
        if isinstance(statement, Do) and statement.ranks is not None:
            yield statement
            continue
        inside = [s for s in walk([statement]) if isinstance(s, Do)]
        known = any(do.into and getattr(do.into[0], "name", "") in own for do in inside)
        if not known and not any(calls(do, "torch.manual_seed") for do in inside):
            yield statement
        elif isinstance(statement, With):
            placed = True
            yield replace(statement, body=(done,))
        elif not placed and any(
            getattr(do.into[0], "name", "") == "loss" for do in inside if do.into
        ):
            placed = True
            yield done


def called_again(recipe: Recipe) -> list[str]:
    """Procedures that are called more than once and are not `_small`, in their order."""
    calls = [
        str(getattr(value, "function", ""))
        for statement in walk(recipe.main)
        if isinstance(statement, Do)
        for value in values(statement.call)
    ]
    return [
        p.name
        for p in recipe.procedures
        if calls.count(f"recipe.{p.name}") > 1 and _small(p) is None
    ]


def _small(procedure: Procedure) -> Do | None:
    """The only statement of a procedure that is plainer where it is called, whoever calls it."""
    match procedure:
        case Procedure(parameters=("model",), body=(Do(into=() | (Variable("model"),)) as only,)):
            return only
        case _:
            return None


# A function of one line hides what happens, more than it saves.
def _put_in_place(only: Do, given: Value, target: Variable, who: Who) -> Iterator[Do]:
    """A small procedure's statement for the module ``given``, which goes into ``target``."""
    inside = [v for v in values(only.call) if v == MODEL or isinstance(v, Inside)]
    once = bool(only.into) and inside == [MODEL]  # else it would be made several times

    def change(value: Value) -> Value:
        if isinstance(value, Inside) and value.owner == MODEL.name:
            return Inside(target.name, value.path)
        return value if value != MODEL else given if once else target

    if not once and given != target:
        yield Do(call=given, into=(target,), who=who)
    into = (target,) if only.into else ()
    yield replace(
        only, call=mapped(only.call, change), into=into, who=only.who if who == "both" else who
    )


def inlined(recipe: Recipe, statement: Statement, again: list[str]) -> list[Statement]:
    """A call of a procedure as its body, where it is the only one."""
    match statement:
        case Do(call=Call(function=str(function), args=args), into=into, who=who) if (
            function.startswith("recipe.")
        ):
            name = function.removeprefix("recipe.")
            if name in again or name not in {p.name for p in recipe.procedures}:
                return [statement]
            only = _small(recipe.procedure(name))
            if only is not None and isinstance(into[0], Variable):
                return list(_put_in_place(only, args[0], into[0], who))
            body = recipe.procedure(name).body
            # A model that FSDP alone makes anew.
            return [replace(s, who=who) if who == "fsdp" and isinstance(s, Do) else s for s in body]
        case Do():
            return [statement]
        case _:
            inner = (made for own in statement.body for made in inlined(recipe, own, again))
            return [replace(statement, body=tuple(inner))]


def with_last(statements: tuple[Statement, ...], before: tuple[Do, ...]) -> tuple[Statement, ...]:
    """The same with some statements before what the last operation does."""
    if not before or isinstance(statements[-1], Do):
        return statements
    last = statements[-1]
    body = with_last(last.body, before)
    if isinstance(last, Operation):
        body = (*before, *last.body)
    return (*statements[:-1], replace(last, body=body))
