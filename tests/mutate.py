"""Which faults the tests would not notice: random mutants of a package, each run against the package's own tests.

A mutant is the source with one small thing changed: a condition negated, an operator swapped, a constant changed, a
statement deleted, None returned. Tests that fail kill it; a mutant that survives shows a line that no test holds.

    python tests/mutate.py probe/tracking probe/analysis --count 40 --seed 7
    python tests/mutate.py probe/live --count 100 --jobs 4 --results build/mutants.jsonl
    python tests/mutate.py probe/core/metric.py --count 300 --seed 7 --redundant --tests tests/core/test_metric.py

With ``--redundant`` each mutant runs against all quick tests, and the tests that no mutant needs are printed. That is
where to look for two tests of the same, not a verdict: what the mutants can't express, a test may still hold.

Every mutant runs in a copy of the tree, so the checkout is never changed and may be worked in meanwhile. Results are
appended to a file as they come: the same command goes on where it stopped. Not a part of the suite.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

if __name__ == "__main__":  # this file's folder is on the path then, and not the repository
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.mutation import redundancy
from tests.mutation.mutants import ROOT, Mutant, drawn, modules_of
from tests.mutation.running import QUICK, REST, Results, run_all
from tests.mutation.suites import suite_for


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
    parser.add_argument("--redundant", action="store_true", help="which quick tests no mutant needs, in one job")
    parser.add_argument("--tests", default=[], nargs="*", metavar="FILE", help="with --redundant: only these tests")
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
        if not modules_of(target) or not (given.tests or suite_for(ROOT, target, target)):
            raise SystemExit(f"{target}: expected a package or module of this repository that has tests")
    work = drawn(targets, given.count, seed, given.skip)
    print(f"seed {seed}: {len(work)} mutants", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if given.redundant:
            redundancy.search(work, results, given.tests, QUICK, given.factor)
            return
        run_all(work, results, [QUICK] if given.quick else [QUICK, REST], given.jobs, given.factor)
    except KeyboardInterrupt:
        print("stopped; the same command with this seed goes on")
    print("\n".join(report(work, results)))


if __name__ == "__main__":
    main()
