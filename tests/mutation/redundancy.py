"""Which tests no mutant needs: every mutant against all tests, and a small set of tests that kills what they kill."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.mutation.forking import load_big_libraries, run_in_fork
from tests.mutation.mutants import Mutant
from tests.mutation.running import Result, Results, copy_of_tree
from tests.mutation.suites import suite_for

_LEAST_S = 20.0


def cover(kills: Mapping[str, set[str]], seconds: Mapping[str, float]) -> list[str]:
    """Tests that together kill every mutant that any test kills, found greedily.

    Examples in docstrings come first, since they stay; then whichever test kills the most of what is left, of equals
    the fastest. A test that is the only one to kill a mutant is always among them.
    """
    chosen = [test for test in kills if not test.startswith("tests/")]
    left = set().union(*kills.values()) - set().union(*(kills[test] for test in chosen))
    while left:
        best = max(kills, key=lambda test: (len(kills[test] & left), -seconds.get(test, 0.0)))
        chosen.append(best)
        left -= kills[best]
    return chosen


def kills_of(results: Sequence[Result], tests: Sequence[str]) -> dict[str, set[str]]:
    """The mutants that each test kills.

    Left out are mutants that ran out of time, since not every test was run, and those with which a file can't be
    imported, since each test of the file would kill them.
    """
    kills: dict[str, set[str]] = {test: set() for test in tests}
    for result in results:
        if result.outcome == "killed" and all("::" in killer for killer in result.killers):
            for killer in result.killers:
                kills.setdefault(killer, set()).add(result.name)
    return kills


def report(results: Sequence[Result], seconds: Mapping[str, float]) -> Iterator[str]:
    """The tests that no mutant needs, the weakest first, each with the test of the cover that it has most in common."""
    kills = kills_of(results, list(seconds))
    chosen = cover(kills, seconds)
    unneeded = sorted(set(kills) - set(chosen), key=lambda test: (len(kills[test]), test))
    for test in unneeded:
        yield f"{len(kills[test]):4} killed, {seconds.get(test, 0.0):5.2f} s  {test}"
        if kills[test]:
            twin = max(chosen, key=lambda one: (len(kills[test] & kills[one]), -len(kills[one])))
            yield f"     {len(kills[test] & kills[twin])} of them by {twin}"
    told = set().union(*kills.values())
    yield f"{len(results)} mutants, {len(told)} with known killers; {len(chosen)} of {len(kills)} tests kill those"


def search(work: list[tuple[str, Mutant]], results: Results, tests: list[str], marks: str, factor: float) -> None:
    """Runs every mutant whose killers aren't known yet against all tests of its target, and prints what none needs.

    Args:
        work: Mutants, each with its target.
        results: The results so far.
        tests: Files of tests; empty for those of the targets.
        marks: What the tests are run with.
        factor: Time limit, in times of the unchanged tests.
    """
    load_big_libraries()
    with tempfile.TemporaryDirectory(prefix="probe-mutants-") as place:
        tree = copy_of_tree(Path(place).resolve())
        targets = list(dict.fromkeys(target for target, _ in work))
        suites = {target: tests or suite_for(tree, target, target) for target in targets}
        unchanged = {target: _unchanged(tree, suite, marks) for target, suite in suites.items()}
        for target, mutant in work:
            known = results.by_name.get(mutant.name)
            if known is None or (known.outcome == "killed" and not known.killers):  # only the first killer was wanted
                limit_s = _LEAST_S + factor * sum(unchanged[target].values())
                results.add(_outcome(tree, mutant, suites[target], marks, limit_s))
    for target in targets:
        mine = [results.by_name[mutant.name] for one, mutant in work if one == target]
        print(f"\n{target}: tests that no mutant needs", *report(mine, unchanged[target]), sep="\n", flush=True)


def _unchanged(tree: Path, suite: list[str], marks: str) -> dict[str, float]:
    """The seconds of each test with nothing changed, where all have to pass."""
    code, seconds, failed = run_in_fork(tree, suite, marks, 3600, keep_bytecode=True)
    if code != 0:
        raise SystemExit(f"{' '.join(suite)}: fails with nothing changed (exit status {code}): {' '.join(failed)}")
    return seconds


def _outcome(tree: Path, mutant: Mutant, suite: list[str], marks: str, limit_s: float) -> Result:
    file = tree / mutant.path
    source = file.read_text("utf-8")
    file.write_text(mutant.applied(source), "utf-8")
    try:
        code, seconds, failed = run_in_fork(tree, suite, marks, limit_s)
    finally:
        file.write_text(source, "utf-8")
    ended_early = code is None or (code != 0 and not failed)
    outcome = "timed out" if ended_early else "killed" if failed else "survived"
    spent = round(sum(seconds.values()), 1)
    killer = failed[0] if failed else ""
    return Result(
        mutant.name, mutant.path, mutant.line, mutant.kind, outcome, spent, killer, mutant.diff(source), failed
    )
