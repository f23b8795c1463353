"""Modules, classes and imports of a source tree, read with ``ast``; nothing is imported or run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef

_PLAIN_BASES = {"NamedTuple", "TypedDict", "Protocol", "Enum", "IntEnum", "StrEnum", "Flag", "IntFlag"}


@dataclass(eq=False)
class Module:
    """One file of a tree."""

    name: str
    path: Path
    text: str
    body: ast.Module
    is_package: bool

    @property
    def lines(self) -> int:
        """Length of the file in lines."""
        return self.text.count("\n") + (not self.text.endswith("\n") and bool(self.text))

    @property
    def package(self) -> str:
        """Dotted name of the package at which relative imports begin."""
        return self.name if self.is_package else self.name.rpartition(".")[0]


@dataclass(eq=False)
class Class:
    """One class of a tree: what it declares, and its bases within the tree."""

    name: str
    module: Module
    node: ast.ClassDef
    bases: list[Class] = field(default_factory=list)
    state: set[str] = field(default_factory=set)
    methods: set[str] = field(default_factory=set)
    types: dict[str, str] = field(default_factory=dict)
    """Class names of the state attributes, by attribute, where the source declares them."""
    plain: bool = False
    """Whether the class is plain data: a dataclass, named tuple, enum or protocol, or derived from one."""

    @property
    def where(self) -> str:
        """File and line of the ``class`` statement."""
        return f"{self.module.path}:{self.node.lineno}"

    def lineage(self) -> list[Class]:
        """Return the class and all its ancestors within the tree, each once."""
        found: dict[int, Class] = {}

        def add(each: Class) -> None:
            if id(each) not in found:
                found[id(each)] = each
                for base in each.bases:
                    add(base)

        add(self)
        return list(found.values())

    @property
    def depth(self) -> int:
        """Number of classes in the longest chain of inheritance that ends here; 1 if no base is in the tree."""
        return 1 + max((base.depth for base in self.bases), default=0)

    @property
    def all_state(self) -> set[str]:
        """Names of the state attributes, inherited ones included."""
        return set().union(*(each.state for each in self.lineage()))

    @property
    def all_methods(self) -> set[str]:
        """Names of the methods and properties, inherited ones included."""
        return set().union(*(each.methods for each in self.lineage()))


class Tree:
    """All modules and classes below a folder such as ``src``."""

    def __init__(self, source: Path) -> None:
        if not source.is_dir():
            raise SystemExit(f"--source {source}: expected a folder of Python files; it is not a folder")
        self.source = source
        root = source
        while (root / "__init__.py").exists():
            root = root.parent
        self.modules = {module.name: module for module in _modules(source, root)}
        self.classes: list[Class] = []
        self._by_name: dict[tuple[str, str], Class] = {}
        for module in self.modules.values():
            for node in ast.walk(module.body):
                if isinstance(node, ast.ClassDef):
                    found = Class(node.name, module, node)
                    _read_members(found)
                    self.classes.append(found)
                    self._by_name.setdefault((module.name, node.name), found)
        self._names = {name: self._imported_names(module) for name, module in self.modules.items()}
        for each in self.classes:
            for base in each.node.bases:
                resolved = self.resolve(each.module, base)
                if resolved is not None and resolved is not each:
                    each.bases.append(resolved)
        for each in self.classes:
            each.plain = any(_is_plain(ancestor.node) for ancestor in each.lineage())

    def resolve(self, module: Module, expression: ast.expr) -> Class | None:
        """Return the class of the tree that an expression in a module names, if it names one."""
        if isinstance(expression, ast.Subscript):
            return self.resolve(module, expression.value)
        if isinstance(expression, ast.Attribute):
            owner = dotted(expression.value)
            for target in [self._names[module.name].get(owner, owner), owner] if owner else []:
                if target in self.modules:
                    return self._class_in(target, expression.attr)
            return None
        if not isinstance(expression, ast.Name):
            return None
        return self._class_in(module.name, expression.id)

    def _class_in(self, module: str, name: str, hops: int = 0) -> Class | None:
        found = self._by_name.get((module, name))
        if found is not None or hops > 8:
            return found
        target = self._names[module].get(name)
        if target is None:
            return None
        owner, _, attribute = target.rpartition(".")
        return self._class_in(owner, attribute, hops + 1) if owner in self.modules else None

    def _imported_names(self, module: Module) -> dict[str, str]:
        """Return, for each imported name of a module, the dotted name of what it refers to."""
        names: dict[str, str] = {}
        for node in ast.walk(module.body):
            if isinstance(node, ast.ImportFrom):
                base = _absolute(module, node)
                for alias in node.names:
                    names[alias.asname or alias.name] = f"{base}.{alias.name}"
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.asname:
                        names[alias.asname] = alias.name
        return names

    def imports(self) -> dict[str, dict[str, int]]:
        """Return which modules each module imports, with the number of a line that imports it.

        Imports inside functions and under ``TYPE_CHECKING`` count like all others. ``import a.b`` counts as an import
        of ``a.b`` only, although Python runs ``a/__init__.py`` too.
        """
        edges: dict[str, dict[str, int]] = {name: {} for name in self.modules}
        for name, module in self.modules.items():
            for node in ast.walk(module.body):
                for target in self._targets(module, node):
                    if target != name:
                        edges[name].setdefault(target, getattr(node, "lineno", 0))
        return edges

    def _targets(self, module: Module, node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in self.modules:
                    yield alias.name
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(module, node)
            for alias in node.names:
                if f"{base}.{alias.name}" in self.modules:
                    yield f"{base}.{alias.name}"
                elif base in self.modules:
                    yield base


def _modules(source: Path, root: Path) -> Iterator[Module]:
    for path in sorted(source.rglob("*.py")):
        parts = list(path.relative_to(root).with_suffix("").parts)
        is_package = parts[-1] == "__init__"
        if is_package:
            parts.pop()
        if parts and all(part.isidentifier() for part in parts):
            text = path.read_text()
            yield Module(".".join(parts), path, text, ast.parse(text, str(path)), is_package)


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.package.split(".")
    parts = parts[: len(parts) - (node.level - 1)]
    return ".".join([*parts, *([node.module] if node.module else [])])


def dotted(expression: ast.expr | None) -> str:
    """Return a name such as ``a.b.c`` as text; empty for any other expression."""
    if isinstance(expression, ast.Name):
        return expression.id
    if isinstance(expression, ast.Attribute):
        owner = dotted(expression.value)
        return f"{owner}.{expression.attr}" if owner else ""
    return ""


def last_name(expression: ast.expr | None) -> str:
    """Return the last part of the name in a decorator, a base or an annotation; empty if there is no name."""
    if isinstance(expression, ast.Constant) and isinstance(expression.value, str):
        try:
            return last_name(ast.parse(expression.value, mode="eval").body)
        except SyntaxError:
            return ""
    if isinstance(expression, ast.BinOp):  # T | None
        return last_name(expression.left)
    if isinstance(expression, ast.Call):
        return last_name(expression.func)
    if isinstance(expression, ast.Subscript):
        return last_name(expression.value)
    return dotted(expression).rpartition(".")[2]


def _is_plain(node: ast.ClassDef) -> bool:
    return any(last_name(each) == "dataclass" for each in node.decorator_list) or any(
        last_name(base) in _PLAIN_BASES for base in node.bases
    )


def own_name(function: Function, in_class: bool) -> str | None:
    """Return the name of a method's first parameter, such as ``self``; None for functions and static methods."""
    if not in_class or any(last_name(each) == "staticmethod" for each in function.decorator_list):
        return None
    first = [*function.args.posonlyargs, *function.args.args][:1]
    return first[0].arg if first else None


def assigned(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the targets that a statement assigns to; a tuple or a list of targets is yielded item by item."""
    if isinstance(node, ast.Assign):
        targets = list(node.targets)
    elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For | ast.AsyncFor):
        targets = [node.target]
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        targets = [node.optional_vars]
    else:
        return
    while targets:
        target = targets.pop(0)
        if isinstance(target, ast.Tuple | ast.List):
            targets = [*target.elts, *targets]
        elif isinstance(target, ast.Starred):
            targets = [target.value, *targets]
        else:
            yield target


def parameters(function: Function) -> list[ast.arg]:
    """Return all parameters of a function except ``*args`` and ``**kwargs``."""
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def _read_members(found: Class) -> None:
    for node in found.node.body:
        if isinstance(node, Function):
            found.methods.add(node.name)
            _read_method(found, node)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            if last_name(node.annotation) != "ClassVar":
                found.state.add(node.target.id)
            found.types[node.target.id] = last_name(node.annotation)
        elif isinstance(node, ast.Assign):
            for target in assigned(node):
                if isinstance(target, ast.Name) and not target.id.startswith("__"):
                    found.state.add(target.id)
    for name in set(found.state):
        if name.isupper() or name.strip("_").isupper():
            found.state.discard(name)  # a constant


def _read_method(found: Class, function: Function) -> None:
    own = own_name(function, True)
    hints = {each.arg: last_name(each.annotation) for each in parameters(function)}
    for node in ast.walk(function):
        for target in assigned(node):
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == own:
                found.state.add(target.attr)
                value = getattr(node, "value", None)
                if isinstance(node, ast.AnnAssign):
                    found.types.setdefault(target.attr, last_name(node.annotation))
                elif isinstance(value, ast.Name) and hints.get(value.id):
                    found.types.setdefault(target.attr, hints[value.id])
                elif isinstance(value, ast.Call) and last_name(value.func)[:1].isupper():
                    found.types.setdefault(target.attr, last_name(value.func))
