"""Mutants of Python source: one small change each, at a place where it may change what the code does."""

from __future__ import annotations

import ast
import copy
import hashlib
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.source_tree import Function, dotted, last_name

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
}
_SWAPPED_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum", "maximum": "minimum"}
_COMPILERS = {"kernel", "inlined", "njit", "jit", "vectorize"}
_NOT_MUTATED = {"__repr__", "__str__", "check_invariants"}
_WITHOUT_EFFECT = ("logging.", "logger.", "log.", "_log.", "warnings.", "prefetch")


@dataclass(frozen=True)
class Mutant:
    """One small change of one source file."""

    file: str
    line: int
    operator: str
    function: str
    """Qualified name of the function or class that contains the change; empty in the body of a module."""
    kernel: bool
    """Whether the function is compiled, so that coverage does not see its lines."""
    start: int
    """Offset of the replaced text in the file, in bytes."""
    end: int
    text: str
    """The text that replaces the bytes from ``start`` to ``end``."""

    @property
    def id(self) -> str:
        """Ten hexadecimal digits that identify the mutant."""
        return hashlib.sha1(f"{self.file}:{self.start}:{self.end}:{self.text}".encode()).hexdigest()[:10]

    def applied(self, source: bytes) -> bytes:
        """Return the file's text with the change."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def mutants_of(file: str, source: bytes) -> list[Mutant]:
    """Return every mutant of a file, in the order of their positions.

    >>> for mutant in mutants_of("a.py", b"def f(a):\\n    return a < 2\\n"):
    ...     print(mutant.operator, mutant.applied(b"def f(a):\\n    return a < 2\\n").decode().splitlines()[1].strip())
    comparison return (a <= 2)
    comparison return (a >= 2)
    constant return a < 3
    """
    found = list(_Finder(file, source).mutants(ast.parse(source), "", False))
    return sorted(set(found), key=lambda each: (each.start, each.end, each.text))


def draw(files: Iterable[tuple[str, bytes]], count: int, seed: int) -> list[Mutant]:
    """Return up to ``count`` mutants at random, on different lines; the same for the same files and seed."""
    lines: dict[tuple[str, int], list[Mutant]] = defaultdict(list)
    for file, source in sorted(files):
        for mutant in mutants_of(file, source):
            lines[mutant.file, mutant.line].append(mutant)
    chance = random.Random(seed)
    drawn = chance.sample(sorted(lines), min(count, len(lines)))
    return [chance.choice(lines[place]) for place in drawn]


def files_of(root: Path, targets: Iterable[str]) -> list[str]:
    """Return the files that match globs such as ``src/a/*.py``, as sorted paths relative to the root, each once."""
    found: set[str] = set()
    for target in targets:
        paths = [path for path in root.glob(target) if path.is_file() and path.suffix == ".py"]
        if not paths:
            raise SystemExit(f"targets: no Python file matches {target!r} in {root}")
        found |= {path.relative_to(root).as_posix() for path in paths}
    return sorted(found)


class _Finder:
    def __init__(self, file: str, source: bytes) -> None:
        self._file, self._source = file, source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def mutants(self, node: ast.AST, function: str, kernel: bool) -> Iterator[Mutant]:
        """Yield the mutants of a syntax-tree node and of all nodes below it."""
        if isinstance(node, Function):
            if node.name in _NOT_MUTATED or any(last_name(each) == "overload" for each in node.decorator_list):
                return
            kernel = kernel or any(last_name(each) in _COMPILERS for each in node.decorator_list)
        if isinstance(node, Function | ast.ClassDef):
            function = f"{function}.{node.name}" if function else node.name
        if isinstance(node, ast.stmt | ast.expr):
            for operator, start, end, text in self._changes(node):
                yield Mutant(self._file, node.lineno, operator, function, kernel, start, end, text)
        for child in self._children(node):
            yield from self.mutants(child, function, kernel)

    def _children(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the child nodes that may be mutated, so no type hints, docstrings, error messages or assertions."""
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom | ast.arg):
            return
        if isinstance(node, ast.If) and last_name(node.test) == "TYPE_CHECKING":
            yield from node.orelse
            return
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return
        if isinstance(node, ast.Expr | ast.Call) and _without_effect(node):
            return
        if isinstance(node, ast.Call) and last_name(node.func) in ("TypeVar", "NewType", "cast", "isinstance", "zip"):
            return
        if isinstance(node, ast.Module | ast.ClassDef):  # here only functions, classes and constants
            for child in node.body:
                if isinstance(child, ast.Assign | ast.AnnAssign):
                    if child.value is not None and not any(dotted(t).startswith("__") for t in _targets(child)):
                        yield from (each for each in [child.value] if not _is_type(each))
                else:
                    yield child
            return
        if isinstance(node, Function):
            yield from [*node.args.defaults, *(each for each in node.args.kw_defaults if each is not None), *node.body]
            return
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                yield node.value
            return
        if isinstance(node, ast.keyword) and node.arg in ("dtype", "type", "strict"):
            return
        yield from ast.iter_child_nodes(node)

    def _changes(self, node: ast.stmt | ast.expr) -> Iterator[tuple[str, int, int, str]]:
        start, end = self._span(node)
        for operator, changed in [*_of_expression(node), *_of_statement(node)]:
            text = ast.unparse(changed)
            if isinstance(changed, ast.expr) and not isinstance(changed, ast.Constant | ast.Name | ast.Call):
                text = f"({text})"
            yield operator, start, end, text
        test = getattr(node, "test", None)
        if isinstance(node, ast.If | ast.While | ast.IfExp) and isinstance(test, ast.expr):
            start, end = self._span(test)
            old = ast.unparse(test)
            if not isinstance(test, ast.Constant) and last_name(test) != "TYPE_CHECKING":
                yield "condition negated", start, end, f"(not ({old}))"
                yield "condition forced", start, end, "False"
                if not isinstance(node, ast.While):
                    yield "condition forced", start, end, "True"

    def _span(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[node.end_lineno - 1] + node.end_col_offset


def _targets(node: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def _is_type(value: ast.expr) -> bool:
    """Return whether a value in the body of a module or class names a type."""
    if isinstance(value, ast.BinOp):
        return isinstance(value.op, ast.BitOr) or _is_type(value.left)
    return isinstance(value, ast.Subscript | ast.Name | ast.Attribute)


def _without_effect(node: ast.Expr | ast.Call) -> bool:
    call = node.value if isinstance(node, ast.Expr) else node
    return isinstance(call, ast.Call) and dotted(call.func).startswith(_WITHOUT_EFFECT)


def _copy(node: ast.AST, change: Callable[[ast.AST], None]) -> ast.AST:
    other = copy.deepcopy(node)
    change(other)
    return other


def _of_expression(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node, ast.Compare):
        for i, comparison in enumerate(node.ops):
            for other in _COMPARISONS[type(comparison)]:
                ops = [other() if i == j else each for j, each in enumerate(node.ops)]
                yield "comparison", ast.Compare(node.left, ops, node.comparators)
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        if not isinstance(node.left, ast.JoinedStr) and not _is_text(node.left) and not _is_text(node.right):
            yield "arithmetic", ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right)
    elif isinstance(node, ast.BoolOp):
        other_op: ast.boolop = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield "and/or", ast.BoolOp(other_op, node.values)
    elif isinstance(node, ast.UnaryOp):
        if isinstance(node.op, ast.Not | ast.Invert):
            yield "negation", node.operand
        elif isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            yield "constant", node.operand
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield "constant", ast.Constant(not node.value)
        elif isinstance(node.value, int):
            yield "constant", ast.Constant(node.value + 1)
        elif isinstance(node.value, float):
            yield "constant", ast.Constant(node.value * 2 + 1)
    elif isinstance(node, ast.Call):
        name = last_name(node.func)
        if name in _SWAPPED_CALLS and (len(node.args) > 1 or name in ("any", "all")):
            function: ast.expr
            if isinstance(node.func, ast.Attribute):
                function = ast.Attribute(node.func.value, _SWAPPED_CALLS[name])
            else:
                function = ast.Name(_SWAPPED_CALLS[name])
            yield "call swapped", ast.Call(function, node.args, node.keywords)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def _of_statement(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node, ast.Expr):
        value = node.value
        effect = isinstance(value, ast.Call) and not _without_effect(value)
        if effect or isinstance(value, ast.Yield | ast.YieldFrom):
            if isinstance(value, ast.YieldFrom | ast.Yield):  # the function stays a generator
                yield "statement dropped", ast.Expr(ast.YieldFrom(ast.Tuple([])))
            else:
                yield "statement dropped", ast.Pass()
    elif isinstance(node, ast.AugAssign):
        yield "statement dropped", ast.Pass()
        if type(node.op) in _ARITHMETIC and not _is_text(node.value):
            yield "arithmetic", ast.AugAssign(node.target, _ARITHMETIC[type(node.op)](), node.value)
    elif isinstance(node, ast.Assign):
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            yield "statement dropped", ast.Pass()
    elif isinstance(node, ast.Return) and node.value is not None:
        if isinstance(node.value, ast.Name | ast.Attribute) and not last_name(node.value).startswith("__"):
            yield "return value", ast.Return(ast.Constant(None))
    elif isinstance(node, ast.Delete):
        yield "statement dropped", ast.Pass()
    elif isinstance(node, ast.Break):
        yield "break/continue", ast.Continue()
    elif isinstance(node, ast.Continue):
        yield "break/continue", ast.Break()
