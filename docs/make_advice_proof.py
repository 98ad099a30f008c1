"""Carry out the advice for a run of verl, measure it, and write docs/design/advice_proof.md.

In verl's own environment: ``make .venv-verl/.made; .venv-verl/bin/python docs/make_advice_proof.py [DIRECTORY]``.
verl's GRPO trainer of the tests is started with micro-batches of a fixed number of rows; ``probe advise --config``
prints a patch of the file that it was started with; the patch is applied, the trainer is started again with the
patched file, and ``probe compare`` says whether what was promised came. Each start takes two minutes on an idle
machine. Where a directory is given the two runs stay there, and the page is made of them the next time.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from probe.runs.reader import Run
from probe.text import number, seconds

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "design" / "advice_proof.md"
COMMAND: Final = ".venv-verl/bin/python docs/make_advice_proof.py"
STEPS: Final = 12
LIMIT_S: Final = 3600  #: of a start, on a machine that others use

_A: Final = "actor_rollout_ref"
#: What both runs are started with, beside the settings of the tests' trainer.
SCRIPT: Final = f"""\
python -m verl.trainer.main_ppo \\
    data.train_batch_size=16 \\
    {_A}.actor.ppo_mini_batch_size=8 \\
    {_A}.actor.use_dynamic_bsz=false \\
    {_A}.actor.ppo_micro_batch_size_per_gpu=2 \\
    {_A}.actor.ppo_max_token_len_per_gpu=16384 \\
    {_A}.rollout.log_prob_use_dynamic_bsz=false \\
    {_A}.rollout.log_prob_micro_batch_size_per_gpu=2 \\
    {_A}.rollout.log_prob_max_token_len_per_gpu=16384 \\
    {_A}.ref.log_prob_micro_batch_size_per_gpu=2 \\
    trainer.balance_batch=false \\
    trainer.total_epochs=2 \\
    trainer.total_training_steps={STEPS} \\
    trainer.save_freq=-1
"""

HEAD: Final = """# The advice, carried out

This page checks the promises of [`probe advise`](../guides/advice.md) on a real run, for anyone who wants to know how
far to trust them. verl's GRPO trainer (from `tests/frameworks/test_verl_training.py`) trains on two CPU workers for
{steps} steps, with micro-batches of two rows. `probe advise` prints a patch for the starting script. The trainer then
runs again with the patched script. These commands printed or measured everything below:

```sh
make .venv-verl/.made
{command}
```

"""


def train(place: Path, name: str) -> None:
    """Start the trainer with the script that lies there, unless its run is there already."""
    sys.path.insert(0, str(ROOT / "tests" / "frameworks" / "verl_cpu"))
    import recipes
    import tiny

    if (place / f"{name}.done").exists():
        return
    if not (place / "tiny").exists():
        tiny.make(place / "tiny")
    recipes.LIMIT_S = LIMIT_S
    words = shlex.split((place / "train.sh").read_text().replace("\\\n", " "))
    overrides = [word for word in words if "=" in word]
    done = recipes.grpo(place / f"{name}-verl", place / "tiny", *overrides, PROBE_RUN_DIR=str(place / name))
    if done.code:
        raise RuntimeError(done.output[-3000:])
    load = os.getloadavg()[1]
    (place / f"{name}.done").write_text(json.dumps({"load": load}))


def said(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What a command of probe prints, with the runs as its directories' names."""
    command = [sys.executable, "-m", "probe", *arguments]
    environ = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    return subprocess.run(command, cwd=place, env=environ, capture_output=True, text=True, check=True)  # noqa: S603


def make(place: Path) -> str:
    """Train twice, as far as that isn't done, and return the text of the page."""
    script = place / "train.sh"
    if not script.exists():
        script.write_text(SCRIPT)
    if not (place / "advice.patch").exists():
        train(place, "before")
        advised = said(place, "advise", "before", "--config", "train.sh")
        command = [shutil.which("patch") or "patch", "-p1"]
        subprocess.run(command, input=advised.stdout, text=True, cwd=place, check=True, capture_output=True)  # noqa: S603
        (place / "advice.txt").write_text(advised.stderr)
        (place / "advice.patch").write_text(advised.stdout)
    train(place, "after")
    return "".join(page(place))


def page(place: Path) -> Iterator[str]:
    """The text of the page."""
    yield HEAD.format(steps=STEPS, command=COMMAND)
    yield from ("## The starting script\n\n", fenced("sh", SCRIPT))
    yield from ("\n## The advice\n\n", fenced("text", (place / "advice.txt").read_text()))
    yield "\n`probe advise before --config train.sh` prints this patch. It was applied unchanged:\n\n"
    yield fenced("diff", (place / "advice.patch").read_text())
    compared = json.loads(said(place, "compare", "before", "after", "--json").stdout)
    yield from ("\n## Before and after\n\n", *table(compared["promises"]))
    yield "\n## Seconds\n\n"
    with Run(place / "before") as before, Run(place / "after") as after:
        yield from times(before, after)
    yield "\n## Did the promise hold?\n\n`probe compare before after` says:\n\n"
    words = {True: "held", False: "not held", None: "not known"}
    yield fenced("text", "\n".join(f"{words[one['held']]}: {one['about']}" for one in compared["promises"]))
    loads = [json.loads((place / f"{name}.done").read_text())["load"] for name in ("before", "after")]
    yield (
        f"\nMade on {platform.machine()} with {os.cpu_count()} cores, Python {platform.python_version()}, verl "
        f"{version('verl')} and PyTorch {version('torch')}. At the end of the two runs the 5-minute load average "
        f"was {loads[0]:.1f} and {loads[1]:.1f}. "
    )
    busy = max(loads) > 1.5 * (os.cpu_count() or 1)
    yield (
        "Other programs used the machine, which changes the seconds: judge by the counts.\n"
        if busy
        else "Each run has two workers and Ray's own processes.\n"
    )


def table(promises: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What was, what the replay promised and what came."""
    yield "| number | before | promised | after |\n|---|---|---|---|\n"
    for one in promises:
        phase = f" ({one['about'].partition(' in ')[2].split()[0]})" if " in " in one["about"] else ""
        told = " | ".join(number(one[name]) for name in ("before", "promised", "came"))
        yield f"| {one['number']}{phase} | {told} |\n"


def times(before: Run, after: Run) -> Iterator[str]:
    """Seconds of the phases that the change is about, with their quartiles, and whether these overlap."""
    yield "| phase | before | quartiles | after | quartiles |\n|---|---|---|---|---|\n"
    overlapping = []
    for phase in ("old_log_prob", "update_actor"):
        was, came = (statistics.quantiles(seconds_of(run, phase), n=4) for run in (before, after))
        cells = [f"{seconds(middle)} | {seconds(low)} to {seconds(high)}" for low, middle, high in (was, came)]
        yield f"| {phase} | {' | '.join(cells)} |\n"
        if was[0] <= came[2] and came[0] <= was[2]:
            overlapping.append(phase)
    if overlapping:
        yield (
            f"\nThe quartiles of {' and of '.join(overlapping)} overlap: steps within one run differ by more "
            "than the change saves.\n"
        )


def seconds_of(run: Run, phase: str) -> list[float]:
    """Of each step but the first, on the slower rank."""
    frame = run.sql(
        f"""select step, max(seconds) as seconds from (
              select step, process, sum(duration) as seconds from scopes
              where phase = '{phase}' and kind in ('phase', 'watch') and step > 1 group by all)
            group by step order by step"""  # noqa: S608  (a phase of verl's)
    )
    return [float(one) for one in frame["seconds"]]


def fenced(kind: str, text: str) -> str:
    """A block of a page that nobody runs."""
    note = "<!-- not run: this was printed -->\n" if kind in ("sh", "console") else ""
    return f"{note}```{kind}\n{text.rstrip()}\n```\n"


def main() -> None:
    """Write the page."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(sys.argv[1] if len(sys.argv) > 1 else folder).resolve()
        place.mkdir(parents=True, exist_ok=True)
        text = make(place)
        for secret in (str(place), str(ROOT), str(Path.home())):
            if len(secret) > 1 and secret in text:
                raise RuntimeError(f"the page would name {secret}")
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
