"""From a recipe to source, calls of steps still in it."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from fsdpfuzz.case.modules.imported import OWN
from fsdpfuzz.case.recipe import (
    Call,
    Do,
    Global,
    Index,
    Inside,
    Items,
    Operation,
    Repeated,
    Statement,
    Sum,
    Unsynchronised,
    Value,
    Variable,
    With,
    rewritten,
)
from fsdpfuzz.errors import ContractError
from fsdpfuzz.repro.fold import attribute, constant
from fsdpfuzz.repro.source import is_ours

_ALIASES = {
    "torch.distributed.fsdp.FullyShardedDataParallel": "FSDP",
    "torch.distributed._composable.checkpoint_activation.checkpoint": "checkpoint_in_place",
}
"""Objects that a script calls otherwise, as most code does or because a name is taken."""
_OWN_NAMES = {
    "model": "make_model",
    "batch": "make_batch",
    "loss": "own_loss",
    "shard": "own_shard",
    "optimizer": "make_optimizer",
    "clip": "clip_gradients",
    "load": "load_weights",
}
"""Functions of a target, which a script must not take for its own variables."""
_DIRECT = ("torch", "torch.nn", "torch.cuda", "torch.optim")
"""Modules whose content is written out: ``torch.float16``, ``nn.Linear``, ``torch.optim.SGD``."""
_LOOP = "i"
_FLAGS = ("fsdp", "variant")
"""Say which of two trainings runs."""


class Writer:
    """Writes statements for FSDP's training, the plain model's, or a function that does both.

    ``both`` has what belongs to one of them stand under ``if fsdp:``.
    """

    def __init__(self, *, both: bool) -> None:
        self.imports: dict[str, tuple[str, str]] = {}
        self._both = both

    def statements(self, given: Iterable[Statement]) -> list[ast.stmt]:
        """One after the other, equal neighbours put into loops."""
        out: list[ast.stmt] = []
        for statement in given:
            out += self._statement(statement)
        return rolled(merged(out))

    def _statement(self, given: Statement) -> list[ast.stmt]:
        match given:
            case Do():
                return self._do(given)
            case With(context=context, body=body, who=who):
                item = ast.withitem(self.value(context))
                return self._guarded(who, [ast.With([item], self.statements(body))])
            case Unsynchronised():
                return self._unsynchronised(given)
            case Operation(body=body):
                return self.statements(body)
            case Repeated(times=times, body=body):
                turns = ast.Call(ast.Name("range", ast.Load()), [ast.Constant(times)], [])
                target = ast.Name(_LOOP, ast.Store())
                return [ast.For(target, turns, self.statements(body), [])]

    def _do(self, do: Do) -> list[ast.stmt]:
        if do.who in ("reference", "averaging") and not self._both:
            return []
        value = self.value(do.call)
        made: ast.stmt = ast.Expr(value)
        if len(do.into) == 1:
            made = ast.Assign([self._target(do.into[0])], value)
        elif do.into:
            targets = ast.Tuple([self._target(target) for target in do.into], ast.Store())
            made = ast.Assign([targets], value)
        out = [made]
        if do.ranks is not None:
            ranks = constant(do.ranks)
            test = ast.Compare(ast.Name("rank", ast.Load()), [ast.In()], [ranks or ast.Tuple([])])
            out = [ast.If(test, out, [])]
        return self._guarded(do.who, out)

    def _guarded(self, who: str, body: list[ast.stmt]) -> list[ast.stmt]:
        if not self._both or who == "both" or not body:
            return body
        fsdp: ast.expr = ast.Name("fsdp", ast.Load())
        test = fsdp if who == "fsdp" else ast.UnaryOp(ast.Not(), fsdp)
        return [ast.If(test, body, [])]

    def _unsynchronised(self, given: Unsynchronised) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        if given.before is not None:
            out += self._do(given.before)
        body = self.statements(given.body)
        if given.context is not None:
            context = self.value(given.context)
            if self._both:
                self.imports["nullcontext"] = ("contextlib", "nullcontext")
                nothing = ast.Call(ast.Name("nullcontext", ast.Load()), [], [])
                context = ast.IfExp(ast.Name("fsdp", ast.Load()), context, nothing)
            out.append(ast.With([ast.withitem(context)], body))
        else:
            out += body
        if given.after is not None:
            out += self._do(given.after)
        return out

    def _target(self, target: Variable | Inside) -> ast.expr:
        made = self.value(target)
        made.ctx = ast.Store()  # type: ignore[attr-defined]
        return made

    def value(self, value: Value) -> ast.expr:
        """An expression."""
        match value:
            case Variable(name):
                return ast.Name(name, ast.Load())
            case Inside(owner, path):
                found: ast.expr = ast.Name(owner, ast.Load())
                for part in path.split(".") if path else ():
                    found = attribute(found, part)
                return found
            case Global(name):
                return self._global(name)
            case Index(offset, factor):
                return _affine(offset, factor)
            case Sum(left, right):
                return ast.BinOp(self.value(left), ast.Add(), self.value(right))
            case Items(kind, values):
                return self._items(kind, [self.value(item) for item in values])
            case Call():
                return self._call(value)
            case _:
                made = constant(value)
                if made is None:
                    raise ContractError(f"{value!r} is no literal")
                return made

    def _items(self, kind: str, values: list[ast.expr]) -> ast.expr:
        match kind:
            case "list":
                return ast.List(values, ast.Load())
            case "tuple":
                return ast.Tuple(values, ast.Load())
            case "set":
                empty = ast.Call(ast.Name("set", ast.Load()), [], [])
                return ast.Set(values) if values else empty
            case "dict":
                return ast.Dict(list(values[::2]), values[1::2])
            case _:
                raise ContractError(f"{kind} is no kind of container")

    def _call(self, given: Call) -> ast.expr:
        args = [self.value(arg) for arg in given.args]
        options = [ast.keyword(name, self.value(option)) for name, option in given.options]
        function = given.function
        if not isinstance(function, str):
            return ast.Call(self.value(function), args, options)
        if function.startswith("."):
            return ast.Call(ast.Attribute(args[0], function[1:], ast.Load()), args[1:], options)
        if is_ours(function) or function.startswith("recipe."):
            name = function.removeprefix("recipe.")
            return ast.Call(ast.Name(name, ast.Load()), args, options)
        return ast.Call(self._global(function), args, options)

    def _global(self, name: str) -> ast.expr:
        if is_ours(name):
            return ast.Name(name, ast.Load())
        parts = name.split(".")
        if parts[0] == OWN:
            alias = _OWN_NAMES[parts[-1]]
            self.imports[alias] = (".".join(parts[1:-1]), parts[-1])
            return ast.Name(alias, ast.Load())
        cut = next((i for i, part in enumerate(parts) if part[:1].isupper()), len(parts) - 1)
        module, own, rest = ".".join(parts[:cut]), parts[cut], parts[cut + 1 :]
        found: ast.expr
        if module in _DIRECT:
            base = "nn" if module == "torch.nn" else "torch"
            self.imports[base] = ("torch", "nn") if base == "nn" else ("torch", "")
            found = ast.Name(base, ast.Load())
            for part in [*([] if base == "nn" else parts[1:cut]), own]:
                found = ast.Attribute(found, part, ast.Load())
        else:
            alias = _ALIASES.get(".".join(parts[: cut + 1]), own)
            if cut == len(parts) - 1 and own.startswith("_") and not own[1:2].isupper():
                # A module itself, as what is spied on.
                alias = own
            self.imports[alias] = (module, own)
            found = ast.Name(alias, ast.Load())
        for part in rest:
            found = ast.Attribute(found, part, ast.Load())
        return found


def _affine(offset: int, factor: int) -> ast.expr:
    if not factor:
        return ast.Constant(offset)
    i: ast.expr = ast.Name(_LOOP, ast.Load())
    product = i if factor == 1 else ast.BinOp(ast.Constant(factor), ast.Mult(), i)
    return ast.BinOp(product, ast.Add(), ast.Constant(offset)) if offset else product


def repeated(statements: Sequence[Statement]) -> list[Statement]:
    """Runs of equal operations as loops; forwards may count on."""
    out: list[Statement] = []
    at = 0
    while at < len(statements):
        length, times = _longest_run(statements, at)
        if times < 2:
            out.append(statements[at])
            at += 1
            continue
        block = statements[at : at + length]
        second = statements[at + length : at + 2 * length]
        step = _first_index(second) - _first_index(block)
        out.append(Repeated(times=times, body=tuple(_counting(s, step) for s in block)))
        at += length * times
    return out


def _longest_run(statements: Sequence[Statement], at: int) -> tuple[int, int]:
    """Length and number of the block from ``at`` on that covers most by being repeated."""
    best = (1, 1)
    for length in range(1, (len(statements) - at) // 2 + 1):
        block = [_placeless(s) for s in statements[at : at + length]]
        times = 1
        while True:
            start = at + length * times
            after = [_placeless(s) for s in statements[start : start + length]]
            if after != block:
                break
            step = _first_index(statements[start:]) - _first_index(statements[start - length :])
            first = _first_index(statements[at + length :]) - _first_index(statements[at:])
            if step != first:
                break
            times += 1
        if times > 1 and length * times > best[0] * best[1]:
            best = (length, times)
    return best if best[1] > 1 else (1, 1)


def _changed(statement: Statement, change: Callable[[Index], Index]) -> Statement:
    made = rewritten(statement, lambda value: change(value) if isinstance(value, Index) else value)
    return replace(made, op=-1) if isinstance(made, Operation) else made


def _placeless(statement: Statement) -> Statement:
    """The statement without the numbers of forwards and operations."""
    return _changed(statement, lambda _: Index(-1))


def _counting(statement: Statement, step: int) -> Statement:
    return _changed(statement, lambda index: Index(index.offset, step))


def _first_index(statements: Sequence[Statement]) -> int:
    """The number of the first forward; 0 where there is none."""
    found: list[int] = []

    def note(index: Index) -> Index:
        found.append(index.offset)
        return index

    for statement in statements:
        _changed(statement, note)
        if found:
            return found[0]
    return 0


def merged(statements: list[ast.stmt]) -> list[ast.stmt]:
    """Blocks under the same test that follow each other, as one; a test and its negation."""
    out: list[ast.stmt] = []
    for statement in statements:
        last = out[-1] if out else None
        if isinstance(statement, ast.If) and isinstance(last, ast.If):
            test, before = ast.unparse(statement.test), ast.unparse(last.test)
            # Only flags of the script are sure to be the same after the first block.
            plain = not (statement.orelse or last.orelse)
            if test == before and (plain or test in _FLAGS):
                last.body += statement.body
                last.orelse += statement.orelse
                continue
            if test == f"not {before}" and (plain or before in _FLAGS):
                last.body += statement.orelse
                last.orelse += statement.body
                continue
            if before == f"not {test}" and test in _FLAGS:
                body, orelse = last.orelse + statement.body, last.body + statement.orelse
                last.test, last.body, last.orelse = statement.test, body, orelse
                continue
        out.append(statement)
    for statement in out:
        if isinstance(statement, ast.If):
            statement.body = rolled(statement.body)
            statement.orelse = rolled(statement.orelse)
    return out


MANY = 3
"""Equal statements from which on a loop is plainer."""


def rolled(statements: list[ast.stmt]) -> list[ast.stmt]:
    """Runs of calls that differ in one module alone, as a loop over these modules."""
    out: list[ast.stmt] = []
    at = 0
    while at < len(statements):
        run = [statements[at]]
        shape = _shape(statements[at])
        while (
            shape is not None
            and at + len(run) < len(statements)
            and _shape(statements[at + len(run)]) == shape
        ):
            run.append(statements[at + len(run)])
        if len(run) >= MANY:
            out.append(_loop(run))
        else:
            out += run
        at += len(run)
    return out


def _module_in(statement: ast.stmt) -> ast.expr | None:
    """The module that a call is about: its first argument, or what its method belongs to."""
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner))) if _is_module(owner):
            return owner
        case ast.Expr(value=ast.Call(func=ast.Name(), args=[first, *_])) if _is_module(first):
            return first
        case _:
            return None


def _is_module(node: ast.expr) -> bool:
    match node:
        case ast.Name(id=name):
            return name == "model"
        case ast.Attribute(value=value) | ast.Subscript(value=value):
            return _is_module(value)
        case _:
            return False


def _shape(statement: ast.stmt) -> str | None:
    module = _module_in(statement)
    if module is None:
        return None
    text = ast.dump(module)
    return ast.dump(statement).replace(text, "_", 1)


def _loop(run: list[ast.stmt]) -> ast.stmt:
    modules = [_module_in(statement) for statement in run]
    parameter = all(isinstance(m, ast.Attribute) and m.attr in _TENSORS for m in modules)
    name = "p" if parameter else "module"
    body = copy.deepcopy(run[0])
    match body:
        case ast.Expr(value=ast.Call(func=ast.Attribute() as function)):
            function.value = ast.Name(name, ast.Load())
        case ast.Expr(value=ast.Call(args=args)):
            args[0] = ast.Name(name, ast.Load())
        case _:
            raise ContractError("no call to put into a loop")
    over = ast.Tuple([m for m in modules if m is not None], ast.Load())
    return ast.For(ast.Name(name, ast.Store()), over, [body], [])


_TENSORS = ("weight", "bias", "gain", "matrix")
