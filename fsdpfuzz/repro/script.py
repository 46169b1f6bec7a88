"""Puts a script together."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from fsdpfuzz.case import Anatomy, CaseSpec, Op, anatomy, lower, right_in, variants
from fsdpfuzz.case.recipe import (
    Do,
    Global,
    Items,
    Procedure,
    Recipe,
    Statement,
    Value,
    Variable,
    call,
    values,
    walk,
)
from fsdpfuzz.expect import parting
from fsdpfuzz.invariants import ORDER_ERROR, Evidence, invariant_of
from fsdpfuzz.invariants.evidence import whole_parity
from fsdpfuzz.repro.classes import without_options
from fsdpfuzz.repro.context import Context
from fsdpfuzz.repro.fold import Substitute
from fsdpfuzz.repro.functions import called_again, calls, forwards, inlined, makes, told, with_last
from fsdpfuzz.repro.header import header
from fsdpfuzz.repro.imports import import_lines, own_imports
from fsdpfuzz.repro.layout import laid_out, source
from fsdpfuzz.repro.results import without_results
from fsdpfuzz.repro.signature import signature_of
from fsdpfuzz.repro.source import assigned, names_in
from fsdpfuzz.repro.specialise import Specialiser
from fsdpfuzz.repro.statements import Writer, repeated
from fsdpfuzz.repro.tidy import CPU, tidied
from fsdpfuzz.repro.trainings import ended, function, side_by_side, single
from fsdpfuzz.verdict import Finding

_QUOTED = "fsdpfuzz.repro.quoted"
_ASKS = "steps.checkpointing.ask"
_CALL = "fsdpfuzz.steps.checkpointing.call"


def render(
    case: CaseSpec,
    finding: Finding | None,
    context: Context,
    *,
    print_losses: bool = False,
    reads: bool = False,
) -> str:
    """A standalone script that imports torch and the standard library only.

    It shows ``finding``, or without one whether FSDP trains ``case`` as the plain model
    trains. With ``print_losses`` it judges nothing and prints ``loss RANK HEX...``. With ``reads``
    a training that is to raise is read as the ranks do it, which may be what raises.
    """
    script = _Script(case, finding, context, print_losses=print_losses, reads=reads)
    text = script.text()
    return laid_out("\n".join([*header(script.case, finding, script.evidence, context), text]))


class _Script:
    def __init__(
        self,
        case: CaseSpec,
        finding: Finding | None,
        context: Context,
        *,
        print_losses: bool,
        reads: bool,
    ) -> None:
        runs = variants(case)
        # Without its variants, each of which is a training of its own.
        own = runs.get(finding.variant if finding is not None else "") or _alone(case)
        self.finding, self.context = finding, context
        self.prints = print_losses
        self.evidence = Evidence()
        if finding is not None and not print_losses:
            self.evidence = invariant_of(finding).evidence(_plan_at(anatomy(own), finding), finding)
        elif not print_losses:
            program = _trained(own.program[: parting(anatomy(own))])
            own = msgspec.structs.replace(own, program=program)
            self.evidence = whole_parity(anatomy(own))
        self.reads = reads and self.evidence.manner == "raises"
        self.case = self._cut(own)
        self.usual = self._cut(_alone(case)) if self.evidence.against == "case" else None
        asks = _asks(lower(anatomy(self.case)))
        asks = asks or (self.usual is not None and _asks(lower(anatomy(self.usual))))
        self._specialiser = Specialiser(direct=() if asks else (_CALL,))
        self._imports: dict[str, tuple[str, str]] = {"torch": ("torch", "")}
        self._functions: list[ast.stmt] = []

    def _cut(self, case: CaseSpec) -> CaseSpec:
        """The case up to the last operation that matters."""
        last = self.evidence.last
        program = case.program if last is None else case.program[: last + 1]
        # The tracker hooks what it measures: a finding may need it, whatever it is about.
        probes = () if self.finding is None or self.prints else case.probes
        return msgspec.structs.replace(case, program=program, probes=probes)

    def text(self) -> str:
        setup, body = self._setup(), self._body()
        scope = {"model", "rank", "device", "dtype", "fsdp", "variant"}
        head = self._specialiser.script(setup, scope)
        # Bound anew in a function, one of these would be unbound there until then.
        scope |= assigned(head)
        rest = self._specialiser.script([*self._functions, *body], scope)
        quoted = self._specialiser.quoted
        made = without_options([*head, *quoted.definitions.values(), *rest])
        made = made if self._reference else [single(statement) for statement in made]
        compares = self.evidence.manner == "compare" and not self.prints
        made = tidied(made, compares=compares)
        imports = {**self._imports, **quoted.imports}
        used = {node.id for statement in made for node in names_in(statement)}
        wanted = {name: what for name, what in imports.items() if name in used}
        own, lines = anatomy(self.case).imported, list[str]()
        if own is not None:
            lines = own_imports(wanted, own, self.context.folder)
        return "\n".join([*import_lines(wanted), *lines, "", source(made)])

    def _setup(self) -> list[ast.stmt]:
        rank = Variable("rank")
        lines: list[Statement] = [
            Do(call=call(f"{_QUOTED}.start", self.case.world_size)),
            Do(call=call(f"{_QUOTED}.own_rank"), into=(rank,)),
        ]
        if self._gpus:
            lines.append(Do(call=call(f"{_QUOTED}.on_gpus", rank), into=(Variable("device"),)))
        else:
            lines.append(Do(call=call(f"{_QUOTED}.on_cpu")))
        level = self.case.debug_level
        if level != "OFF":
            name = f"torch.distributed.DebugLevel.{level}"
            lines.append(Do(call=call("torch.distributed.set_debug_level", Global(name))))
        meshes = [
            statement
            for case in (self.case, self.usual)
            if case is not None
            for statement in self._recipe(case).main
            if makes(statement, "mesh")
        ]
        lines += meshes[:1]
        return self._written(lines, both=False)

    def _body(self) -> list[ast.stmt]:
        evidence = self.evidence
        match evidence.manner:
            case "compare" if self.prints:
                kept = Variable("kept")
                return [*self._training(), *self._do(f"{_QUOTED}.losses", Variable("rank"), kept)]
            case "compare" if evidence.against == "reference":
                return self._against_reference()
            case "compare" if evidence.against == "case":
                return self._against_case()
            case "compare":
                looked = [*zip(evidence.into, evidence.seen, strict=True)]
                looked.append((evidence.other, evidence.right))
                put = [
                    Do(call=value, into=(variable,))
                    for variable, value in looked
                    if value is not None and value != variable
                ]
                seen = self._written(put, both=False)
                return [*self._training(), *seen, *self._judged()]
            case "raises":
                return self._raises()
            case "hang":
                patience = self.context.patience
                return [
                    *self._do(f"{_QUOTED}.watch", patience),
                    *self._training(),
                    *self._synchronised(),
                    *self._do(f"{_QUOTED}.passed", Variable("rank")),
                ]
            case "death":
                return [
                    *self._training(),
                    *self._synchronised(),
                    *self._do(f"{_QUOTED}.passed", Variable("rank")),
                ]
            case "order_error":
                return self._order_error()

    @property
    def _gpus(self) -> bool:
        return self.context.backend == "nccl"

    def _do(self, step: str, *args: Value) -> list[ast.stmt]:
        return self._written([Do(call=call(step, *args))], both=False)

    def _value(self, *values: Value) -> ast.expr:
        """One expression, or several as a tuple."""
        made = [s.value for v in values for s in self._written([Do(call=v)], both=False)]  # type: ignore[attr-defined]
        return made[0] if len(made) == 1 else ast.Tuple(made, ast.Load())

    def _synchronised(self) -> list[ast.stmt]:
        if not self._gpus:
            return []
        return self._written([Do(call=call("torch.cuda.synchronize"))], both=False)

    def _written(self, statements: Sequence[Statement], *, both: bool) -> list[ast.stmt]:
        writer = Writer(both=both)
        made = writer.statements(statements)
        self._imports.update(writer.imports)
        if self._gpus:
            return made
        return [Substitute({"device": CPU}).visit(statement) for statement in made]

    def _judged(self) -> list[ast.stmt]:
        verdict = Do(call=call(f"{_QUOTED}.verdict", Variable("wrong"), Variable("rank")))
        return self._written([*self.evidence.judge, verdict], both=False)

    def _keep(self) -> tuple[Do, ...]:
        if self.prints:
            loss = call(".detach", Variable("loss"))
            return (Do(call=call(".append", Variable("kept"), loss)),)
        return self.evidence.each_forward

    def _recipe(self, case: CaseSpec) -> Recipe:
        recipe = lower(
            anatomy(case),
            loads_state=self.evidence.loads_state and not self.prints,
            keep=self._keep(),
        )
        main = with_last(recipe.main, () if self.prints else self.evidence.before_last)
        given = replace(recipe, main=main)
        return given if self.reads else without_results(given, self._looked())

    def _main(self, case: CaseSpec, *, both: bool) -> list[ast.stmt]:
        """All that trains, with what is called more than once in functions of its own."""
        recipe = self._recipe(case)
        mixed = both and any(
            isinstance(s, Do) and s.who == "both" for s in recipe.procedure("shard").body
        )
        again = called_again(recipe)
        inside: list[Statement] = []
        for statement in recipe.main:
            if makes(statement, "mesh"):
                continue  # one for the whole script; see `_setup`
            if both and "shard" in again:
                if mixed:
                    statement = told(statement)
                elif isinstance(statement, Do) and calls(statement, "recipe.shard"):
                    statement = replace(statement, who="fsdp")
            inside.append(statement)
            if calls(statement, "recipe.build"):
                inside += self.evidence.built
        main, forward = forwards([*self._first(), *repeated(inside)], self._needed())
        statements: list[Statement] = []
        for statement in main:
            statements += inlined(recipe, statement, again)
        for name in again:
            self._function(recipe.procedure(name), fsdp=mixed and name == "shard")
        if forward is not None:
            self._function(forward, fsdp=False)
        if self._keep():
            kept = Do(call=Items("list", ()), into=(Variable("kept"),))
            at = next(i for i, s in enumerate(statements) if not isinstance(s, Do))
            statements.insert(at, kept)
        return self._written(statements, both=both)

    def _looked(self) -> set[str]:
        """The variables that are looked at."""
        evidence = self.evidence
        looked = [*evidence.seen, evidence.right]
        looked += [do.call for do in (*self._keep(), *evidence.judge)]
        return {v.name for value in looked for v in values(value) if isinstance(v, Variable)}

    def _needed(self) -> list[str]:
        """What of a forward is looked at afterwards, its loss included."""
        looked = self._looked()
        return [name for name in ("x", "output") if name in looked] + ["loss"]

    def _first(self) -> tuple[Do, ...]:
        return () if self.evidence.against else self.evidence.first

    def _training(self) -> list[ast.stmt]:
        """FSDP's alone, in float32."""
        made = self._main(self.case, both=False)
        return [single(statement) for statement in made]

    def _function(self, procedure: Procedure, *, fsdp: bool) -> None:
        """A procedure as a function of the script; ``fsdp`` says that it has to be told who."""
        if any(
            isinstance(f, ast.FunctionDef) and f.name == procedure.name for f in self._functions
        ):
            return
        body = self._written(procedure.body, both=fsdp)
        parameters = [*procedure.parameters, *(["fsdp"] if fsdp else [])]
        if not self._reference:
            body = [single(statement) for statement in body]
            parameters = [p for p in parameters if p != "dtype"]
        result = ast.parse(procedure.result, mode="eval").body
        self._functions.append(function(procedure.name, parameters, body, result))

    @property
    def _reference(self) -> bool:
        return self.evidence.against == "reference"

    def _against_reference(self) -> list[ast.stmt]:
        evidence = self.evidence
        body = self._main(self.case, both=True)
        seen = self._value(*evidence.seen)
        expected = seen if evidence.right is None else self._value(evidence.right)
        fsdp = ast.Name("fsdp", ast.Load())
        right = right_in(anatomy(self.case), self.context.backend)
        dtypes = [ast.parse(f"torch.{name}", mode="eval").body for name in ("float32", right)]
        put = ast.Assign([ast.Name("dtype", ast.Store())], ast.IfExp(fsdp, *dtypes))
        made = [put, *ended(body, seen, expected)]
        train = function("train", ("fsdp",), made, None)
        return [train, *self._both("fsdp"), *self._judged()]

    def _against_case(self) -> list[ast.stmt]:
        usual = [single(s) for s in self._main(self.usual or self.case, both=False)]
        own = [single(s) for s in self._main(self.case, both=False)]
        seen = self._value(*self.evidence.seen)
        body = [*side_by_side(usual, own, "variant"), ast.Return(seen)]
        train = function("train", ("variant",), body, None)
        return [train, *self._both("variant"), *self._judged()]

    def _both(self, flag: str) -> list[ast.stmt]:
        other = self.evidence.other.name
        own = ", ".join(variable.name for variable in self.evidence.into)
        return ast.parse(f"{other} = train({flag}=False)\n{own} = train({flag}=True)").body

    def _raises(self) -> list[ast.stmt]:
        name, fragment = signature_of(self.finding)
        error = Variable("error")
        handler: list[ast.stmt] = []
        if fragment:
            about = self._written(
                [Do(call=call(f"{_QUOTED}.is_about", error, fragment))], both=False
            )[0]
            if isinstance(about, ast.Expr):
                test = ast.UnaryOp(ast.Not(), about.value)
                handler.append(ast.If(test, [ast.Raise()], []))
        handler += self._do(f"{_QUOTED}.raised", Variable("rank"), error)
        tried = [*self._training(), *self._synchronised()]
        if self.reads:
            tried += self._written(self.evidence.reads, both=False)
        caught = ast.ExceptHandler(ast.Name(name, ast.Load()), "error", handler)
        return [
            ast.Try(tried, [caught], [], []),
            *self._do(f"{_QUOTED}.passed", Variable("rank")),
        ]

    def _order_error(self) -> list[ast.stmt]:
        text = ast.parse('f"{type(error).__name__}: {error}"', mode="eval").body
        put = ast.Assign([ast.Name("text", ast.Store())], text)
        caught = ast.ExceptHandler(ast.Name("Exception", ast.Load()), "error", [put])
        return [
            *self._do(f"{_QUOTED}.watch", self.context.patience),
            *ast.parse('text = "no error"').body,
            ast.Try(self._training(), [caught], [], []),
            *self._do(
                f"{_QUOTED}.told_of_order",
                Variable("rank"),
                Variable("text"),
                f"RuntimeError: {ORDER_ERROR}",
            ),
        ]


def _alone(case: CaseSpec) -> CaseSpec:
    return msgspec.structs.replace(case, twins=())


def _plan_at(a: Anatomy, finding: Finding) -> Anatomy:
    """With the plan under which the finding shows."""
    return a.at(finding.op) if finding.op >= 0 else a.last


def _trained(program: tuple[Op, ...]) -> tuple[Op, ...]:
    """The program up to the last backward, or step, if there is any: then units are sharded."""
    ends = [i for i, op in enumerate(program) if op.gives_gradients or op.steps_optimizer]
    return program[: ends[-1] + 1] if ends else program


def _asks(recipe: Recipe) -> bool:
    """Whether any module asks its caller to recompute it."""
    bodies = [recipe.main, *(procedure.body for procedure in recipe.procedures)]
    return any(
        isinstance(statement, Do) and getattr(statement.call, "function", "") == _ASKS
        for body in bodies
        for statement in walk(body)
    )
