"""Print the shape of a source tree: sizes of classes, modules and folders, import cycles, names that occur twice.

    python -m tools.shape                            # the tree in src
    python -m tools.shape --top 20 --json            # longer lists, as JSON
    python -m tools.shape --compare ../before/src    # before and after side by side

Everything is read with `ast`; nothing is imported. What is counted:

state attributes    names set as `self.x = …` in a method, or annotated or assigned in the class body, except `ClassVar`
                    and constants in capitals. Names inherited from classes of the tree count, but not as `own`
methods             functions and properties of the class body, inherited ones included; each name counts once
depth               classes in the longest chain of inheritance; bases from outside the tree do not count
plain data          dataclasses, named tuples, enums, protocols: in their own list, not in the maxima
module length       lines of a file
modules in a folder Python files directly in it, `__init__.py` included
import cycles       strongly connected components of the graph of imports: of all modules, and for each package of its
                    direct members (modules and sub-packages). Imports in functions and under TYPE_CHECKING count. The
                    same component at two levels counts once
names twice         file names (without `__init__` and `__main__`) in several folders, class names in several modules
set from outside    `x.attr = …` where x is not the method's own object, and attr is state of a class of the tree other
                    than the enclosing one; plain data has its own list. If the source does not declare the class of x,
                    the name attr decides, so there may be false entries
"""

from __future__ import annotations

import argparse
import ast
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tools.source_tree import (
    Class,
    Function,
    Tree,
    assigned,
    dotted,
    last_name,
    own_name,
    parameters,
)

Graph = Mapping[str, Iterable[str]]


def cycles(graph: Graph) -> list[list[str]]:
    """Return the strongly connected components of more than one node, the largest first.

    >>> cycles({"a": ["b"], "b": ["a", "c"], "c": []})
    [['a', 'b']]
    """
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    waiting: set[str] = set()
    found: list[list[str]] = []
    for root in graph:
        if root in number:
            continue
        work: list[tuple[str, Iterator[str]]] = [(root, iter(graph[root]))]
        number[root] = low[root] = len(number)
        stack.append(root)
        waiting.add(root)
        while work:
            node, rest = work[-1]
            for other in rest:
                if other not in number:
                    number[other] = low[other] = len(number)
                    stack.append(other)
                    waiting.add(other)
                    work.append((other, iter(graph.get(other, ()))))
                    break
                if other in waiting:
                    low[node] = min(low[node], number[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == number[node]:
                    component: list[str] = []
                    while not component or component[-1] != node:
                        component.append(stack.pop())
                    waiting -= set(component)
                    if len(component) > 1:
                        found.append(sorted(component))
    return sorted(found, key=lambda component: (-len(component), component))


def cycles_at_every_level(tree: Tree) -> list[tuple[str, list[str]]]:
    """Return all import cycles as pairs of a level and the members of the cycle.

    The level is ``modules`` for cycles of modules, else the package whose direct members import each other.
    """
    imports = tree.imports()
    found = [("modules", component) for component in cycles(imports)]
    seen = {frozenset(component) for _, component in found}
    packages = sorted({name for name, module in tree.modules.items() if module.is_package} | _parents(imports))
    for package in ["", *packages]:
        graph: dict[str, set[str]] = defaultdict(set)
        for name, targets in imports.items():
            for target in targets:
                ends = _child(package, name), _child(package, target)
                if None not in ends and ends[0] != ends[1]:
                    graph[str(ends[0])].add(str(ends[1]))
                    graph.setdefault(str(ends[1]), set())
        for component in cycles(graph):
            if frozenset(component) not in seen:
                seen.add(frozenset(component))
                found.append((package or "top", component))
    return sorted(found, key=lambda each: -len(each[1]))


def _parents(names: Iterable[str]) -> set[str]:
    parts = [name.split(".") for name in names]
    return {".".join(each[:count]) for each in parts for count in range(1, len(each))}


def _child(package: str, name: str) -> str | None:
    """Return the direct child of a package that is, or contains, a module; None if the module is not in the package."""
    if name == package:
        return f"{name}.__init__"
    start = f"{package}." if package else ""
    return start + name[len(start) :].split(".")[0] if name.startswith(start) else None


def set_from_outside(tree: Tree) -> Iterator[tuple[str, str, str, bool]]:
    """Yield the assignments to attributes of other objects.

    Each has its place, its target, the names of the classes that it may belong to, and whether these are plain data.
    """
    owners: dict[str, list[Class]] = defaultdict(list)
    by_name: dict[str, list[Class]] = defaultdict(list)
    for each in tree.classes:
        by_name[each.name].append(each)
        for attribute in each.state:
            owners[attribute].append(each)
    nodes = {id(each.node): each for each in tree.classes}
    for module in tree.modules.values():
        for function, inside, own, kinds in _functions(module.body, None, nodes):
            family = set() if inside is None else inside.all_state
            for node in ast.walk(function):
                for target in assigned(node):
                    if not isinstance(target, ast.Attribute) or dotted(target.value) in (own, "self", "cls"):
                        continue
                    kind = _kind(target.value, inside, own, kinds)
                    classes = [c for each in by_name.get(kind, []) for c in each.lineage() if target.attr in c.state]
                    classes = classes or ([] if kind in by_name else owners.get(target.attr, []))
                    if not classes or (inside is not None and set(classes) & set(inside.lineage())):
                        continue
                    if kind not in by_name and target.attr in family:
                        continue  # another object of the same class
                    plain = any(each.plain for each in classes)
                    names = ", ".join(sorted({each.name for each in classes})[:3])
                    yield f"{module.path}:{target.lineno}", ast.unparse(target), names, plain


def _functions(
    body: ast.AST, inside: Class | None, nodes: Mapping[int, Class]
) -> Iterator[tuple[Function, Class | None, str | None, dict[str, str]]]:
    for node in ast.iter_child_nodes(body):
        if isinstance(node, ast.ClassDef):
            yield from _functions(node, nodes[id(node)], nodes)
        elif isinstance(node, Function):
            own = own_name(node, inside is not None and isinstance(body, ast.ClassDef))
            kinds = {each.arg: last_name(each.annotation) for each in parameters(node)}
            for each in ast.walk(node):
                if isinstance(each, ast.Assign) and isinstance(each.value, ast.Call):
                    kinds |= {t.id: last_name(each.value.func) for t in assigned(each) if isinstance(t, ast.Name)}
            yield node, inside, own, kinds
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from _functions(node, inside, nodes)


def _kind(value: ast.expr, inside: Class | None, own: str | None, kinds: Mapping[str, str]) -> str:
    """Return the name of an expression's class if the source declares it, else an empty text."""
    if isinstance(value, ast.Name):
        return kinds.get(value.id, "")
    if isinstance(value, ast.Attribute) and dotted(value.value) == own and inside is not None:
        return next((each.types[value.attr] for each in inside.lineage() if value.attr in each.types), "")
    return ""


def shape(source: Path) -> dict[str, Any]:
    """Return the figures of a source tree: the largest under ``maxima``, sums under ``totals``, and all full lists."""
    tree = Tree(source)
    classes = [each for each in tree.classes if not each.plain]
    folders: dict[str, int] = defaultdict(int)
    files: dict[str, list[str]] = defaultdict(list)
    for module in tree.modules.values():
        folders[str(module.path.parent)] += 1
        if module.path.stem not in ("__init__", "__main__"):
            files[module.path.name].append(str(module.path.parent))
    named: dict[str, list[str]] = defaultdict(list)
    for each in tree.classes:
        named[each.name].append(each.where)
    found = cycles_at_every_level(tree)
    outside = list(set_from_outside(tree))
    lists: dict[str, Any] = {
        "classes": [
            {
                "class": each.name,
                "where": each.where,
                "state": len(each.all_state),
                "own state": len(each.state),
                "methods": len(each.all_methods),
                "own methods": len(each.methods),
                "depth": each.depth,
                "plain": each.plain,
            }
            for each in sorted(tree.classes, key=lambda each: (-len(each.all_state), each.where))
        ],
        "modules": _ranked({str(module.path): module.lines for module in tree.modules.values()}),
        "folders": _ranked(folders),
        "cycles": [{"level": level, "members": members} for level, members in found],
        "file names twice": {name: places for name, places in sorted(files.items()) if len(places) > 1},
        "class names twice": {name: places for name, places in sorted(named.items()) if len(places) > 1},
        "set from outside": [
            {"where": where, "target": target, "of": of} for where, target, of, plain in outside if not plain
        ],
        "plain data set": [
            {"where": where, "target": target, "of": of} for where, target, of, plain in outside if plain
        ],
    }
    maxima = {
        "state attributes of a class": max((len(each.all_state) for each in classes), default=0),
        "  own ones": max((len(each.state) for each in classes), default=0),
        "methods of a class": max((len(each.all_methods) for each in classes), default=0),
        "  own ones ": max((len(each.methods) for each in classes), default=0),
        "depth of inheritance": max((each.depth for each in classes), default=0),
        "longest module": max((module.lines for module in tree.modules.values()), default=0),
        "modules in one folder": max(folders.values(), default=0),
        "import cycles of modules": sum(level == "modules" for level, _ in found),
        "import cycles of folders": sum(level != "modules" for level, _ in found),
        "  members of the largest": max((len(members) for _, members in found), default=0),
        "file names that occur twice": len(lists["file names twice"]),
        "class names that occur twice": len(lists["class names twice"]),
        "attributes set from outside": len(lists["set from outside"]),
        "modules that do so": len({each["where"].rpartition(":")[0] for each in lists["set from outside"]}),
    }
    totals = {
        "modules": len(tree.modules),
        "lines": sum(module.lines for module in tree.modules.values()),
        "classes": len(classes),
        "plain data": len(tree.classes) - len(classes),
    }
    return {"source": str(source), "maxima": maxima, "totals": totals, **lists}


def _ranked(sizes: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(sizes.items(), key=lambda each: (-each[1], each[0])))


def print_shape(found: Mapping[str, Any], top: int) -> None:
    """Print the maxima and the first of each list."""
    print(f"{found['source']}: " + ", ".join(f"{number:,} {name}" for name, number in found["totals"].items()) + "\n")
    for name, number in found["maxima"].items():
        print(f"  {name:<32}{number:>7}")
    classes = [each for each in found["classes"] if not each["plain"]]
    for name, key in (("State attributes", "state"), ("Methods", "methods"), ("Depth of inheritance", "depth")):
        print(f"\n{name} (own ones in brackets)")
        for each in sorted(classes, key=lambda each: (-each[key], each["where"]))[:top]:
            own = f" ({each[f'own {key}']})" if key != "depth" else ""
            print(f"  {each[key]:>4}{own:<6} {each['class']:<24} {each['where']}")
    print("\nPlain data with most attributes")
    for each in [each for each in found["classes"] if each["plain"]][:top]:
        print(f"  {each['state']:>4}       {each['class']:<24} {each['where']}")
    for name, title in (("modules", "Longest modules"), ("folders", "Modules in one folder")):
        print(f"\n{title}")
        for path, number in list(found[name].items())[:top]:
            print(f"  {number:>4} {path}")
    print("\nImport cycles")
    for each in found["cycles"]:
        print(f"  {len(each['members']):>4} {each['level']}: {' '.join(each['members'])}")
    for name in ("file names twice", "class names twice"):
        print(f"\n{name[0].upper()}{name[1:]}")
        for each, places in sorted(found[name].items(), key=lambda item: (-len(item[1]), item[0]))[:top]:
            print(f"  {len(places):>4} {each}: {' '.join(places)}")
    for name in ("set from outside", "plain data set"):
        print(f"\n{name[0].upper()}{name[1:]}: {len(found[name])}")
        for each in found[name][:top]:
            print(f"       {each['where']}: {each['target']} ({each['of']})")


def print_comparison(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Print the maxima and totals of two trees side by side."""
    print(f"  {'':<32}{'before':>9}{'after':>9}")
    for part in ("maxima", "totals"):
        for name, number in before[part].items():
            print(f"  {name:<32}{number:>9,}{after[part][name]:>9,}")


def main() -> None:
    """Read the command line, and print the shape of a tree or compare two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, default=Path("src"), help="folder of the tree; default: src")
    parser.add_argument("--compare", type=Path, metavar="OTHER", help="folder of the tree before: prints both")
    parser.add_argument("--top", type=int, default=8, help="length of the lists; default: 8")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    options = parser.parse_args()
    after = shape(options.source)
    before = None if options.compare is None else shape(options.compare)
    if options.json:
        print(json.dumps(after if before is None else {"before": before, "after": after}, indent=2))
    elif before is not None:
        print_comparison(before, after)
    else:
        print_shape(after, options.top)


if __name__ == "__main__":
    main()
