"""Draw mutants of the source, one small change each, and see whether the tests notice them.

    python -m tools.mutants record                        # once, and after changes: which test runs which lines
    python -m tools.mutants record --thorough             # the tests of `make thorough` too
    python -m tools.mutants draw --count 20 --seed 7      # only print what would be changed
    python -m tools.mutants run --count 200 --seed 7      # apply each, run the tests that reach it; can be continued
    python -m tools.mutants run --thorough                # survivors again, with every test that reaches them
    python -m tools.mutants run --only src/a/loop.py:91   # all mutants of one line
    python -m tools.mutants run --id 3fa9c01b22           # one of the results again, with what pytest prints
    python -m tools.mutants summary                       # by operator and folder; each survivor as a diff

The files are those of `--target GLOB …`, by default `[tool.millrace.mutants] targets` of pyproject.toml. Nothing is
changed in the working tree: `record` copies it to `.mutants/tree` and runs the tests there, `run` works in copies of
that copy.

A mutant is killed if a test fails, if the tests cannot be collected, or if the process dies or takes several times as
long as with unchanged code (in processor time, or by the clock if the tests use Spark). At most `--most` tests run, the
fastest first, and one of each test function before a second one. Tests that use Spark or take long run last, and only
if the others pass. If no test runs the changed line itself (in compiled kernels, and in processes that Spark starts),
the tests are used that run its function, else its callers, else its file, else a module that imports it. A changed
kernel and all files that import it are compiled again.

Type hints, docstrings, messages of errors, assertions, `__repr__`, `check_invariants` and blocks for type checkers are
never changed. A survivor can be equivalent: the change makes no difference. A person has to judge that.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import difflib
import functools
import hashlib
import json
import os
import queue
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coverage import CoverageData

from tools.mutation import Mutant, draw, files_of, mutants_of
from tools.source_tree import Tree, last_name

_LEFT_OUT = {".git", ".venv", ".mutants", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", "bench-data",
             "demo", "build", "dist", ".import_linter_cache"}  # fmt: skip
"""Names of files and folders in the root of the tree that are not copied."""
_QUICK_SECONDS = 3.0
_PATIENCE = 4
"""Limit of a mutant's time by the clock, as a multiple of its limit of processor time; the machine may be busy."""
_KILLED = ("killed", "hang", "crash")


@dataclass
class Test:
    """A recorded test: its duration, and whether it uses Spark or is marked as thorough."""

    name: str
    seconds: float
    spark: bool
    thorough: bool


class Recording:
    """The recording in a folder: which lines each test runs, and how long it takes."""

    def __init__(self, folder: Path) -> None:
        if not (folder / "recording.json").exists():
            raise SystemExit(f"{folder}: there is no recording; run python -m tools.mutants record")
        recorded = json.loads((folder / "recording.json").read_text())
        self.sources: dict[str, str] = recorded["sources"]
        self.tests = {
            name: Test(name, test["seconds"], test["spark"], test["thorough"])
            for name, test in recorded["tests"].items()
            if test["passed"]
        }
        self.tree = (folder / "tree").resolve()
        self._data = CoverageData(str(folder / "coverage"))
        self._data.read()
        self._modules = Tree(self.tree / "src")
        self._imports = self._modules.imports()
        self._by_file = {self._relative(module.path): module for module in self._modules.modules.values()}

    def _relative(self, path: Path) -> str:
        return path.resolve().relative_to(self.tree).as_posix()

    def check(self, files: Iterable[str]) -> None:
        """Raise an error if a file has changed since the recording."""
        for file in files:
            if self.sources.get(file) != _digest(Path(file)):
                raise SystemExit(f"{file}: changed since the recording; run python -m tools.mutants record")

    @functools.lru_cache(maxsize=256)  # noqa: B019
    def _contexts(self, file: str) -> dict[int, list[str]]:
        return self._data.contexts_by_lineno(str(self.tree / file))

    def _at(self, file: str, lines: Iterable[int]) -> set[str]:
        contexts = self._contexts(file)
        return {test for line in lines for test in contexts.get(line, ()) if test in self.tests}

    def reaching(self, mutant: Mutant) -> tuple[str, set[str]]:
        """Return how the tests that may notice a mutant were found (``line``, ``function``, …), and their names."""
        if mutant.function and not mutant.kernel:
            if found := self._at(mutant.file, self._statement(mutant.file, mutant.line)):
                return "line", found
            if found := self._at(mutant.file, self._body(mutant.file, mutant.function)):
                return "function", found
        if mutant.function and (found := self._callers_tests(mutant)):
            return "callers", found
        if found := self._at(mutant.file, self._bodies(mutant.file)):
            return "file", found
        module = self._by_file[mutant.file].name
        importers = [m for name, m in self._modules.modules.items() if module in self._imports[name]]
        found = set().union(
            *(self._at(self._relative(m.path), self._bodies(self._relative(m.path))) for m in importers)
        )
        return ("importers", found) if found else ("nothing", set())

    def _functions(self, file: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        def below(node: ast.AST, start: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
            for child in ast.iter_child_nodes(node):
                name = start
                if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    name = f"{start}.{child.name}" if start else child.name
                if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield name, child
                yield from below(child, name)

        yield from below(self._by_file[file].body, "")

    def _statement(self, file: str, line: int) -> range:
        """Return the lines of the innermost statement around a line, without the blocks inside the statement."""
        around = [
            node
            for node in ast.walk(self._by_file[file].body)
            if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)
        ]
        if not around:
            return range(line, line + 1)
        inner = min(around, key=lambda node: (node.end_lineno or node.lineno) - node.lineno)
        body = getattr(inner, "body", None)
        return range(inner.lineno, body[0].lineno if body else (inner.end_lineno or inner.lineno) + 1)

    def _body(self, file: str, function: str) -> set[int]:
        return {
            line
            for name, node in self._functions(file)
            if name == function
            for line in range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1)
        }

    def _bodies(self, file: str) -> set[int]:
        return {line for name, _ in self._functions(file) for line in self._body(file, name)}

    def _callers_tests(self, mutant: Mutant) -> set[str]:
        """Return the tests that run callers of the mutant's function, or callers of a caller that no test runs."""
        found: set[str] = set()
        seen = {(mutant.file, mutant.function)}
        work = list(seen)
        while work:
            file, function = work.pop()
            own = self._by_file[file].name
            for other, module in self._by_file.items():
                if other != file and own not in self._imports[module.name]:
                    continue
                for name, node in self._functions(other):
                    if (other, name) not in seen and _names(node, function.rpartition(".")[2]):
                        seen.add((other, name))
                        tests = self._at(other, self._body(other, name))
                        found |= tests
                        if not tests:
                            work.append((other, name))
        return found

    def dependants(self, file: str) -> set[str]:
        """Return the file and all files that import it, directly or through others."""
        found, work = {file}, [self._by_file[file].name]
        while work:
            module = work.pop()
            for name, targets in self._imports.items():
                path = self._relative(self._modules.modules[name].path)
                if module in targets and path not in found:
                    found.add(path)
                    work.append(name)
        return found


def _names(node: ast.AST, function: str) -> bool:
    return any(isinstance(each, ast.Name | ast.Attribute) and last_name(each) == function for each in ast.walk(node))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def chosen(tests: Iterable[Test], most: int | None) -> tuple[list[Test], list[Test]]:
    """Return the quick tests to run, and the slow tests to run if the quick ones pass; at most ``most`` in all.

    The fastest test of each test function comes first, then the second fastest of each, and so on.
    """
    ranked, turn = [], Counter[str]()
    for test in sorted(tests, key=lambda test: (test.seconds, test.name)):
        function = test.name.partition("[")[0]
        ranked.append((turn[function], test.seconds, test.name, test))
        turn[function] += 1
    ranked.sort(key=lambda each: each[:3])
    taken = [each[3] for each in ranked[:most]]
    slow = [test for test in taken if test.spark or test.seconds > _QUICK_SECONDS]
    return [test for test in taken if test not in slow], slow


def python_command(*options: str) -> list[str]:
    """Return the command that runs pytest in a copy of the tree, without results cached from earlier runs."""
    return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--tb=short", *options]


def environment(copy: Path, **more: str) -> dict[str, str]:
    """Return environment variables with which Python imports the sources of the copy."""
    return {**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1", **more}


def record(folder: Path, thorough: bool, jobs: int, select: list[str]) -> None:
    """Copy the working tree, run its tests there, and record which lines each test runs."""
    tree, parts = folder / "tree", folder / "parts"
    for stale in (parts, *folder.glob("job-*")):
        shutil.rmtree(stale, ignore_errors=True)
    parts.mkdir(parents=True)
    _synchronize(Path.cwd(), tree)
    marks = "not torture" if thorough else "not thorough and not torture"
    spread = ["-n", str(jobs), "--dist", "loadgroup"] if jobs else ["-n", "0"]
    recording = ["-p", "tools.recording", "-m", marks, *spread, "-o", "xfail_strict=false"]
    where = {"MUTANTS_RECORD": str(parts.resolve())}
    print(f"recording in {tree}: {marks}", flush=True)
    subprocess.run(python_command(*recording, *select), cwd=tree, env=environment(tree.resolve(), **where), check=False)
    tests = _read_parts(parts)
    if not tests:
        raise SystemExit("no test ran, so nothing is recorded; see the output of pytest above")
    failed = folder / "failed"
    failed.write_text("\n".join(name for name, test in tests.items() if not test["passed"]))
    if failed.read_text():  # some fail only because their lines are being recorded
        again = python_command("-p", "tools.recording", "-n", "0", "-m", marks, f"@{failed.resolve()}")
        subprocess.run(again, cwd=tree, env=environment(tree.resolve(), **where, MUTANTS_LINES="0"), check=False)
        for name, test in _read_parts(parts).items():
            if test["passed"]:
                tests[name] = test
    data = CoverageData(str(folder / "coverage"))
    data.erase()
    for part in sorted(parts.glob("coverage.*")):
        other = CoverageData(str(part))
        other.read()
        data.update(other)
    data.write()
    sources = {path.relative_to(tree).as_posix(): _digest(path) for path in sorted((tree / "src").rglob("*.py"))}
    (folder / "recording.json").write_text(json.dumps({"sources": sources, "tests": tests}))
    lost = sum(not test["passed"] for test in tests.values())
    print(f"{len(tests)} tests recorded; {lost} of them fail or are skipped without any change and are not used")


def _read_parts(parts: Path) -> dict[str, dict[str, Any]]:
    tests: dict[str, dict[str, Any]] = {}
    for part in sorted(parts.glob("tests.*.json"), key=lambda path: path.stat().st_mtime):
        for name, test in json.loads(part.read_text()).items():
            if name not in tests or test["passed"]:
                tests[name] = test
    return tests


def _synchronize(source: Path, target: Path) -> None:
    """Make ``target`` a copy of the tree with the same file times; keep the compiled kernels that it already has."""
    kept = {path.relative_to(target): path for path in target.rglob("*.nb[ic]")} if target.exists() else {}
    aside = target.with_name(target.name + ".machine-code")
    shutil.rmtree(aside, ignore_errors=True)
    for relative, path in kept.items():
        (aside / relative).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(path, aside / relative)
    shutil.rmtree(target, ignore_errors=True)

    def left_out(folder: str, names: list[str]) -> set[str]:
        return _LEFT_OUT.intersection(names) if Path(folder) == source else set()

    shutil.copytree(source, target, ignore=left_out, symlinks=True)
    if kept:
        shutil.copytree(aside, target, dirs_exist_ok=True)
        shutil.rmtree(aside)


class Workplace:
    """A copy of the tree in which one mutant at a time is tried."""

    def __init__(self, recording: Recording, path: Path) -> None:
        self._recording, self._pristine, self._path = recording, recording.tree, path.resolve()
        shutil.rmtree(self._path, ignore_errors=True)
        shutil.copytree(self._pristine, self._path, symlinks=True)

    def result_of(self, mutant: Mutant, most: int | None, factor: float, show: bool) -> dict[str, Any]:
        """Apply a mutant, run the tests that reach it, and return the result."""
        found_by, names = self._recording.reaching(mutant)
        quick, slow = chosen((self._recording.tests[name] for name in names), most)
        began = time.monotonic()
        outcome: dict[str, Any] = {"status": "survived" if names else "no test"}
        with self._applied(mutant):
            for tests in (quick, slow):
                if tests and outcome["status"] == "survived":
                    outcome = self._run(tests, factor, mutant.kernel, show)
        return {
            "id": mutant.id,
            **dataclasses.asdict(mutant),
            **outcome,
            "reached by": found_by,
            "tests": len(quick) + len(slow),
            "of tests": len(names),
            "seconds": round(time.monotonic() - began, 1),
            "diff": diff_of(mutant, (self._pristine / mutant.file).read_bytes()),
        }

    @contextlib.contextmanager
    def _applied(self, mutant: Mutant) -> Iterator[None]:
        file, original = self._path / mutant.file, self._pristine / mutant.file
        caches: list[Path] = []
        if mutant.kernel:
            for each in self._recording.dependants(mutant.file):
                path = self._path / each
                caches += (path.parent / "__pycache__").glob(f"{path.stem}.*.nb[ic]")
        for cache in caches:
            cache.unlink()
        file.unlink()  # it may be a hard link to the original
        file.write_bytes(mutant.applied(original.read_bytes()))
        later = original.stat().st_mtime + 7 + int(mutant.id[:6], 16) % 100_000  # otherwise old byte code would be used
        os.utime(file, (later, later))
        try:
            yield
        finally:
            shutil.copy2(original, file)
            for cache in (self._path / "src").rglob("*.nb[ic]") if mutant.kernel else ():
                if not (self._pristine / cache.relative_to(self._path)).exists() or cache.name.startswith(file.stem):
                    cache.unlink()
            for cache in caches:
                shutil.copy2(self._pristine / cache.relative_to(self._path), cache)
            shutil.rmtree(self._path / ".hypothesis", ignore_errors=True)
            shutil.rmtree(self._scratch, ignore_errors=True)

    @property
    def _scratch(self) -> Path:
        return self._path.with_name(self._path.name + ".tmp")

    def _run(self, tests: list[Test], factor: float, kernel: bool, show: bool) -> dict[str, Any]:
        listed = self._path / "tests-of-mutant"
        listed.write_text("\n".join(test.name for test in tests))
        spark = any(test.spark for test in tests)
        limit = 60 + factor * sum(test.seconds for test in tests) + 200 * kernel + 120 * spark
        command = python_command("-n", "0", "-x", "-m", "not torture", "--no-header", "-rfE", f"@{listed}")
        process = subprocess.Popen(
            [*command, "--basetemp", str(self._scratch)],
            cwd=self._path,
            env=environment(self._path),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=None if spark else functools.partial(_limit, int(limit)),
        )
        try:
            out, _ = process.communicate(timeout=_PATIENCE * limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return {"status": "hang", "by": f"more than {_PATIENCE * limit:.0f} s"}
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # processes that it has started and left running
        if show:
            print(out)
        by = next((line for line in out.splitlines() if line.startswith(("FAILED ", "ERROR "))), "")
        if process.returncode == 0:
            return {"status": "survived"}
        if process.returncode == 5:
            return {"status": "no test"}
        if process.returncode == -signal.SIGXCPU:
            return {"status": "hang", "by": f"more than {limit:.0f} s of processor time"}
        if process.returncode < 0:
            return {"status": "crash", "by": f"signal {-process.returncode}"}
        return {"status": "killed", "by": by or f"pytest ended with {process.returncode}: {out[-300:]}"}


def _limit(seconds: int) -> None:
    """Limit processor time, memory and file size, for mutants that loop or allocate without end."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    resource.setrlimit(resource.RLIMIT_DATA, (6 << 30, 6 << 30))
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 30, 4 << 30))


def diff_of(mutant: Mutant, source: bytes) -> str:
    """Return the lines that a mutant changes, as a diff without context."""
    lines = (source.decode().splitlines(), mutant.applied(source).decode().splitlines())
    return "\n".join(list(difflib.unified_diff(*lines, lineterm="", n=0))[2:])


def run(recording: Recording, work: list[Mutant], folder: Path, options: argparse.Namespace) -> None:
    """Try mutants, several at a time, and append a line to the results for each."""
    results = folder / "results.jsonl"
    todo: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
    for mutant in work:
        todo.put(mutant)
    lock, done = threading.Lock(), Counter[str]()

    def at_work(number: int) -> None:
        place = Workplace(recording, folder / f"job-{number}")
        while True:
            try:
                mutant = todo.get_nowait()
            except queue.Empty:
                return
            most = None if options.thorough else options.most
            result = place.result_of(mutant, most, options.factor, options.id is not None)
            result |= {"seed": options.seed, "thorough": options.thorough}
            with lock:
                with results.open("a") as out:
                    out.write(json.dumps(result) + "\n")
                done[result["status"]] += 1
                place_of = f"{mutant.file}:{mutant.line}"
                of = f"[{done.total()}/{len(work)}] {result['status']:<9}{result['seconds']:>6} s"
                print(f"{of}  {mutant.id} {place_of} {mutant.operator}", flush=True)

    threads = [
        threading.Thread(target=at_work, args=(number,)) for number in range(min(max(1, options.jobs), len(work)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def read_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the last result of each mutant."""
    path = folder / "results.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return {result["id"]: result for result in map(json.loads, lines)}


def print_summary(results: Mapping[str, Mapping[str, Any]]) -> None:
    """Print how many mutants were killed, by operator and by folder, and each survivor."""
    if not results:
        print("no results yet")
        return
    for title, key in (("operator", "operator"), ("folder", "file")):
        rows: dict[str, Counter[str]] = defaultdict(Counter)
        for result in results.values():
            name = str(Path(result["file"]).parent) if key == "file" else result[key]
            rows[name]["killed" if result["status"] in _KILLED else "survived"] += 1
        print(f"\n{title:<40}{'killed':>8}{'survived':>10}")
        for name, counts in sorted(rows.items()):
            print(f"{name:<40}{counts['killed']:>8}{counts['survived']:>10}")
    alive = [result for result in results.values() if result["status"] not in _KILLED]
    killed = len(results) - len(alive)
    print(f"\n{killed} of {len(results)} killed ({100 * killed / len(results):.1f} %)")
    for result in sorted(alive, key=lambda result: (result["file"], result["line"])):
        place = f"{result['file']}:{result['line']}"
        ran = f"{result['tests']} of {result['of tests']} tests, by {result['reached by']}"
        print(f"\n{result['id']} {result['status']}: {place} {result['function']} ({result['operator']}; {ran})")
        print("\n".join(f"    {line}" for line in result["diff"].splitlines()))


def _selected(options: argparse.Namespace, root: Path) -> list[Mutant]:
    settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["millrace"]["mutants"]
    if options.only is not None:
        file, _, line = options.only.rpartition(":")
        if not line.isdigit() or not (root / file).is_file():
            raise SystemExit(f"--only: expected FILE:LINE of an existing file; got {options.only!r}")
        return [each for each in mutants_of(file, (root / file).read_bytes()) if each.line == int(line)]
    files = files_of(root, options.target or settings["targets"])
    if options.id is not None:
        found = [each for file in files for each in mutants_of(file, (root / file).read_bytes())]
        return [each for each in found if each.id == options.id]
    return draw(((file, (root / file).read_bytes()) for file in files), options.count, options.seed)


def main() -> None:
    """Read the command line, and run the command that it names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["record", "draw", "run", "summary"])
    parser.add_argument(
        "--folder", type=Path, default=Path(".mutants"), help="for copies and results; default: .mutants"
    )
    parser.add_argument("--target", nargs="+", metavar="GLOB", help="files to change; default: those of pyproject.toml")
    parser.add_argument("--count", type=int, default=200, help="mutants to draw; default: 200")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draw; default: 0")
    parser.add_argument("--only", metavar="FILE:LINE", help="all mutants of one line instead")
    parser.add_argument("--id", help="one mutant instead, with what pytest prints")
    parser.add_argument(
        "--jobs", type=int, default=2, help="mutants, or processes of the recording, at a time; default: 2"
    )
    parser.add_argument("--most", type=int, default=150, help="tests per mutant; default: 150")
    parser.add_argument("--factor", type=float, default=6.0, help="time limit / time of the tests; default: 6")
    parser.add_argument("--thorough", action="store_true", help="record: thorough tests too; run: survivors, all tests")
    parser.add_argument("--tests", nargs="+", default=[], help="record: only these files or folders of tests")
    options = parser.parse_args()
    if options.command == "record":
        record(options.folder, options.thorough, options.jobs, options.tests)
        return
    results = read_results(options.folder)
    if options.command == "summary":
        print_summary(results)
        return
    work = _selected(options, Path.cwd())
    if options.command == "draw":
        for mutant in work:
            print(f"\n{mutant.id} {mutant.file}:{mutant.line} {mutant.function} ({mutant.operator})")
            print("\n".join(f"    {line}" for line in diff_of(mutant, Path(mutant.file).read_bytes()).splitlines()))
        return
    recording = Recording(options.folder)
    recording.check({mutant.file for mutant in work})
    if options.only is None and options.id is None:
        if options.thorough:
            alive = {name for name, each in results.items() if each["status"] not in _KILLED and not each["thorough"]}
            work = [mutant for mutant in work if mutant.id in alive]
        else:
            work = [mutant for mutant in work if mutant.id not in results]
    if work:
        run(recording, work, options.folder, options)
    ids = {mutant.id for mutant in _selected(options, Path.cwd())}
    print_summary({name: result for name, result in read_results(options.folder).items() if name in ids})


if __name__ == "__main__":
    main()
