"""The import statements of a script."""

from __future__ import annotations

from collections.abc import Mapping

from fsdpfuzz.case import Imported
from fsdpfuzz.repro.layout import WIDTH

_PART = "own"
"""What a script calls the class of a target."""


def import_lines(imports: Mapping[str, tuple[str, str]]) -> list[str]:
    """Sorted as import sorters do: the standard library first, then torch, plain imports first."""
    plain: list[tuple[str, str]] = []
    from_: dict[str, list[str]] = {}
    for name, (module, what) in imports.items():
        if not what:
            plain.append((module, "" if name == module else name))
        else:
            from_.setdefault(module, []).append(what if what == name else f"{what} as {name}")
    groups: dict[bool, list[str]] = {False: [], True: []}
    for module, alias in sorted(plain):
        line = f"import {module} as {alias}" if alias else f"import {module}"
        groups[_is_torch(module)].append(line)
    for module, names in sorted(from_.items()):
        groups[_is_torch(module)] += _from(module, _sorted(names))
    standard, others = groups[False], groups[True]
    return [*standard, *([""] if standard and others else []), *others]


def own_imports(imports: dict[str, tuple[str, str]], own: Imported, folder: str) -> list[str]:
    """Takes what comes from a target out of the imports; the lines that import it.

    ``folder`` is where the target lies; empty where nobody knows.
    """
    mine = {
        name: (module.removeprefix(own.module_name).lstrip("."), what)
        for name, (module, what) in imports.items()
        if module == own.module_name or (own.part and module == f"{own.module_name}.{own.part}")
    }
    for name in mine:
        del imports[name]
    # After all other imports: what is put into sys.path must not decide which torch is imported.
    lines = [""]
    if folder:
        imports["sys"] = ("sys", "")
        lines.append(f"sys.path.insert(0, {folder!r})  # where {own.target} lies")
    names = [
        what if what == name else f"{what} as {name}" for name, (p, what) in mine.items() if not p
    ]
    held = sorted((name, f"{_PART}.{what}") for name, (part, what) in mine.items() if part)
    names += [f"{own.part} as {_PART}"] if held else []
    lines += _from(own.module_name, sorted(names))
    return [*lines, *([""] if held else []), *(f"{name} = {value}" for name, value in held)]


def _from(module: str, names: list[str]) -> list[str]:
    """One line; what has another name here gets one of its own where they do not fit in."""
    renamed = [name for name in names if " as " in name]
    own = [name for name in names if " as " not in name]
    joint = f"from {module} import {', '.join(names)}"
    if len(joint) <= WIDTH or not own or not renamed:
        return [joint]
    return [
        f"from {module} import {', '.join(own)}",
        *(f"from {module} import {r}" for r in renamed),
    ]


def _is_torch(module: str) -> bool:
    return module.partition(".")[0] == "torch"


def _sorted(names: list[str]) -> list[str]:
    """Constants, classes, functions."""

    def key(name: str) -> tuple[int, str]:
        own = name.partition(" ")[0].lstrip("_")
        return (0 if own.isupper() else 1 if own[:1].isupper() else 2, name)

    return sorted(names, key=key)
