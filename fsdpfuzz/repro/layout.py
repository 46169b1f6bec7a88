"""Source as a person would lay it out."""

from __future__ import annotations

import ast
import re

from fsdpfuzz.repro.source import BEHIND, COMMENTS, bodies_of

WIDTH = 100
_MARK = "⁂"
_AFTER_CLASS = re.compile(r"^(class .*:\n)\n", re.MULTILINE)
_MARKED = re.compile(rf"""^(\s*)('|"|\"\"\"){_MARK}(.*)\2$""")


def source(statements: list[ast.stmt]) -> str:
    """The text of statements, with the comments that hang on them."""
    # A tree has no comments, and unparsing none to write: they pass through it as marked strings.
    module = ast.Module([_commented(s) for s in _flat(_unchained(statements, 0))], [])
    text = ast.unparse(ast.fix_missing_locations(module))
    out: list[str] = []
    for line in text.splitlines():
        found = _MARKED.match(line)
        if found is None:
            out.append(line)
            continue
        indent, comment = found[1], found[3].replace("\\'", "'")
        if not comment.startswith(BEHIND):
            out.append(f"{indent}{comment}")
        elif len(out[-1]) + 2 + len(comment) <= WIDTH + len(BEHIND):
            out[-1] += f"  {comment.removeprefix(BEHIND)}"
        else:
            out.insert(-1, f"{indent}{comment.removeprefix(BEHIND)}")
    return "\n".join(out)


def laid_out(text: str) -> str:
    """The text in lines of at most `WIDTH` characters, as far as it can be broken."""
    import black

    # What unparsing puts before each function, formatters keep.
    text = _AFTER_CLASS.sub(r"\1", text)
    return black.format_str(text, mode=black.Mode(line_length=WIDTH))


def _unchained(statements: list[ast.stmt], indent: int) -> list[ast.stmt]:
    """``model = LONG.to(...)`` as two statements, where one would not fit into a line."""
    out: list[ast.stmt] = []
    for statement in statements:
        for body in bodies_of(statement):
            body[:] = _unchained(body, indent + 4)
        match statement:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(func=ast.Attribute(value=ast.Call() as made, attr="to")) as call,
            ) if indent + len(ast.unparse(ast.fix_missing_locations(statement))) > WIDTH:
                first = ast.Assign(statement.targets, made)
                setattr(first, COMMENTS, getattr(statement, COMMENTS, []))
                moved = ast.Call(
                    ast.Attribute(ast.Name(name, ast.Load()), "to", ast.Load()),
                    call.args,
                    call.keywords,
                )
                # Modules move in place, tensors do not.
                out += [first, ast.Assign(statement.targets, moved)]
            case _:
                out.append(statement)
    return out


def _flat(statements: list[ast.stmt]) -> list[ast.stmt]:
    """Statements, each between the comments above and behind it."""
    out: list[ast.stmt] = []
    for statement in statements:
        comments = getattr(statement, COMMENTS, [])
        out += [_marked(comment) for comment in comments if not comment.startswith(BEHIND)]
        out.append(statement)
        out += [_marked(comment) for comment in comments if comment.startswith(BEHIND)]
    return out


def _marked(comment: str) -> ast.stmt:
    return ast.Expr(ast.Constant(f"{_MARK}{comment}"))


def _commented(statement: ast.stmt) -> ast.stmt:
    for body in bodies_of(statement):
        body[:] = [_commented(s) for s in _flat(body)]
    return statement
