"""The drawing of a case: a tree of the model, and the rest in a few lines below it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdpfuzz.case import DIMENSIONS, CaseSpec, anatomy, digest, foreseen_rejections
from fsdpfuzz.show._sketch import Mark, ModuleSketch, ParameterSketch, sketch
from fsdpfuzz.show._words import plan_words, program_lines, variant_words

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

PLAIN_WIDTH = 100
INLINE_PARAMETERS = 3
"""A module with more parameters than this has each on a line of its own."""

ORDER = (
    *("program", "inputs", "optimizer", "sharding", "ranks"),
    *("loss", "debug", "probes", "variant"),
)
"""The labels in the order in which they are read best; any other comes after them."""

STYLES = {
    "name": "bold",
    "kind": "",
    "shape": "dim",
    "unit": "bold cyan",
    "checkpoint": "magenta",
    "frozen": "blue",
    "tied": "yellow",
    "unused": "red",
    "held_out": "yellow",
    "ignored": "red",
    "label": "dim",
    "rejection": "yellow",
}


def draw(case: CaseSpec, width: int = PLAIN_WIDTH) -> str:
    """The drawing as plain text without colour; the same text for the same case, always."""
    import io

    from rich.console import Console

    console = Console(
        file=io.StringIO(),
        width=width,
        color_system=None,
        legacy_windows=False,
        force_terminal=False,
        force_jupyter=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    with console.capture() as captured:
        console.print(case_tree(case))
        for line in fact_texts(case):
            console.print(line, soft_wrap=True)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def case_tree(case: CaseSpec) -> Tree:
    """The model as a tree: modules, shapes, and what was done to each."""
    from rich.tree import Tree

    root = sketch(case)
    tree = Tree(_module_text(root), guide_style="dim", highlight=False)
    _grow(tree, root)
    return tree


def fact_texts(case: CaseSpec) -> list[Text]:
    """What the tree does not show, one line each with its label in front."""
    from rich.text import Text

    lines = []
    last = ""
    for label, value in facts(case):
        style = STYLES["rejection"] if label == "refused" else ""
        shown = "" if label == last else label
        lines.append(Text.assemble((f"{shown:<11}", STYLES["label"]), (value, style)))
        last = label
    return lines


def facts(case: CaseSpec) -> list[tuple[str, str]]:
    """Label and value of everything about a case but its model; a label may come again."""
    a = anatomy(case)
    rows = [("program", line) for line in program_lines(case.program)]
    rows.append(("sharding", plan_words(a)))
    rows += [("variant", variant_words(a, variant)) for variant in case.twins]
    rows += [fact for dimension in DIMENSIONS for fact in dimension.facts(case)]
    rows.sort(key=lambda row: ORDER.index(row[0]) if row[0] in ORDER else len(ORDER))
    rows.append(("digest", f"{digest(case)}, seed {case.seed}"))
    rows += [("refused", f"{r.why} ({r.name})") for r in foreseen_rejections(a)]
    return rows


def _grow(tree: Tree, module: ModuleSketch) -> None:
    if not _is_inline(module):
        for parameter in module.parameters:
            tree.add(_parameter_text(parameter))
    for child in module.children:
        _grow(tree.add(_module_text(child)), child)


def _is_inline(module: ModuleSketch) -> bool:
    return len(module.parameters) <= INLINE_PARAMETERS


def _module_text(module: ModuleSketch) -> Text:
    from rich.text import Text

    text = Text.assemble((module.name, STYLES["name"]), " ", (module.kind, STYLES["kind"]))
    for mark in module.marks:
        _put_mark(text, mark)
    if _is_inline(module):
        for i, parameter in enumerate(module.parameters):
            text.append(", " if i else "  ")
            text.append_text(_parameter_text(parameter))
    if module.buffers:
        text.append(f"{', ' if module.parameters and _is_inline(module) else '  '}")
        text.append(f"buffer {', '.join(module.buffers)}", STYLES["shape"])
    return text


def _parameter_text(parameter: ParameterSketch) -> Text:
    from rich.text import Text

    text = Text.assemble(parameter.name, " ", (parameter.shape, STYLES["shape"]))
    for i, mark in enumerate(parameter.marks):
        text.append(", " if i else " (")
        text.append(mark.text, STYLES[mark.kind])
    return text.append(")") if parameter.marks else text


def _put_mark(text: Text, mark: Mark) -> None:
    text.append("  ")
    text.append(f"[{mark.text}]", STYLES[mark.kind])
