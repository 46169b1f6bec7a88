"""Puts a script together."""

from __future__ import annotations

import builtins
import re

from fsdpfuzz.repro._aim import Aim, aim_at
from fsdpfuzz.repro._checks import KEPT, check_text
from fsdpfuzz.repro._context import Context
from fsdpfuzz.repro._header import header
from fsdpfuzz.repro._imports import import_block
from fsdpfuzz.repro._layout import STEP, WIDTH, flat, indented, statement
from fsdpfuzz.repro._model import changes, model_text
from fsdpfuzz.repro._program import Manner, ProgramText, program_text
from fsdpfuzz.repro._quote import quote
from fsdpfuzz.repro._state import functions, taken
from fsdpfuzz.repro._structure import CheckText
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
    'print(f"rank {rank}:", "\\n".join(wrong) or "not reproduced", flush=True)',
    "dist.barrier()",
    "os._exit(1 if wrong else 0)  # gloo's threads can abort an ordinary exit",
)
_END = (
    'print(f"rank {rank}: not reproduced", flush=True)',
    "dist.barrier()",
    "os._exit(0)  # gloo's threads can abort an ordinary exit",
)
_SYNCHRONISE = ("if cuda:", "    torch.cuda.synchronize()")
_AVERAGES = "if not fsdp:"
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
    def __init__(self, aim: Aim, finding: Finding | None, context: Context) -> None:
        self.aim, self.case = aim, aim.case
        self.finding, self.context = finding, context
        self.checks: CheckText = check_text(aim, finding)
        # What trains stands in a function or in a try, and FSDP's part there under an if.
        depth = 1 if aim.reference or aim.kind == "raises" else 0
        inside = depth + aim.reference if not taken(self.case) else 1
        manner = Manner(reference=aim.reference, keep=KEPT.get(aim.kind, ""))
        self.program: ProgramText = program_text(self.case, manner, depth)
        self.shard: Lines = sharded(self.case, inside)
        self.replica: Lines = checkpointed(self.case, 2) if recomputes(self.case) else Lines()
        called = [*self.program.lines, *self.program.functions, *self.checks.lines]
        self.state: Lines = functions(self.case, "\n".join(called))
        precise = all(unit.precision is None for unit in self.case.plan.units)
        self.model = model_text(
            self.case, in_attribute(self.case), two_dtypes=aim.reference and precise
        )
        self.depth = depth

    def lines(self) -> list[str]:
        recomputed = in_attribute(self.case)
        classes = quote(self.model.classes, recomputed=bool(recomputed))
        body = [*self._setup(), *classes, *self._helpers(), *self.program.functions]
        functions = len(body) > len(self._setup())
        if self.aim.reference:
            body += ["", "", *self._train(), "", "", *self.checks.lines, *_VERDICT]
        else:
            body += ["", *([""] if functions else []), *self._alone()]
        parts = (self.checks, self.program, self.shard, self.replica, self.state)
        needed = {name for part in parts for name in part.imports}
        return [*import_block(body, needed), "", *body]

    def _setup(self) -> list[str]:
        level = self.case.debug_level
        debug = [f"dist.set_debug_level(dist.DebugLevel.{level})"] if level != "OFF" else []
        mesh = [_MESH] if isinstance(self.case.plan, Fsdp2Plan) else []
        return [*_SETUP, *mesh, *debug]

    def _helpers(self) -> list[str]:
        """Functions where more than the training builds a model."""
        if not self._builds_more:
            return []
        build = [*self._construction("dtype", 1), "return model"]
        lines = ["", "", "def build(dtype):", *indented(build)]
        if taken(self.case):
            lines += ["", "", "def shard(model):", *indented([*self.shard.lines, "return model"])]
        return lines + self.state.lines

    @property
    def _builds_more(self) -> bool:
        return bool(taken(self.case)) or any("build(" in line for line in self.checks.lines)

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
        lines += ["if fsdp:", *indented([*self._sharding(), *self.checks.sharded])]
        if self.replica.lines:
            lines += ["else:", *indented(self.replica.lines)]
        seen = ["if fsdp:", *indented(self.checks.seen)] if self.checks.seen else []
        program, averaging = list(self.program.lines), list[str]()
        if seen and _AVERAGES in program:
            # The last thing that the program does, and only for the reference.
            at = program.index(_AVERAGES)
            if all(line.startswith(STEP) for line in program[at + 1 :]):
                averaging = [line.removeprefix(STEP) for line in program[at + 1 :]]
                del program[at:]
        lines += [*program, *self.checks.lines_before, *seen, *averaging]
        return ["def train(fsdp):", *indented([*lines, *self.checks.right])]

    def _sharding(self) -> list[str]:
        return ["model = shard(model)"] if taken(self.case) else self.shard.lines

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
            case "hang":
                patience = f"{self.context.patience:g}"
                return [
                    f"faulthandler.dump_traceback_later({patience}, exit=True)  # then it hangs",
                    *self._run(),
                    *_SYNCHRONISE,
                    "faulthandler.cancel_dump_traceback_later()",
                    *_END,
                ]
            case "death":
                return [*self._run(), *_SYNCHRONISE, *_END]
            case _:
                return [*self._run(), "", *self.checks.lines, *_VERDICT]

    def _run(self) -> list[str]:
        more = self._builds_more
        lines = ["model = build(torch.float32)"] if more else self._construction("", self.depth)
        return [*lines, *self._sharding(), *self.program.lines]

    def _raises(self) -> list[str]:
        name, fragment = _signature(self.finding)
        return [
            "try:",
            *indented([*self._run(), *_SYNCHRONISE]),
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
