"""Quotes steps, specialised to the arguments of one script.

Literal arguments are folded into a step's body, branches that cannot be taken are dropped, and a
body that is small, or called once, is put where it is called. What is left becomes a function of
the script.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from fsdpfuzz.errors import ContractError
from fsdpfuzz.repro.arguments import Spread, bound, further, plain_parameters, without
from fsdpfuzz.repro.fold import Fold, Rename, Substitute, is_constant, plain
from fsdpfuzz.repro.meaning import give_meaning
from fsdpfuzz.repro.naming import clashes, fresh, rename_function
from fsdpfuzz.repro.source import COMMENTS, OURS, Source, assigned, find, is_ours, names_in
from fsdpfuzz.repro.variables import propagated, trivial, uses

SHORT = 40
"""Characters up to which an argument is put where its parameter stands."""
T = TypeVar("T", bound=ast.AST)

SMALL = 2
"""Statements up to which a body is put into each of its callers."""


@dataclass(slots=True)
class Quoted:
    """What a script needs besides its own statements."""

    definitions: dict[str, ast.stmt] = field(default_factory=dict)
    """Functions and classes by name, in the order in which they were needed."""
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Name to module and what of it; see `Source.imports`."""


class Specialiser:
    """Makes the statements of one script out of statements that call steps.

    A call of a step is a call of an `ast.Name` with the step's dotted name.
    """

    def __init__(self, direct: Sequence[str] = ()) -> None:
        """``direct`` names steps that call their first argument with the others, and no more."""
        self.quoted = Quoted()
        self._direct = frozenset(direct)
        self._sites: Counter[str] = Counter()
        self._names: dict[str, str] = {}
        """Names of the script's own functions and classes to the dotted names they quote."""
        self._keys: dict[str, str] = {}
        """What was specialised to which function's name."""
        self._busy: set[str] = set()

    def script(self, statements: list[ast.stmt], scope: set[str]) -> list[ast.stmt]:
        """Statements without calls of steps; ``scope`` are names that must not be taken."""
        for statement in statements:
            for node in ast.walk(statement):
                if isinstance(node, ast.Call) and self._step(node):
                    self._sites[_name(node)] += 1
        made = self._statements(statements, scope | assigned(statements))
        self._keep_apart(made)
        return made

    def _keep_apart(self, statements: list[ast.stmt]) -> None:
        """Gives functions other names than variables have."""
        functions = self.quoted.definitions
        for name in clashes(statements, functions):
            room = self._names[name].split(".")[-2]
            # The variable keeps its name, which the case's own statements use.
            own = f"{room}_{name}"
            rename_function(statements, functions, name, own)
            self._names[own] = self._names.pop(name)
            self._keys = {key: own if it == name else it for key, it in self._keys.items()}

    def _statements(self, statements: list[ast.stmt], scope: set[str]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        for statement in statements:
            out += self._statement(statement, scope)
        return out

    def _statement(self, statement: ast.stmt, scope: set[str]) -> list[ast.stmt]:
        match statement:
            case ast.Expr(value=ast.Call() as call) if self._step(call):
                made = self._spliced(call, None, scope)
            case ast.Assign(targets=[target], value=ast.Call() as call) if self._step(call):
                made = self._spliced(call, target, scope)
            case ast.Return(value=ast.Call() as call) if self._step(call):
                made = self._spliced(call, "return", scope)
            case ast.If() | ast.For() | ast.While() | ast.With() | ast.FunctionDef() | ast.Try():
                made = self._compound(statement, scope)
            case _:
                made = [self._expressions(statement, scope)]
        comments = getattr(statement, COMMENTS, [])
        if comments and made and getattr(made[0], COMMENTS, []) != comments:
            setattr(made[0], COMMENTS, [*comments, *getattr(made[0], COMMENTS, [])])
        return made

    def _compound(self, statement: ast.stmt, scope: set[str]) -> list[ast.stmt]:
        for name in ("body", "orelse", "finalbody"):
            inner = getattr(statement, name, None)
            if inner:
                setattr(statement, name, self._statements(inner, scope))
        for handler in getattr(statement, "handlers", ()):
            handler.body = self._statements(handler.body, scope)
        for name in ("test", "iter", "items", "target"):
            inner = getattr(statement, name, None)
            if isinstance(inner, ast.expr):
                setattr(statement, name, self._expressions(inner, scope))
            elif isinstance(inner, list):
                setattr(statement, name, [self._expressions(item, scope) for item in inner])
        return plain([statement])

    def _expressions(self, node: T, scope: set[str]) -> T:
        """The tree with every step in it called as an expression can be."""
        made: T = Fold().visit(_Expressions(self, scope).visit(node))
        return made

    def _expression(self, node: ast.expr, scope: set[str]) -> ast.expr:
        return self._expressions(node, scope)

    def _step(self, call: ast.Call) -> bool:
        return isinstance(call.func, ast.Name) and is_ours(call.func.id)

    def _spliced(
        self, call: ast.Call, target: ast.expr | str | None, scope: set[str]
    ) -> list[ast.stmt]:
        """A step that is a whole statement: its body, or a call of what it becomes."""
        name = _name(call)
        source, definition = find(name)
        if isinstance(definition, ast.ClassDef) or name in self._direct:
            return [_put(target, self._called(call, scope))]
        body = self._body(name, source, definition, call, scope, target)
        if body is not None:
            return body
        return [_put(target, self._called(call, scope))]

    def _body(
        self,
        name: str,
        source: Source,
        definition: ast.FunctionDef,
        call: ast.Call,
        scope: set[str],
        target: ast.expr | str | None,
    ) -> list[ast.stmt] | None:
        """The specialised body with its result put into ``target``; None if it has to be a
        function: it has a decorator, returns in the middle, or is large and called again."""
        # A step that is being quoted already calls itself: put in place, it would have no end.
        if definition.decorator_list or _yields(definition) or name in self._busy:
            return None
        wanted = target.id if isinstance(target, ast.Name) else ""
        self._busy.add(name)
        try:
            body = self._specialised(source, definition, call, scope, wanted)
        finally:
            self._busy.discard(name)
        returns = [n for s in body for n in ast.walk(s) if isinstance(n, ast.Return)]
        inner = body
        while inner and isinstance(inner[-1], ast.With):
            inner = inner[-1].body  # what a context manager ends with is the end as well
        last = inner[-1] if inner else None
        # A return in the middle would end the caller.
        if len(returns) > isinstance(last, ast.Return):
            return None
        if len(body) > SMALL and self._sites[name] > 1:
            return None
        if not isinstance(last, ast.Return):
            return body if target is None else [*body, _put(target, ast.Constant(None))]
        value = last.value or ast.Constant(None)
        if target is None:
            tail: list[ast.stmt] = [ast.Expr(value)] if isinstance(value, ast.Call) else []
        elif isinstance(value, ast.Name) and value.id == wanted:
            tail = []
        else:
            tail = [_put(target, value)]
        for made in tail:
            setattr(made, COMMENTS, getattr(last, COMMENTS, []))
        inner[-1:] = tail if tail or inner is body or len(inner) > 1 else [ast.Pass()]
        return body

    def _called(self, call: ast.Call, scope: set[str]) -> ast.expr:
        """A step as an expression: its own one, or a call of the function that it becomes."""
        name = _name(call)
        if name in self._direct:
            function, *rest = [self._expression(arg, scope) for arg in call.args]
            named = [ast.keyword(k.arg, self._expression(k.value, scope)) for k in call.keywords]
            return ast.Call(function, rest, named)
        source, definition = find(name)
        if isinstance(definition, ast.ClassDef):
            return self._class_call(name, source, definition, call, scope)
        if not definition.decorator_list and not _yields(definition) and name not in self._busy:
            self._busy.add(name)
            try:
                body = self._specialised(source, definition, copy.deepcopy(call), scope, "")
            finally:
                self._busy.discard(name)
            if len(body) == 1 and isinstance(body[0], ast.Return) and body[0].value is not None:
                return body[0].value
        return self._function_call(name, source, definition, call, scope)

    def _class_call(
        self, name: str, source: Source, node: ast.ClassDef, call: ast.Call, scope: set[str]
    ) -> ast.expr:
        own = self._class(name, source, node)
        args = [self._expressions(arg, scope) for arg in call.args]
        options = [ast.keyword(k.arg, self._expressions(k.value, scope)) for k in call.keywords]
        return ast.Call(ast.Name(own, ast.Load()), args, options)

    def class_named(self, name: str) -> str:
        """Quotes a class, and what it builds on; its name in the script."""
        source, definition = find(name)
        if not isinstance(definition, ast.ClassDef):
            raise ContractError(f"{name} is no class")
        return self._class(f"{source.module}.{definition.name}", source, definition)

    def _class(self, name: str, source: Source, node: ast.ClassDef) -> str:
        if name not in self._keys:
            self._keys[name] = node.name
            made = copy.deepcopy(node)
            made.bases = [self._base(source, base) for base in made.bases]
            self._give_meaning(source, made)
            methods = [m for m in made.body if isinstance(m, ast.FunctionDef)]
            for method in methods:
                method.body = self._statements(method.body, assigned(method.body))
            self.quoted.definitions[node.name] = plain([made])[0]
        return self._keys[name]

    def _base(self, source: Source, base: ast.expr) -> ast.expr:
        if isinstance(base, ast.Name) and base.id in source.definitions:
            own = self.class_named(f"{source.module}.{base.id}")
            return ast.Name(own, ast.Load())
        return base

    def _function_call(
        self,
        name: str,
        source: Source,
        definition: ast.FunctionDef,
        call: ast.Call,
        scope: set[str],
    ) -> ast.expr:
        """A call of a function of the script; constant arguments are folded into it."""
        given = bound(definition, call)
        folded = {p: v for p, v in given.items() if p in plain_parameters(definition)}
        folded = {p: v for p, v in folded.items() if is_constant(v)}
        key = f"{name}({', '.join(f'{p}={ast.unparse(v)}' for p, v in sorted(folded.items()))})"
        if key not in self._keys:
            own = self._free_name(definition.name, name)
            self._keys[key] = own
            self._names[own] = name
            made = copy.deepcopy(definition)
            made.name = own
            self._give_meaning(source, made)
            made.args = without(made.args, set(folded))
            made.body = [Substitute(folded).visit(s) for s in made.body]
            self._busy.add(name)
            try:
                made.body = self._statements(plain(made.body), assigned(made.body))
            finally:
                self._busy.discard(name)
            made.body = plain(propagated(made.body)) or [ast.Pass()]
            self.quoted.definitions[own] = made
        starred = [a for a in call.args if isinstance(a, ast.Starred)]
        rest = [v for p, v in given.items() if p not in folded]
        if starred or definition.args.vararg:
            rest = list(call.args)
        args = [self._expressions(arg, scope) for arg in rest]
        named = [
            ast.keyword(k.arg, self._expressions(k.value, scope)) for k in further(definition, call)
        ]
        return ast.Call(ast.Name(self._keys[key], ast.Load()), args, named)

    def _give_meaning(self, source: Source, node: ast.AST, hidden: Collection[str] = ()) -> None:
        give_meaning(source, node, hidden, self.quoted.imports, self._class)

    def _free_name(self, wanted: str, name: str) -> str:
        taken = self.quoted.definitions.keys() | set(self._keys.values())
        if wanted not in taken:
            return wanted
        room = name.split(".")[-2]
        return f"{wanted}_{room}" if f"{wanted}_{room}" not in taken else f"{wanted}_{len(taken)}"

    def _specialised(
        self,
        source: Source,
        definition: ast.FunctionDef,
        call: ast.Call,
        scope: set[str],
        wanted: str,
    ) -> list[ast.stmt]:
        """The body for these arguments; its variables have names that are free in ``scope``.

        ``wanted`` is the variable that the result goes into, whose name may be used.
        """
        given = bound(definition, call)
        body = [copy.deepcopy(s) for s in definition.body]
        for statement, original in zip(body, definition.body, strict=True):
            setattr(statement, COMMENTS, getattr(original, COMMENTS, []))
        holder = ast.Module(body, [])
        locals_ = assigned(body)
        self._give_meaning(source, holder, set(given))
        # What a comprehension binds is its own, unless an argument that is put there means another.
        meant = {node.id for value in given.values() for node in names_in(value)}
        inside = locals_ - assigned(body, comprehensions=False) - meant
        renamed = {
            name: fresh(name, scope)
            for name in locals_ - inside
            if name in scope and (name != wanted or name in meant) and name not in given
        }
        last = body[-1]
        if wanted and isinstance(last, ast.Return) and isinstance(last.value, ast.Name):
            result = last.value.id
            if result in locals_ and wanted not in locals_ | meant | given.keys():
                renamed[result] = wanted
        # Names first, arguments afterwards: an argument may mean a variable that is called so, too.
        Rename(renamed).visit(holder)
        made = {parameter: self._expressions(value, scope) for parameter, value in given.items()}
        constants = {p: v for p, v in made.items() if is_constant(v) and p not in locals_}
        # Literals before all else: they decide branches, and what is read in a dropped one needs no
        # name.
        holder.body = plain([Substitute(constants).visit(s) for s in holder.body])
        before: list[ast.stmt] = []
        simple: dict[str, ast.expr] = {}
        for parameter, value in made.items():
            if parameter in constants:
                continue
            # An expression may stand in place of a parameter only if it is evaluated once, as it
            # was.
            reads, nested = uses(holder.body, parameter)
            once = reads == 1 and not nested and len(ast.unparse(value)) <= SHORT
            if parameter not in locals_ and (trivial(value) or reads == 0 or once):
                simple[parameter] = value
                continue
            own = fresh(parameter, scope) if parameter in scope else parameter
            Rename({parameter: own}).visit(holder)
            before.append(ast.Assign([ast.Name(own, ast.Store())], value))
        holder = Substitute(simple).visit(holder)
        holder = Spread(definition, call).visit(holder)
        inner = plain([*before, *holder.body])
        inner = self._statements(inner, scope | assigned(inner))
        return plain(propagated(plain(inner)))


class _Expressions(ast.NodeTransformer):
    """Calls steps where an expression stands."""

    def __init__(self, specialiser: Specialiser, scope: set[str]) -> None:
        self._specialiser, self._scope = specialiser, scope

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if self._specialiser._step(node):
            return self._specialiser._called(node, self._scope)
        self.generic_visit(node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if is_ours(node.id):
            return ast.Name(self._specialiser.class_named(node.id), ast.Load())
        return node


def _name(call: ast.Call) -> str:
    if not isinstance(call.func, ast.Name):
        raise ContractError("not a call of a step")
    name = call.func.id
    return name if name.startswith(f"{OURS}.") else f"{OURS}.{name}"


def _yields(definition: ast.FunctionDef) -> bool:
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(definition))


def _put(target: ast.expr | str | None, value: ast.expr) -> ast.stmt:
    if target is None:
        return ast.Expr(value)
    if isinstance(target, str):
        return ast.Return(value)
    return ast.Assign([target], value)
