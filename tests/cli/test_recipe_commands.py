"""The recipes for Slurm, Kubernetes and Ray in the documentation call probe's commands as they are."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from probe.adapters.automatic import VARIABLE
from probe.cli import make_parser
from probe.runs.upload import UPLOAD_VARIABLE

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("many_machines.md", "frameworks/probe_run.md")
TEXT = {page: (DOCS / page).read_text() for page in PAGES}
BLOCKS = [
    (page, kind, code)
    for page in PAGES
    for kind, code in re.findall(r"^```(bash|console|yaml)\n(.*?)^```", TEXT[page], re.DOTALL | re.MULTILINE)
]


def called(code: str) -> list[list[str]]:
    """The arguments of each call of probe in lines of a shell."""
    found = []
    for line in code.splitlines():
        words = shlex.split(line, comments=True)
        begins = [at for at, word in enumerate(words) if word == "probe"]
        if begins:
            given = words[begins[0] + 1 :]
            found.append([one for one in given if one != "&"])
    return found


CALLS = [call for _, kind, code in BLOCKS if kind != "yaml" for call in called(code)]


def test_7_the_recipes_have_calls_to_look_at():
    assert len([call for call in CALLS if call[0] == "sync"]) >= 3
    assert len([call for call in CALLS if call[0] == "run"]) >= 4


@pytest.mark.parametrize("call", CALLS, ids=" ".join)
def test_7_a_command_of_a_recipe_is_one_of_ours(call):
    assert make_parser().parse_args(call).command == call[0]


def test_7_the_script_for_slurm_is_one_that_a_shell_reads():
    (script,) = [code for page, kind, code in BLOCKS if page == PAGES[0] and kind == "bash" and "#SBATCH" in code]
    shell = shutil.which("bash")
    if shell is None:
        pytest.skip("there is no bash")
    done = subprocess.run([shell, "-n"], input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{VARIABLE}=" in script
    assert script.count('probe sync "$PROBE_RUN_DIR" "$URL"') == 2  # while it trains, and what came last


def test_7_the_pod_copies_the_directory_that_its_trainer_records_to():
    (text,) = [code for _, kind, code in BLOCKS if kind == "yaml"]
    spec = yaml.safe_load(text)["spec"]
    (sidecar,), (trainer,) = spec["initContainers"], spec["containers"]
    assert sidecar["restartPolicy"] == "Always"  # without it the trainer would wait for its end
    name, *given = sidecar["command"]
    asked = make_parser().parse_args(given)
    (variable,) = trainer["env"]
    assert (name, asked.command, asked.follow) == ("probe", "sync", True)
    assert variable == {"name": VARIABLE, "value": asked.run_path}
    volumes = {one["name"] for one in spec["volumes"]}
    for one in (sidecar, trainer):
        (mount,) = one["volumeMounts"]
        assert mount["name"] in volumes
        assert asked.run_path.startswith(f"{mount['mountPath']}/")


def test_7_jobs_that_are_submitted_to_ray_are_given_the_run_directory():
    submitted = [line for _, _, code in BLOCKS for line in code.splitlines() if line.startswith("ray job submit")]
    assert len(submitted) == 2
    for line in submitted:
        words = shlex.split(line)
        given = json.loads(words[words.index("--runtime-env-json") + 1])["env_vars"]
        assert set(given) <= {VARIABLE, UPLOAD_VARIABLE}
        assert given[VARIABLE].startswith("/")
