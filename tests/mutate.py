"""Which faults the tests would not notice: random mutants of a package, each run against the package's own tests.

A mutant is the source with one small thing changed: a condition negated, an operator swapped, a constant changed, a
statement deleted, None returned. Tests that fail kill it; a mutant that survives shows a line that no test holds.

    python tests/mutate.py probe/tracking probe/analysis --count 40 --seed 7
    python tests/mutate.py probe/live --count 100 --jobs 4 --results build/mutants.jsonl

Every mutant runs in a copy of the tree, so the checkout is never changed and may be worked in meanwhile. Results are
appended to a file as they come: the same command goes on where it stopped. Not a part of the suite.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import hashlib
import json
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

#: Tests of a package beside ``tests/<the same path>``: where others hold its lines too.
MORE_TESTS: dict[str, tuple[str, ...]] = {
    "probe/analysis": ("tests/figures", "tests/views/test_report.py"),
    "probe/dashboards": ("tests/figures", "tests/publishing"),
    "probe/figures": ("tests/views/test_report.py",),
    "probe/live": ("tests/views/test_panel.py", "tests/views/test_panel_thread.py", "tests/cli/test_cli_tail.py"),
    "probe/publishing": ("tests/tracking/test_tracking_media.py",),
    "probe/recorders": ("tests/test_session.py",),
}

#: What the tests are run with; a first run leaves out the slow ones, which mostly aren't needed to kill a mutant.
QUICK = "not slow and not multiprocess and not browser and not gpu and not framework"
REST = "(slow or multiprocess) and not browser and not gpu and not framework"

_COMPARISONS: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
#: Strings that are names of something, in contrast to prose for people.
_NAME = re.compile(r"[\w./-]+")


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    Attributes:
        path: The file, relative to the repository.
        kind: What was done, such as "negate a condition".
        line: Where, from 1.
        begin: The first character of the source that is replaced.
        end: The first character after it.
        text: What stands there instead.
    """

    path: str
    kind: str
    line: int
    begin: int
    end: int
    text: str

    @property
    def name(self) -> str:
        """The same for the same change of the same file, whatever stands around it."""
        return hashlib.sha256(repr((self.path, self.kind, self.begin, self.text)).encode()).hexdigest()[:16]

    def applied(self, source: str) -> str:
        """The file with the change."""
        return source[: self.begin] + self.text + source[self.end :]

    def diff(self, source: str) -> str:
        """The change as a diff."""
        before, after = (text.splitlines(keepends=True) for text in (source, self.applied(source)))
        return "".join(difflib.unified_diff(before, after, f"a/{self.path}", f"b/{self.path}", n=2))


@dataclass(frozen=True)
class Result:
    """What became of a mutant: "killed", "timed out" (which kills it too) or "survived"."""

    name: str
    path: str
    line: int
    kind: str
    outcome: str
    seconds: float
    killer: str
    diff: str


# -------------------------------------------------------------------------------------------------- making mutants


class _Finder(ast.NodeVisitor):
    """Collects every mutant of one file."""

    def __init__(self, path: str, source: str) -> None:
        self.found: list[Mutant] = []
        self._path = path
        self._source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line.encode()))
        self._bytes = source.encode()

    def _at(self, line: int, column: int) -> int:
        return len(self._bytes[: self._starts[line - 1] + column].decode())

    def _add(self, kind: str, node: Any, text: str) -> None:
        begin = self._at(node.lineno, node.col_offset)
        end = self._at(node.end_lineno, node.end_col_offset)
        if self._source[begin:end] != text:
            self.found.append(Mutant(self._path, kind, node.lineno, begin, end, text))

    # What has no behaviour, or whose places in the source Python 3.11 doesn't know.

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_arg(self, node: ast.arg) -> None:
        pass

    # Statements.

    def _function(self, node: Any) -> None:
        for child in [*node.args.defaults, *(one for one in node.args.kw_defaults if one), *node.body]:
            self.visit(child)

    visit_FunctionDef = visit_AsyncFunctionDef = _function

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        self._condition(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        if not isinstance(node.test, ast.Constant):
            self._condition(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._condition(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._condition(test)
        self.generic_visit(node)

    def _condition(self, test: ast.expr) -> None:
        self._add("negate a condition", test, f"(not ({ast.unparse(test)}))")

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self._add("return None", node, "return None")
            self.visit(node.value)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring, or the dots of a protocol
            self._add("delete a statement", node, "pass")
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._add("delete a statement", node, "pass")  # the error's own words aren't changed: no visit

    def visit_Assign(self, node: ast.Assign) -> None:
        if any(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self._add("delete a statement", node, "pass")
        self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._add("delete a statement", node, "pass")
        self.visit(node.value)

    def visit_Delete(self, node: ast.Delete) -> None:
        self._add("delete a statement", node, "pass")

    # Expressions.

    def visit_Compare(self, node: ast.Compare) -> None:
        for at, operator in enumerate(node.ops):
            operators = [*node.ops]
            operators[at] = _COMPARISONS[type(operator)]()
            other = ast.Compare(node.left, operators, node.comparators)
            self._add("swap a comparison", node, f"({ast.unparse(other)})")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in _ARITHMETIC and not _is_text(node.left) and not _is_text(node.right):
            other = ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right)
            self._add("swap an operator", node, f"({ast.unparse(other)})")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        self._add("swap and/or", node, f"({ast.unparse(other)})")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._add("drop a not", node, f"({ast.unparse(node.operand)})")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if not (isinstance(node.func, ast.Name) and node.func.id == "cast"):
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._add("change a constant", node, repr(not value))
        elif isinstance(value, int | float):
            self._add("change a constant", node, repr(value + 1))
        elif isinstance(value, str) and _NAME.fullmatch(value):
            self._add("change a constant", node, repr(value + "_"))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def mutants_of(path: str, source: str) -> list[Mutant]:
    """Every mutant of a file, in the order of its lines; those that don't compile are left out."""
    finder = _Finder(path, source)
    finder.visit(ast.parse(source))
    return [mutant for mutant in finder.found if _compiles(mutant.applied(source))]


def _compiles(source: str) -> bool:
    try:
        compile(source, "mutant", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def drawn(targets: list[str], count: int, seed: int, skip: Sequence[str] = ()) -> list[tuple[str, Mutant]]:
    """``count`` mutants of each target at random, together with the target."""
    dice = random.Random(seed)
    found: list[tuple[str, Mutant]] = []
    for target in targets:
        everything = [
            mutant
            for path in _modules(target)
            if path not in skip
            for mutant in mutants_of(path, (ROOT / path).read_text("utf-8"))
        ]
        found.extend((target, mutant) for mutant in _evenly(everything, count, dice))
    return found


def _evenly(everything: list[Mutant], count: int, dice: random.Random) -> Iterator[Mutant]:
    """Of each kind about as many: else half of them would be constants."""
    kinds: dict[str, list[Mutant]] = {}
    for mutant in everything:
        kinds.setdefault(mutant.kind, []).append(mutant)
    for _ in range(min(count, len(everything))):
        kind = dice.choice(sorted(kinds))
        yield kinds[kind].pop(dice.randrange(len(kinds[kind])))
        if not kinds[kind]:
            del kinds[kind]


def _modules(target: str) -> list[str]:
    path = ROOT / target
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return [file.relative_to(ROOT).as_posix() for file in files]


# ------------------------------------------------------------------------------------------------------- running


def suite_for(tree: Path, target: str, module: str) -> list[str]:
    """The files whose tests hold a module, those first that kill soonest.

    First the module itself, where it has examples, then the test files named after it, then those that import it.
    """
    path = Path("tests") / Path(target).relative_to("probe")
    own = path.with_name(f"test_{path.name}") if path.suffix else path
    places = [
        own.as_posix(),
        *(more for start, tests in MORE_TESTS.items() if target.startswith(start) for more in tests),
    ]
    files = dict.fromkeys(file for place in places for file in _test_files(tree, place))
    stem = Path(module).stem
    first = [module] if (tree / module).is_file() and ">>> " in (tree / module).read_text("utf-8") else []
    return first + sorted(files, key=lambda file: (stem not in Path(file).stem, not _imports(tree / file, module)))


def _imports(test: Path, module: str) -> bool:
    """Whether a test file imports a module, as a whole or a name of it."""
    package, _, stem = module.removesuffix(".py").replace("/", ".").rpartition(".")
    text = test.read_text("utf-8")
    wanted = rf"^\s*(from|import) {re.escape(package)}(\.{stem}\b| import [^\n]*\b{stem}\b)"
    return re.search(wanted, text, re.MULTILINE) is not None


def _test_files(tree: Path, place: str) -> list[str]:
    path = tree / place
    files = sorted(path.rglob("test_*.py")) if path.is_dir() else [path] if path.exists() else []
    return [file.relative_to(tree).as_posix() for file in files]


#: Runs of tests that have to end with this process.
_RUNNING: set[subprocess.Popen[bytes]] = set()


@dataclass(frozen=True)
class Run:
    """One run of some tests.

    Attributes:
        code: pytest's exit status, None where the time was up.
        seconds: How long it took.
        failed: The first test that failed, or the file that can't be imported any more; "" where none did.
        output: The end of what pytest wrote.
    """

    code: int | None
    seconds: float
    failed: str
    output: str

    @property
    def passed(self) -> bool:
        return self.code in (0, 5)  # 5: no test has these marks

    @property
    def says_nothing(self) -> bool:
        """pytest itself failed, so nothing is known of the mutant."""
        return not self.passed and self.code is not None and not self.failed


def run_tests(tree: Path, tests: list[str], marks: str, limit_s: float) -> Run:
    """Runs tests in a copy of the tree until the first fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", "-m", marks, *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    began = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(
            command, cwd=tree, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        _RUNNING.add(process)
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _ended(process)
        output.seek(0)
        text = output.read()
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
    return Run(code, time.monotonic() - began, failed[1] if failed else "", text[-2000:])


def _ended(process: subprocess.Popen[bytes]) -> None:
    """Ends what the tests started too: a mutant may leave ranks behind that wait for each other."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
    _RUNNING.discard(process)


def copy_of_tree(place: Path) -> Path:
    """The tracked files, and those that git doesn't ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in listed.stdout.decode().split("\0"):
        source = ROOT / name
        if name and source.is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, place / name)
    return place


def outcome_of(tree: Path, target: str, mutant: Mutant, limits_s: dict[str, float]) -> Result:
    """Runs a mutant against the quick tests, and if it lives against the others."""
    file = tree / mutant.path
    source = file.read_text("utf-8")
    blank = Result(mutant.name, mutant.path, mutant.line, mutant.kind, "survived", 0.0, "", mutant.diff(source))
    seconds = 0.0
    file.write_text(mutant.applied(source), "utf-8")
    try:
        for marks, limit_s in limits_s.items():
            run = run_tests(tree, suite_for(tree, target, mutant.path), marks, limit_s)
            seconds += run.seconds
            if run.says_nothing:
                raise RuntimeError(f"pytest failed (exit status {run.code}):\n{run.output}")
            if not run.passed:
                outcome = "timed out" if run.code is None else "killed"
                return replace(blank, outcome=outcome, seconds=round(seconds, 1), killer=run.failed)
    finally:
        file.write_text(source, "utf-8")
    return replace(blank, seconds=round(seconds, 1))


def limits_of(tree: Path, target: str, stages: list[str], factor: float) -> dict[str, float]:
    """How long each stage may take: ``factor`` times what it takes with nothing changed, which has to pass."""
    limits = {}
    for marks in stages:
        run = run_tests(tree, suite_for(tree, target, target), marks, 3600)
        if not run.passed:
            raise SystemExit(f"{target}: its tests fail with nothing changed ({run.failed or run.output})")
        limits[marks] = 20 + factor * run.seconds
    return limits


class Results:
    """The results so far, in a file of JSON lines."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._lock = threading.Lock()
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        self.by_name = {one["name"]: Result(**one) for one in map(json.loads, lines)}

    def add(self, result: Result) -> None:
        """Keeps a result and says it in one line."""
        with self._lock:
            self.by_name[result.name] = result
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(result)) + "\n")
            print(f"{result.outcome:9} {result.path}:{result.line} {result.kind} ({result.seconds:.0f} s)", flush=True)


def run_all(work: list[tuple[str, Mutant]], results: Results, stages: list[str], jobs: int, factor: float) -> None:
    """Runs what has no result yet, ``jobs`` mutants at a time."""
    left: queue.SimpleQueue[tuple[str, Mutant]] = queue.SimpleQueue()
    for one in work:
        if one[1].name not in results.by_name:
            left.put(one)
    with tempfile.TemporaryDirectory(prefix="probe-mutants-") as place:
        trees = [copy_of_tree(Path(place, str(at))) for at in range(jobs)]
        waiting = {target for target, mutant in work if mutant.name not in results.by_name}
        limits = {target: limits_of(trees[0], target, stages, factor) for target in sorted(waiting)}
        threads = [threading.Thread(target=_worker, args=(tree, left, limits, results), daemon=True) for tree in trees]
        for thread in threads:
            thread.start()
        try:
            _joined(threads)
        except KeyboardInterrupt:
            while not left.empty():
                with contextlib.suppress(queue.Empty):
                    left.get_nowait()
            for process in list(_RUNNING):
                _ended(process)
            _joined(threads)
            raise


def _joined(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join()


def _worker(tree: Path, left: Any, limits: dict[str, dict[str, float]], results: Results) -> None:
    while True:
        try:
            target, mutant = left.get_nowait()
        except queue.Empty:
            return
        try:
            results.add(outcome_of(tree, target, mutant, limits[target]))
        except RuntimeError as error:
            print(f"no verdict on {mutant.path}:{mutant.line}: {error}", flush=True)


# -------------------------------------------------------------------------------------------------------- report


def report(work: list[tuple[str, Mutant]], results: Results) -> Iterator[str]:
    """The survivors as diffs, then the counts by package."""
    counts: dict[str, Counter[str]] = {}
    for target, mutant in work:
        result = results.by_name.get(mutant.name)
        outcome = result.outcome if result else "not run"
        counts.setdefault(target, Counter())[outcome] += 1
        if result is not None and outcome == "survived":
            yield f"\nsurvived ({mutant.kind}):\n{result.diff}"
    yield ""
    for target, count in counts.items():
        dead = count["killed"] + count["timed out"]
        ran = dead + count["survived"]
        yield f"{target}: {dead} of {ran} killed ({count['timed out']} by the time limit), {count['not run']} not run"


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Random mutants of packages, each against the package's tests.")
    parser.add_argument("targets", nargs="+", metavar="PACKAGE", help="packages or files, such as probe/tracking")
    parser.add_argument("--count", type=int, default=40, help="mutants of each package (default: 40)")
    parser.add_argument("--seed", type=int, help="the same seed draws the same mutants of the same source")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time, each in a copy of its own")
    parser.add_argument("--factor", type=float, default=3.0, help="time limit, in times of the unchanged tests")
    parser.add_argument("--quick", action="store_true", help="leave out tests marked slow or multiprocess")
    parser.add_argument("--skip", default=[], nargs="*", metavar="FILE", help="files without mutants")
    parser.add_argument("--results", type=Path, help="file of results (default: build/mutants-SEED.jsonl)")
    return parser.parse_args()


def main() -> None:
    """Draws, runs and reports."""
    given = options()
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    results = Results(given.results or ROOT / "build" / f"mutants-{seed}.jsonl")
    targets = [Path(one).as_posix().rstrip("/") for one in given.targets]
    for target in targets:
        if not _modules(target) or not suite_for(ROOT, target, target):
            raise SystemExit(f"{target}: expected a package or module of this repository that has tests")
    work = drawn(targets, given.count, seed, given.skip)
    print(f"seed {seed}: {len(work)} mutants", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run_all(work, results, [QUICK] if given.quick else [QUICK, REST], given.jobs, given.factor)
    except KeyboardInterrupt:
        print("stopped; the same command with this seed goes on")
    print("\n".join(report(work, results)))


if __name__ == "__main__":
    main()
