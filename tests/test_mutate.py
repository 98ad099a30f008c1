"""The mutation script: which mutants it makes, and that it tells a tested line from an untested one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import mutate
from tests.mutation import mutants, redundancy, running, suites

SOURCE = '''"""A module."""

LIMIT = 3


def clip(value: int, mode: str = "both") -> int:
    """A docstring."""
    if value > LIMIT and mode == "both":
        return LIMIT
    return value + 1
'''


def changes(source=SOURCE):
    return {(one.kind, one.applied(source)) for one in mutants.mutants_of("clip.py", source)}


def test_each_kind_of_change_is_made_and_nothing_else():
    def changed(old, new):
        assert SOURCE.count(old) == 1
        return SOURCE.replace(old, new)

    assert changes() == {
        ("change a constant", changed("LIMIT = 3", "LIMIT = 4")),
        ("change a constant", changed('str = "both"', "str = 'both_'")),
        ("change a constant", changed('== "both"', "== 'both_'")),
        ("change a constant", changed("+ 1", "+ 2")),
        (
            "negate a condition",
            changed('value > LIMIT and mode == "both"', "(not (value > LIMIT and mode == 'both'))"),
        ),
        ("swap and/or", changed('value > LIMIT and mode == "both"', "(value > LIMIT or mode == 'both')")),
        ("swap a comparison", changed("value > LIMIT", "(value >= LIMIT)")),
        ("swap a comparison", changed('mode == "both"', "(mode != 'both')")),
        ("return None", changed("return LIMIT", "return None")),
        ("return None", changed("return value + 1", "return None")),
        ("swap an operator", changed("value + 1", "(value - 1)")),
    }


def test_statements_are_deleted_and_letters_outside_ascii_shift_nothing():
    source = "def f(self):\n    x = 'é'; self.y = x\n    raise ValueError('no')\n"
    made = {text for kind, text in changes(source) if kind == "delete a statement"}
    assert made == {source.replace("self.y = x", "pass"), source.replace("raise ValueError('no')", "pass")}


def test_the_same_seed_draws_the_same_mutants():
    drawn = mutants.drawn(["probe/text.py"], 5, seed=3)
    assert drawn == mutants.drawn(["probe/text.py"], 5, seed=3)
    assert drawn != mutants.drawn(["probe/text.py"], 5, seed=4)
    assert len({mutant.name for _, mutant in drawn}) == 5


@pytest.mark.slow
def test_a_line_without_a_test_survives_and_one_with_a_test_does_not(tmp_path, monkeypatch):
    (tmp_path / "tests").mkdir()
    (tmp_path / "clip.py").write_text(SOURCE)
    (tmp_path / "tests" / "test_clip.py").write_text(
        "from clip import clip\n\ndef test_clip():\n    assert clip(1) == 2\n"
    )
    monkeypatch.setattr(running, "suite_for", lambda tree, target, module: ["tests/test_clip.py"])
    by_change = {one.applied(SOURCE): one for one in mutants.mutants_of("clip.py", SOURCE)}
    tested = by_change[SOURCE.replace("value + 1", "(value - 1)")]
    untested = by_change[SOURCE.replace("return LIMIT", "return None")]
    limits = {running.QUICK: 60.0}
    dead = running.outcome_of(tmp_path, "clip.py", tested, limits)
    alive = running.outcome_of(tmp_path, "clip.py", untested, limits)
    assert (dead.outcome, dead.killer) == ("killed", "tests/test_clip.py::test_clip")
    assert alive.outcome == "survived"
    assert "-        return LIMIT\n+        return None\n" in alive.diff
    assert (tmp_path / "clip.py").read_text() == SOURCE
    with pytest.raises(RuntimeError, match="exit status 4"):  # pytest can't run: that is no verdict
        running.outcome_of(tmp_path, "clip.py", tested, {"no (such": 60.0})
    results = running.Results(tmp_path / "results.jsonl")
    results.add(alive)
    assert running.Results(tmp_path / "results.jsonl").by_name == {alive.name: alive}
    assert "1 of 2 killed" not in "\n".join(mutate.report([("clip.py", tested), ("clip.py", untested)], results))
    results.add(dead)
    assert "clip.py: 1 of 2 killed" in "\n".join(mutate.report([("clip.py", tested), ("clip.py", untested)], results))


def killed(name, *killers, outcome="killed"):
    return running.Result(name, "clip.py", 1, "kind", outcome, 0.0, killers[0] if killers else "", "", list(killers))


def test_what_no_mutant_needs_is_told_with_its_twin_and_the_weakest_first():
    example, wide, narrow, slow, only = "probe/clip.py::clip", *(f"tests/t.py::{one}" for one in "wnso")
    found = [
        killed("a", example, wide),
        killed("b", wide, narrow, slow),
        killed("c", wide, slow),
        killed("d", only, wide),
        killed("e", only),
        killed("f"),
        killed("g", narrow, outcome="timed out"),  # what comes after it wasn't run
        killed("h", "tests/t.py"),  # the file can't be imported
    ]
    seconds = {example: 0.1, wide: 0.1, narrow: 0.1, slow: 2.0, only: 0.1, "tests/t.py::idle": 0.1}
    kills = redundancy.kills_of(found, list(seconds))
    assert kills[narrow] == {"b"}
    assert redundancy.cover(kills, seconds) == [example, wide, only]
    assert [" ".join(line.split()) for line in redundancy.report(found, seconds)] == [
        "0 killed, 0.10 s tests/t.py::idle",
        f"1 killed, 0.10 s {narrow}",
        f"1 of them by {wide}",
        f"2 killed, 2.00 s {slow}",
        f"2 of them by {wide}",
        "8 mutants, 5 with known killers; 3 of 6 tests kill those",
    ]


def test_of_tests_that_kill_the_same_the_fastest_is_kept():
    kills = {f"tests/t.py::{one}": {"a", "b"} for one in ("slow", "fast")}
    assert redundancy.cover(kills, {"tests/t.py::slow": 1.0, "tests/t.py::fast": 0.1}) == ["tests/t.py::fast"]


#: As the command does it, in a process that has nothing but the tests of a tree of its own.
SEARCH = """
import json
import sys
from pathlib import Path

from tests.mutation import mutants, redundancy, running

tree, source = Path(sys.argv[1]), Path(sys.argv[1], "clip.py").read_text()
by_change = {one.applied(source): one for one in mutants.mutants_of("clip.py", source)}
changes = (("return LIMIT", "return None"), ("value + 1", "value + 2"), ("LIMIT = 3", "LIMIT = 4"))
work = [("clip.py", by_change[source.replace(old, new)]) for old, new in changes]
redundancy.copy_of_tree = lambda place: tree
redundancy._LEAST_S = 600.0
results = running.Results(tree / "results.jsonl")
redundancy.search(work, results, ["tests/test_clip.py"], running.QUICK, 3.0)
found = [results.by_name[mutant.name] for _, mutant in work]
print(json.dumps([[one.outcome, one.killers] for one in found]))
print(redundancy._outcome(tree, work[0][1], ["tests/test_clip.py"], running.QUICK, 0.0).outcome)
assert (tree / "clip.py").read_text() == source
(tree / "clip.py").write_text("no python")
redundancy.search(work, results, ["tests/test_clip.py"], running.QUICK, 3.0)
"""


@pytest.mark.slow
def test_each_mutant_is_run_against_every_test_until_its_time_is_up(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "clip.py").write_text(SOURCE)
    (tmp_path / "tests" / "test_clip.py").write_text(
        "from clip import clip\n\n"
        "def test_one():\n    assert clip(1) == 2\n\n"
        "def test_other():\n    assert clip(2) == 3\n\n"
        "def test_limit():\n    assert clip(9) == 3\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(mutants.ROOT)}
    command = [sys.executable, "-c", SEARCH, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    *told, killers, late = done.stdout.splitlines()
    test = "tests/test_clip.py::test_{}".format
    assert json.loads(killers) == [
        ["killed", [test("limit")]],
        ["killed", [test("one"), test("other")]],
        ["killed", [test("limit")]],
    ]
    assert late == "timed out"
    assert "3 mutants, 3 with known killers; 2 of 3 tests kill those" in told
    assert done.returncode == 1
    assert "tests/test_clip.py: fails with nothing changed" in done.stderr


def test_a_package_and_a_module_have_the_tests_of_their_own_path():
    assert suites.suite_for(mutants.ROOT, "probe/core/timing.py", "probe/core/timing.py") == [
        "probe/core/timing.py",  # its examples
        "tests/core/test_timing.py",
    ]
    suite = suites.suite_for(mutants.ROOT, "probe/runs", "probe/runs/compaction.py")
    assert suite[0] == "tests/runs/test_compaction.py"
    assert set(suite) > {"tests/runs/test_run_reader.py", "tests/runs/test_run_writer.py"}


def test_a_module_that_no_file_is_named_after_has_the_tests_that_import_it_first(tmp_path):
    tests = {
        "a_other": "from probe.live import tables\nfrom probe.living.intake import x\n",
        "b_whole": "from probe.live import feed, intake\n",
        "c_name": "from probe.live.intake import Intake\n",
        "d_longer": "from probe.live.intakes import Intakes\n",
        "e_feed": "import probe\n",
    }
    (tmp_path / "tests" / "live").mkdir(parents=True)
    for name, text in tests.items():
        (tmp_path / "tests" / "live" / f"test_{name}.py").write_text(text)
    assert [Path(file).stem for file in suites.suite_for(tmp_path, "probe/live", "probe/live/intake.py")] == [
        "test_b_whole",
        "test_c_name",
        "test_a_other",
        "test_d_longer",
        "test_e_feed",
    ]
    assert suites.suite_for(tmp_path, "probe/live", "probe/live/feed.py")[0] == "tests/live/test_e_feed.py"
