"""Every stable code that lorad can refuse something with, and the statuses that go with it: read from the sources.

A code that isn't a literal where it's raised, and isn't passed on from another refusal either, ends the scan: nobody
could look it up.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from lorad.adapters import reject as adapters_reject
from lorad.engine import refusals
from lorad.errors import KINDS, AdapterRejected, LoradError
from lorad.server.failures import HTTP_CODE, HTTP_CODES
from lorad.sources import reject as sources_reject

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "py/lorad"
CLASSES = {**KINDS, "LoradError": LoradError}
LISTED = {"lorad.adapters.reject": adapters_reject, "lorad.sources.reject": sources_reject}
"""Modules whose docstring lists the codes of their helpers, which are called with more than literals."""
SCENARIO = ("rust/lorad-py/src/simulation/errors.rs", r'^\s+"(\w+)"$|\("(config_too_\w+)",')
"""Where the simulator's codes are given, one a line; `lorad simulate` passes them on."""


class Raised(NamedTuple):
    """One code at one place."""

    code: str
    status: int
    where: str
    """The file, below the package."""


class Helper(NamedTuple):
    """A function that makes a refusal with a code that it's given."""

    kind: str
    position: int
    default: str | None


Functions = dict[str, Helper]


class Untold(Exception):
    """A code that can't be read from the source, and where it is."""


def raised() -> list[Raised]:
    """All of them."""
    modules = {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
    helpers = {_module(path): _helpers(tree) for path, tree in modules.items()}
    found = [item for path, tree in modules.items() for item in _in_module(path, tree, helpers)]
    found += [Raised(code, kind.status, "engine/refusals.py") for code, (kind, _) in refusals.KINDS.items()]
    found += [Raised(code, status, "server/failures.py") for status, code in (*HTTP_CODES.items(), (400, HTTP_CODE))]
    for name, module in LISTED.items():
        where = name.removeprefix("lorad.").replace(".", "/") + ".py"
        found += [Raised(code, AdapterRejected.status, where) for code in listed(module.__doc__)]
    return found + [Raised(code, 400, "simulate/scenario.py") for code in _of_scenarios()]


def listed(text: str | None) -> dict[str, str]:
    """Codes and meanings in a docstring that has one a line."""
    return dict(re.findall(r"^([a-z]+_\w+) {2,}(.+)$", text or "", re.MULTILINE))


def _of_scenarios() -> Iterator[str]:
    file, pattern = SCENARIO
    for groups in re.findall(pattern, (ROOT / file).read_text(), re.MULTILINE):
        yield "".join(groups)


def _module(path: Path) -> str:
    return ".".join(("lorad", *path.relative_to(PACKAGE).with_suffix("").parts))


def _helpers(tree: ast.Module) -> Functions:
    """Functions of a module that take a `code` and hand it to a class of refusals, or to such a function."""
    found: Functions = {}
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for _ in functions:  # as often as they could call each other
        for function in functions:
            names = [argument.arg for argument in function.args.args]
            if "code" not in names or function.name in found:
                continue
            kind = next((kind for kind in map(lambda call: _passes_on(call, found), _calls(function)) if kind), None)
            if kind is not None:
                position = names.index("code")
                at = position - (len(names) - len(function.args.defaults))
                default = function.args.defaults[at] if at >= 0 else None
                literal = default.value if isinstance(default, ast.Constant) else None
                found[function.name] = Helper(kind, position, literal)
    return found


def _passes_on(call: ast.Call, helpers: Functions) -> str | None:
    """The class of the refusal, if this call hands the variable `code` to one."""
    name = _name(call)
    passed = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "code")]
    if not any(isinstance(value, ast.Name) and value.id == "code" for value in passed):
        return None
    return name if name in CLASSES else helpers[name].kind if name in helpers else None


def _in_module(path: Path, tree: ast.Module, helpers: dict[str, Functions]) -> Iterator[Raised]:
    module = _module(path)
    known, origin = dict(helpers[module]), dict.fromkeys(helpers[module], module)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in helpers:
            for alias in node.names:
                if alias.name in helpers[node.module]:
                    known[alias.asname or alias.name] = helpers[node.module][alias.name]
                    origin[alias.asname or alias.name] = node.module
    where = str(path.relative_to(PACKAGE))
    for scope in [tree, *(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))]:
        for call in _calls(scope, own=True):
            name = _name(call)
            if name in CLASSES:
                value = next((keyword.value for keyword in call.keywords if keyword.arg == "code"), None)
                kind, default = name, None
            elif name in known:
                kind, position, default = known[name]
                at = call.args[position] if len(call.args) > position else None
                value = next((keyword.value for keyword in call.keywords if keyword.arg == "code"), at)
            else:
                continue
            try:
                codes = [default] if value is None and default else _literals(value, scope)
            except Untold:
                if origin.get(name) not in LISTED:
                    raise Untold(f"{where}:{call.lineno}: which code is it? {ast.unparse(call)[:100]}") from None
                codes = []
            for code in codes:
                yield Raised(code, CLASSES[kind].status, where)


def _literals(value: ast.expr | None, scope: ast.AST) -> list[str]:
    """What an expression can be; nothing for the code of another refusal, or one that the caller gives."""
    match value:
        case ast.Constant(value=str(code)):
            return [code]
        case ast.IfExp(body=one, orelse=other):
            return [*_literals(one, scope), *_literals(other, scope)]
        case ast.Attribute(attr="code") | ast.Subscript(slice=ast.Constant(value="code")):
            return []
        case ast.Name(id=name):
            if isinstance(scope, ast.FunctionDef) and name in [argument.arg for argument in scope.args.args]:
                return []
            return _assigned(name, scope)
    raise Untold


def _assigned(name: str, scope: ast.AST) -> list[str]:
    """What a variable can be: of its assignments, and of a loop over written-out tuples."""
    found: list[str] = []
    for node in ast.walk(scope):
        match node:
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                found += _literals(value, scope)
            case ast.For(target=ast.Tuple(elts=targets), iter=ast.Tuple(elts=rows)):
                names = [target.id if isinstance(target, ast.Name) else "" for target in targets]
                if name in names:
                    for row in rows:
                        if not isinstance(row, ast.Tuple):
                            raise Untold
                        found += _literals(row.elts[names.index(name)], scope)
    if not found:
        raise Untold
    return found


def _calls(scope: ast.AST, *, own: bool = False) -> Iterator[ast.Call]:
    """Calls in a scope; `own`: not those of functions within it."""
    for node in ast.iter_child_nodes(scope):
        if own and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.Call):
            yield node
        yield from _calls(node, own=own)


def _name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
