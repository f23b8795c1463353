"""Draw docstrings and error messages of a tree at random for a reader to grade, and list doubtful words.

    python -m tools.prose --docstrings 100 --errors 50 --seed 7     # what to read; the same for the same seed
    python -m tools.prose --verbs                                   # docstrings that do not begin with a verb
    python -m tools.prose --people                                  # words that are for people, and odd ones

Docstrings are those of modules, classes and functions, and texts below attributes, of the tree at `--source`. Messages
are the arguments in `raise` statements with an error derived from `--error-base`, or with a class method of one.
`--verbs` looks at functions, but not at properties. It lists docstrings whose first word, after an adverb, is not in a
list of verbs, so it can be wrong in both directions. `--people` looks at docstrings, comments, other strings, and the
pages of `--docs`.
"""

from __future__ import annotations

import argparse
import ast
import io
import random
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tools.source_tree import Function, Module, Tree, last_name

_PEOPLE = re.compile(
    r"\b(who|whoever|whom|whose|somebody|nobody|everybody|anybody|someone|everyone|anyone|told|asked|wish\w*|stands|thereof)\b",
    re.IGNORECASE,
)
_VERBS = set(
    re.findall(
        r"[a-z]+",
        """accept account act add adjust adopt advance allocate allow answer append apply arrange ask assert assign
        attach await balance begin bind blame block borrow bound bring build buy cache calculate calibrate
        call cancel cast change charge check choose clean clear close collect combine commit compact compare
        compile complete compress compute connect consume continue convert copy count cover create cut deal
        decide declare decode decompress define delete deliver derive describe destroy detach detect
        determine discard dismiss display divide do download draw drop dump emit empty enable encode end
        enforce ensure enter erase escape estimate evaluate evict examine exchange execute expand expect
        expire explain expose extend extract fail fetch fill filter find finish fit fix flush fold follow
        forget form format forward free freeze gather generate get give go group grow guard guess handle
        hash have hold ignore implement import include increase index inform initialize insert install
        interrupt invert iterate join judge keep label launch lay learn leave let limit link list listen
        load locate lock log look lower make map mark match measure meet merge migrate move multiply name
        narrow normalize note notify observe obtain offer open order overwrite pack pad parse partition pass
        pause peek perform pick place plan plot poll pop predict prefetch prepare present preserve print
        probe process produce project promote propose prove provide prune publish pull push put query queue
        raise rank read rebuild recall receive recompute record recover reduce refer refill refresh refuse
        register reject release reload remember remove rename render reopen reorder repack repair repeat
        replace replay report request require reserve reset resize resolve restart restore restrict resume
        retry return reuse reverse rewind rewrite roll rotate round run sample save say scale scan schedule
        score search see seek select send separate serialize serve set settle share shed shift show shrink
        shuffle shut sign simulate skip sleep slice snapshot solve sort spill split spread start state step
        stop store stream strip subtract suggest sum support suspend swap switch synchronize take tell test
        thin throw tick time touch trace track train transfer transform translate trim truncate try tune
        turn undo unite unlock unpack update upload use validate verify visit wait wake walk warm warn watch
        widen work wrap write yield zero""",
    )
)


@dataclass(frozen=True)
class Text:
    """A docstring or message, with its place."""

    path: Path
    line: int
    kind: str
    of: str
    """First line of the code that the text is in or describes."""
    text: str


def docstrings(tree: Tree) -> Iterator[Text]:
    """Yield every docstring of a tree, those of attributes included."""
    for module in tree.modules.values():
        for node in ast.walk(module.body):
            if isinstance(node, ast.Module | ast.ClassDef | Function):
                text = ast.get_docstring(node)
                if text:
                    kind = {"Module": "module", "ClassDef": "class"}.get(type(node).__name__, "function")
                    yield Text(module.path, node.body[0].lineno, kind, _first_line(module, node), text)
            for assignment, below in _pairs(node):
                yield Text(module.path, below.lineno, "attribute", _line(module, assignment.lineno), _constant(below))


def _pairs(node: ast.AST) -> Iterator[tuple[ast.stmt, ast.Expr]]:
    """Yield assignments that have a text below them."""
    body = getattr(node, "body", [])
    for first, second in pairwise(body) if isinstance(body, list) else ():
        if isinstance(first, ast.Assign | ast.AnnAssign) and isinstance(second, ast.Expr) and _constant(second):
            yield first, second


def _constant(node: ast.Expr) -> str:
    value = node.value
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


def _line(module: Module, line: int) -> str:
    return module.text.splitlines()[line - 1].strip()


def _first_line(module: Module, node: ast.AST) -> str:
    return module.name if isinstance(node, ast.Module) else _line(module, getattr(node, "lineno", 1))


def error_messages(tree: Tree, base: str) -> Iterator[Text]:
    """Yield the message of every ``raise`` of an error whose class is, or is derived from, the class ``base``."""
    errors = {each.name for each in tree.classes if any(ancestor.name == base for ancestor in each.lineage())}
    if not errors:
        raise SystemExit(f"--error-base: no class of {tree.source} is called {base!r}")
    for module in tree.modules.values():
        for node in ast.walk(module.body):
            if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call):
                continue
            function = node.exc.func
            owner = last_name(function.value) if isinstance(function, ast.Attribute) else ""
            if (last_name(function) in errors or owner in errors) and node.exc.args:
                text = "\n".join(ast.unparse(each) for each in node.exc.args)
                yield Text(module.path, node.lineno, last_name(function), _line(module, node.lineno), text)


def begins_with_a_verb(text: str) -> bool:
    """Return whether a docstring begins with a verb in the imperative, or with an adverb and such a verb.

    >>> [begins_with_a_verb(text) for text in ("Return the sum.", "The sum.", "Returns it.", "Lazily read a page.")]
    [True, False, False, True]
    """
    words = re.findall(r"[A-Za-z'-]+", text)[:2]
    if words and words[0].lower().endswith("ly") and len(words) > 1:  # an adverb
        words = words[1:]
    return bool(words) and words[0].lower() in _VERBS


def of_functions(tree: Tree) -> Iterator[Text]:
    """Yield the docstrings of functions, but not of properties."""
    for module in tree.modules.values():
        for node in ast.walk(module.body):
            if not isinstance(node, Function):
                continue
            decorators = {last_name(each) for each in node.decorator_list}
            text = ast.get_docstring(node)
            if text and not decorators & {"property", "cached_property"}:
                yield Text(module.path, node.body[0].lineno, "function", _line(module, node.lineno), text)


def lines_about_people(tree: Tree, docs: list[Path]) -> Iterator[Text]:
    """Yield lines of comments, strings and pages with a word that is for people only, or with an odd word."""
    for module in tree.modules.values():
        for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING):
                for offset, line in enumerate(token.string.splitlines()):
                    if _PEOPLE.search(line):
                        yield Text(module.path, token.start[0] + offset, "", "", line.strip())
    for place in docs:
        for page in sorted(place.rglob("*.md")) if place.is_dir() else [place]:
            for number, line in enumerate(page.read_text().splitlines(), 1):
                if _PEOPLE.search(line):
                    yield Text(page, number, "", "", line.strip())


def main() -> None:
    """Read the command line, and print what its options ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, default=Path("src"), help="folder of the tree; default: src")
    parser.add_argument("--docstrings", type=int, default=0, metavar="N", help="draw so many docstrings")
    parser.add_argument("--errors", type=int, default=0, metavar="N", help="draw so many messages of errors")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draw; default: 0")
    parser.add_argument("--error-base", default="MillraceError", help="default: MillraceError")
    parser.add_argument("--verbs", action="store_true", help="list functions' docstrings without a verb")
    parser.add_argument("--people", action="store_true", help="list lines with words that are for people")
    parser.add_argument(
        "--docs",
        nargs="*",
        type=Path,
        default=[Path("docs"), Path("README.md"), Path("CHANGELOG.md")],
        help="pages that --people reads; default: docs README.md CHANGELOG.md",
    )
    options = parser.parse_args()
    tree, chance = Tree(options.source), random.Random(options.seed)
    for name, count, texts in (
        ("docstrings", options.docstrings, docstrings(tree)),
        ("errors", options.errors, error_messages(tree, options.error_base)),
    ):
        if count:
            found = list(texts)
            print(f"{min(count, len(found))} of {len(found)} {name}, seed {options.seed}")
            for number, each in enumerate(chance.sample(found, min(count, len(found))), 1):
                print(f"\n{number}. {each.path}:{each.line} ({each.kind})\n    {each.of}")
                print("\n".join(f"      {line}" for line in each.text.splitlines()))
    if options.verbs:
        total = list(of_functions(tree))
        found = [each for each in total if not begins_with_a_verb(each.text)]
        for each in found:
            print(f"{each.path}:{each.line}: {each.of.partition('(')[0]}: {each.text.splitlines()[0]}")
        print(f"{len(found)} of {len(total)} docstrings of functions")
    if options.people:
        found = list(lines_about_people(tree, options.docs))
        for each in found:
            print(f"{each.path}:{each.line}: {each.text}")
        print(f"{len(found)} lines")
    if not (options.docstrings or options.errors or options.verbs or options.people):
        parser.error("expected one or more of --docstrings N, --errors N, --verbs and --people")


if __name__ == "__main__":
    main()
