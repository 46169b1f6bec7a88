"""Puts a script together."""

from __future__ import annotations

import builtins
import re

from fsdpfuzz.invariants import ORDER_ERROR
from fsdpfuzz.repro._aim import Aim, aim_at
from fsdpfuzz.repro._checks import check_text, kept
from fsdpfuzz.repro._context import Context
from fsdpfuzz.repro._header import header
from fsdpfuzz.repro._imports import import_block
from fsdpfuzz.repro._layout import STEP, WIDTH, flat, indented, statement
from fsdpfuzz.repro._model import changes, model_text
from fsdpfuzz.repro._names import named_line
from fsdpfuzz.repro._program import Manner, ProgramText, program_text
from fsdpfuzz.repro._quote import quote
from fsdpfuzz.repro._state import functions, taken
from fsdpfuzz.repro._structure import CheckText
from fsdpfuzz.repro._twin import merged
from fsdpfuzz.repro._wrap import Lines, checkpointed, in_attribute, recomputes, sharded
from fsdpfuzz.spec import CaseSpec, Fsdp2Plan
from fsdpfuzz.verdict import Finding

_SETUP = """
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
cuda = torch.cuda.device_count() >= ranks
device = torch.device(f"cuda:{rank}" if cuda else "cpu")
torch.cuda.set_device(rank if cuda else -1)  # -1 changes nothing
dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
torch.set_num_threads(1)
""".strip().split("\n")
_MESH = "mesh = dist.init_device_mesh(device.type, (ranks,))"
_VERDICT = (
    """print(f"rank {rank}: {'; '.join(wrong) or 'not reproduced'}", flush=True)""",
    "dist.barrier()",
    "os._exit(1 if wrong else 0)  # gloo's threads can abort an ordinary exit",
)
_END = (
    'print(f"rank {rank}: not reproduced", flush=True)',
    "dist.barrier()",
    "os._exit(0)  # gloo's threads can abort an ordinary exit",
)
_SYNCHRONISE = "getattr(torch, device.type).synchronize()"
_INSIDE = ("raises", "twins", "order_error")
"""What trains within a function or a try."""
_BLIND = ("raises", "hang", "death")
"""What shows whatever the values are."""
_MAX_FRAGMENT = 60


def render(
    case: CaseSpec,
    finding: Finding | None,
    context: Context,
    *,
    print_losses: bool = False,
) -> str:
    """A standalone script that imports torch and the standard library only.

    It shows ``finding``, or without one whether FSDP trains ``case`` as the plain model
    trains. With ``print_losses`` it judges nothing and prints ``loss RANK HEX...``.
    """
    aim = aim_at(case, finding, print_losses=print_losses)
    return (
        "\n".join([*header(aim, finding, context), *_Script(aim, finding, context).lines()]) + "\n"
    )


class _Script:
    def __init__(
        self, aim: Aim, finding: Finding | None, context: Context, *, is_usual: bool = False
    ) -> None:
        self.aim, self.case = aim, aim.case
        self.finding, self.context = finding, context
        self.checks: CheckText = check_text(aim, finding)
        # What trains stands in a function or in a try, and FSDP's part there under an if.
        depth = 1 if aim.reference or aim.kind in _INSIDE else 0
        inside = depth + (aim.reference or aim.kind == "twins") if not taken(self.case) else 2
        manner = Manner(reference=aim.reference, keep=kept(aim, finding))
        self.program: ProgramText = program_text(self.case, manner, depth)
        self.shard: Lines = sharded(self.case, inside)
        self.replica: Lines = checkpointed(self.case, 2) if recomputes(self.case) else Lines()
        self.usual: _Script | None = None
        if aim.usual is not None and not is_usual:
            pair = Aim(aim.kind, aim.usual, aim.case)
            self.usual = _Script(pair, finding, context, is_usual=True)
        self._name_what_is_kept_once(manner.keep)
        called = [*self.program.lines, *self.program.functions, *self.checks.lines]
        self.state: Lines = functions(self.case, "\n".join(called), values=aim.kind not in _BLIND)
        precise = all(unit.precision is None for unit in self.case.plan.units)
        self.recomputed = in_attribute(self.case) | in_attribute(aim.usual or self.case)
        self.model = model_text(self.case, self.recomputed, two_dtypes=aim.reference and precise)
        self.depth = depth

    def _name_what_is_kept_once(self, keep: str) -> None:
        """A state dict that is taken once needs no list to be kept in."""
        append = f"kept.append({keep})"
        lines = self.program.lines
        where = [i for i, line in enumerate(lines) if line.strip() == append]
        if keep not in ("state", "loaded") or len(where) != 1 or self.program.loops:
            return
        self.program.lines = [line for line in lines if line.strip() not in (append, "kept = []")]
        for part in (self.checks.lines, self.checks.seen, self.checks.right):
            part[:] = [line.replace("kept[-1]", keep).replace("kept[0]", keep) for line in part]

    def lines(self) -> list[str]:
        classes = quote(self.model.classes, recomputed=bool(self.recomputed))
        body = [*self._setup(), *classes, *self._helpers()]
        body += self.program.functions if self._shares_functions else []
        functions = len(body) > len(self._setup())
        if self.aim.reference:
            body += ["", "", *self._train(), "", "", *self.checks.lines, *_VERDICT]
        else:
            body += ["", *([""] if functions else []), *self._alone()]
        needed = self._needed() | (self.usual._needed() if self.usual is not None else set())
        return [*import_block(body, needed), "", *body]

    @property
    def _shares_functions(self) -> bool:
        return self.usual is None or self.usual.program.functions == self.program.functions

    def _needed(self) -> set[str]:
        parts = (self.checks, self.program, self.shard, self.replica, self.state)
        return {name for part in parts for name in part.imports}

    def _setup(self) -> list[str]:
        level = self.case.debug_level
        debug = [f"dist.set_debug_level(dist.DebugLevel.{level})"] if level != "OFF" else []
        mesh = [_MESH] if isinstance(self.case.plan, Fsdp2Plan) else []
        return [*_SETUP, *mesh, *debug]

    def _helpers(self) -> list[str]:
        """Functions where more than the training builds a model."""
        if not self._builds_more:
            return []
        build = _returning(self._construction("dtype", 1))
        lines = ["", "", "def build(dtype):", *indented(build)]
        if self._restores:
            lines += ["", "", "def shard(model):", *indented(_returning(self.shard.lines))]
        return lines + self.state.lines

    @property
    def _builds_more(self) -> bool:
        return self._restores or any("build(" in line for line in self.checks.lines)

    @property
    def _restores(self) -> bool:
        """Whether a state dict is loaded into another model."""
        return any("restored" in line for line in self.program.lines)

    def _construction(self, dtype: str, depth: int) -> list[str]:
        target = f"device, {dtype}" if dtype else "device"
        expression = self.model.expression
        lines = [f"torch.manual_seed({self.case.seed})"]
        if len(flat(expression)) + len(f"model = .to({target})") + depth * len(STEP) <= WIDTH:
            lines.append(f"model = {flat(expression)}.to({target})")
        else:
            lines += [*statement("model = ", expression, depth=depth), f"model.to({target})"]
        return lines + changes(self.case, depth)

    def _train(self) -> list[str]:
        """A function that trains both the reference and FSDP."""
        lines = ["dtype = torch.float32 if fsdp else torch.float64"]
        lines += ["model = build(dtype)"] if self._builds_more else self._construction("dtype", 1)
        sharding = [*self._sharding(), *self.checks.sharded]
        lines += merged(self.replica.lines, sharding, "fsdp")
        lines += self._named()
        seen = ["if fsdp:", *indented(self.checks.seen)] if self.checks.seen else []
        lines += [*self.program.lines, *self.checks.lines_before, *seen]
        lines = _without_repeated_tests([*lines, *self.checks.right], "if fsdp:")
        return ["def train(fsdp):", *indented(lines)]

    def _sharding(self) -> list[str]:
        return ["model = shard(model)"] if self._restores else self.shard.lines

    def _alone(self) -> list[str]:
        """A script without a reference."""
        match self.aim.kind:
            case "losses":
                return [
                    *self._run(),
                    'print("loss", rank, *(loss.item().hex() for loss in kept))',
                    "dist.destroy_process_group()",
                ]
            case "raises":
                return self._raises()
            case "order_error":
                return self._order_error()
            case "twins" if self.usual is not None:
                own = not self._shares_functions
                both = merged(self.usual.trained(own), self.trained(own), "twin")
                train = ["def train(twin):", *indented(both)]
                return ["", *train, "", "", *self.checks.lines, *_VERDICT]
            case "hang":
                patience = f"{self.context.patience:g}"
                return [
                    f"faulthandler.dump_traceback_later({patience}, exit=True)  # then it hangs",
                    *self._run(),
                    _SYNCHRONISE,
                    "faulthandler.cancel_dump_traceback_later()",
                    *_END,
                ]
            case "death":
                return [*self._run(), _SYNCHRONISE, *_END]
            case _:
                return [*self._run(), "", *self.checks.lines, *_VERDICT]

    def _run(self) -> list[str]:
        more = self._builds_more
        lines = ["model = build(torch.float32)"] if more else self._construction("", self.depth)
        lines += self._sharding()
        if more and self._restores:
            lines = ["model = shard(build(torch.float32))"]
        lines += [*self.checks.sharded, *self._named()]
        return [*self.checks.first, *lines, *self.program.lines]

    def _named(self) -> list[str]:
        """Keeps the parameters by name if the check needs them and the program does not do so."""
        named = named_line(self.case)
        return [named] if self.checks.named and named not in self.program.lines else []

    def trained(self, functions: bool) -> list[str]:
        """The body of a function that trains and returns what a check compares."""
        own = [line for line in self.program.functions if line] if functions else []
        return [*own, *self._run(), *self.checks.seen]

    def _order_error(self) -> list[str]:
        return [
            f"faulthandler.dump_traceback_later({self.context.patience:g}, exit=True)",
            'text = "no error"',
            "try:",
            *indented(self._run()),
            "except Exception as error:",
            '    text = f"{type(error).__name__}: {error}"',
            "faulthandler.cancel_dump_traceback_later()",
            f'right = text.startswith("RuntimeError: {ORDER_ERROR}")',
            'verdict = "not reproduced" if right else f"reproduced: {text}"',
            'print(f"rank {rank}: {verdict}", flush=True)',
            "time.sleep(1)  # what this rank has sent may be on its way still",
            "os._exit(0 if right else 1)",
        ]

    def _raises(self) -> list[str]:
        name, fragment = _signature(self.finding)
        return [
            "try:",
            *indented([*self._run(), _SYNCHRONISE]),
            f"except {name} as error:",
            *(
                [f"    if {_quoted(fragment)} not in str(error):", "        raise"]
                if fragment
                else []
            ),
            '    print(f"rank {rank}: reproduced: {type(error).__name__}: {error}", flush=True)',
            "    os._exit(1)  # the other ranks may wait for this one",
            *_END,
        ]


def _without_repeated_tests(lines: list[str], test: str) -> list[str]:
    """Blocks under the same test that follow each other, as one."""
    kept: list[str] = []
    under = ""
    for line in lines:
        if line == test and under == test:
            continue
        kept.append(line)
        if not line.startswith(STEP):
            under = line
    return kept


def _returning(lines: list[str]) -> list[str]:
    """The statements, with a return of ``model``, of its value if the last line makes it."""
    if lines and lines[-1].startswith("model = "):
        return [*lines[:-1], f"return {lines[-1].removeprefix('model = ')}"]
    if lines and lines[-1].startswith("fully_shard(model, "):
        return [*lines[:-1], f"return {lines[-1]}"]
    return [*lines, "return model"]


def _signature(finding: Finding | None) -> tuple[str, str]:
    """The exception's type, as far as it is built in, and a part of its message without numbers."""
    message = finding.message if finding else ""
    first = message.partition("\n")[0]
    name, _, text = first.partition(": ")
    if not name.isidentifier():
        return "Exception", ""
    kind = getattr(builtins, name, None)
    known = isinstance(kind, type) and issubclass(kind, BaseException)
    pieces = re.split(r"0x[0-9a-f]+|\d+|'[^']*'|\"[^\"]*\"", text)
    longest = max((piece.strip() for piece in pieces), key=len, default="")
    return (name if known else "Exception"), longest[:_MAX_FRAGMENT]


def _quoted(text: str) -> str:
    """A string literal, in double quotes as formatters prefer."""
    literal = repr(text)
    return f'"{literal[1:-1]}"' if literal[0] == "'" and '"' not in text else literal
