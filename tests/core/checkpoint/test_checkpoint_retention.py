"""Which checkpoint is the latest, which may go, and that no crash on the way costs the last good one."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn

from probe.core.checkpoint import (
    FSDPCheckpointManager,
    find_latest_ckpt_path,
    get_checkpoint_tracker_filename,
    update_checkpoint_tracker,
)
from probe.core.checkpoint import files as checkpoint_files
from probe.errors import InputError, InputTypeError


def manager(value=0.0):
    model = nn.Linear(3, 2)
    nn.init.constant_(model.weight, value)
    return FSDPCheckpointManager(model, checkpoint_contents={"save": ["model"], "load": ["model"]})


def value_of(checkpoint):
    one = manager(-1.0)
    one.load_checkpoint(checkpoint)
    return one.model.weight[0, 0].item()


def names(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("latest"))


def steps(*numbers):
    return [f"global_step_{number}" for number in numbers]


# ------------------------------------------------------------------------------------------------------------- latest


def test_the_tracker_names_the_latest(tmp_path):
    assert find_latest_ckpt_path(None) is None
    assert find_latest_ckpt_path(tmp_path) is None, "no tracker"
    assert find_latest_ckpt_path(tmp_path / "none") is None
    for step in (1, 2):
        manager().save_checkpoint(tmp_path / f"global_step_{step}", global_step=step)
        assert find_latest_ckpt_path(str(tmp_path)) == str(tmp_path / f"global_step_{step}")
    tracker = Path(get_checkpoint_tracker_filename(tmp_path))
    assert tracker == tmp_path / "latest_checkpointed_iteration.txt"
    assert tracker.read_text() == "2"
    tracker.write_text("1\n")
    assert find_latest_ckpt_path(tmp_path) == str(tmp_path / "global_step_1")
    tracker.write_text("7")
    assert find_latest_ckpt_path(tmp_path) is None, "the folder that it names is missing"


@pytest.mark.parametrize("content", [b"", b"garbage", b"\xff\xfe\x00", b"-3", b"1.5", b"9" * 400])
def test_a_tracker_that_cannot_be_read_never_raises(tmp_path, caplog, content):
    for step in (9, 10):
        manager().save_checkpoint(tmp_path / f"global_step_{step}", global_step=step)
    (tmp_path / "global_step_11.incomplete").mkdir()
    Path(get_checkpoint_tracker_filename(tmp_path)).write_bytes(content)
    assert find_latest_ckpt_path(tmp_path) == str(tmp_path / "global_step_10"), "by number, not by name"
    assert "looking for the newest complete checkpoint" in caplog.text
    assert "%s" not in caplog.text
    (tmp_path / "global_step_10" / "shards" / "chunks.json").unlink()
    assert find_latest_ckpt_path(tmp_path) == str(tmp_path / "global_step_9")
    assert find_latest_ckpt_path(tmp_path, "iteration_{}") is None


def test_a_tracked_checkpoint_that_is_not_complete_is_passed_over(tmp_path, caplog):
    for step in (1, 2):
        manager().save_checkpoint(tmp_path / f"global_step_{step}", global_step=step)
    shard = next((tmp_path / "global_step_2" / "shards").glob("*.distcp"))
    shard.write_bytes(shard.read_bytes()[:-1])
    assert find_latest_ckpt_path(tmp_path) == str(tmp_path / "global_step_1")
    assert "isn't complete" in caplog.text
    shutil.rmtree(tmp_path / "global_step_1")
    assert find_latest_ckpt_path(tmp_path) is None


def test_another_format_and_a_checkpoint_of_another_program(tmp_path):
    manager().save_checkpoint(tmp_path / "step-0007-x", global_step=7)
    assert find_latest_ckpt_path(tmp_path, "step-{:04d}-x") == str(tmp_path / "step-0007-x")
    for wrong in ("global_step", "{}_{}", 3):
        with pytest.raises(InputError, match="expected one placeholder"):
            find_latest_ckpt_path(tmp_path, wrong)
    (tmp_path / "global_step_8" / "actor").mkdir(parents=True)
    (tmp_path / "global_step_8" / "actor" / "model_world_size_8_rank_0.pt").write_bytes(b"x")
    update_checkpoint_tracker(tmp_path, 8)
    assert find_latest_ckpt_path(tmp_path) == str(tmp_path / "global_step_8"), "its tracker vouches for it"
    with pytest.raises(InputTypeError, match="whole number"):
        update_checkpoint_tracker(tmp_path, "8")


def test_parts_of_one_step(tmp_path):
    for step in (1, 2):
        for part in ("actor", "critic"):
            manager(step).save_checkpoint(tmp_path / f"global_step_{step}" / part, global_step=step)
            assert find_latest_ckpt_path(tmp_path) != str(tmp_path / f"global_step_{step}"), "the trainer says when"
        update_checkpoint_tracker(tmp_path, step)
        assert find_latest_ckpt_path(tmp_path) == str(tmp_path / f"global_step_{step}")
    (tmp_path / "global_step_2" / "critic.incomplete").mkdir()
    assert find_latest_ckpt_path(tmp_path) == str(tmp_path / "global_step_1")


def asynchronous(value=0.0):
    """As verl's trainers make it where they leave the tracker to the manager."""
    model = nn.Linear(3, 2)
    nn.init.constant_(model.weight, value)
    theirs = {"save_contents": ["model"], "load_contents": ["model"], "async_save": True}
    return FSDPCheckpointManager(model, checkpoint_config=theirs)


def test_25_6_with_async_save_the_manager_sets_the_tracker_itself(tmp_path):
    for step in (7, 14):
        asynchronous(step).save_checkpoint(tmp_path / f"global_step_{step}" / "actor", global_step=step)
        assert find_latest_ckpt_path(tmp_path) == str(tmp_path / f"global_step_{step}")


def test_25_6_of_several_parts_who_completes_the_step_sets_the_tracker(tmp_path):
    def save(step, part):
        asynchronous(step).save_checkpoint(tmp_path / f"global_step_{step}" / part, global_step=step)

    save(7, "actor")
    save(7, "critic")
    assert find_latest_ckpt_path(tmp_path) == str(tmp_path / "global_step_7")
    save(14, "critic")
    assert find_latest_ckpt_path(tmp_path) == str(tmp_path / "global_step_7"), "there is no actor yet"
    (tmp_path / "global_step_14" / "reward.incomplete").mkdir()
    save(14, "actor")
    assert find_latest_ckpt_path(tmp_path) == str(tmp_path / "global_step_7"), "one more is being written"
    (tmp_path / "global_step_14" / "reward.incomplete").rmdir()
    save(14, "reward")
    assert find_latest_ckpt_path(tmp_path) == str(tmp_path / "global_step_14")


# ---------------------------------------------------------------------------------------------------------- retention


def test_25_7_a_clock_that_goes_back_doesn_t_decide_what_is_kept(tmp_path, monkeypatch):
    now = [10**18]
    monkeypatch.setattr("time.time_ns", lambda: now[0])
    for step in (10, 20):
        manager(step).save_checkpoint(tmp_path / f"global_step_{step}", global_step=step, max_ckpt_to_keep=2)
        now[0] += 10**9
    now[0] -= 3600 * 10**9
    for step in (30, 40, 50):
        manager(step).save_checkpoint(tmp_path / f"global_step_{step}", global_step=step, max_ckpt_to_keep=2)
        now[0] += 10**9
    assert names(tmp_path) == steps(40, 50)
    for step in (1, 2):  # a training begun anew in the same directory keeps its own, though their steps are smaller
        manager(step).save_checkpoint(tmp_path / f"global_step_{step}", global_step=step, max_ckpt_to_keep=2)
    assert names(tmp_path) == steps(1, 2)


def linked(folder, step, *, dangling, part=""):
    """A checkpoint whose step's directory is a link to somewhere else, and that place."""
    elsewhere = folder.parent / f"elsewhere-{step}"
    manager(step).save_checkpoint(elsewhere / f"global_step_{step}" / part, global_step=step)
    real = elsewhere / f"global_step_{step}"
    (folder / real.name).symlink_to(real)
    if dangling:
        shutil.rmtree(real)
    return real


def content(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "checkpoints"
    made.mkdir()
    yield made
    assert not [path for path in made.rglob("*") if path.name.endswith((".incomplete", ".replaced"))]


@pytest.mark.parametrize("part", ["", "actor"])
def test_25_8_of_a_step_that_is_a_link_the_link_goes_and_what_it_leads_to_stays(folder, part):
    real = linked(folder, 1, dangling=False, part=part)
    (real / part / "data.pt").write_bytes(b"a trainer's own")
    before = content(real)
    for step in (2, 3, 4):
        manager(step).save_checkpoint(folder / f"global_step_{step}" / part, global_step=step, max_ckpt_to_keep=2)
    assert names(folder) == steps(3, 4)
    assert content(real) == before


@pytest.mark.parametrize("part", ["", "actor"])
@pytest.mark.parametrize("dangling", [False, True])
def test_25_8_a_step_that_is_a_link_is_saved_again(folder, part, dangling):
    linked(folder, 1, dangling=dangling, part=part)
    place = folder / "global_step_1" / part
    for value in (5.0, 6.0):
        manager(value).save_checkpoint(place, global_step=1, max_ckpt_to_keep=1)
        assert value_of(place) == value
    manager(7.0).save_checkpoint(folder / "global_step_2" / part, global_step=2, max_ckpt_to_keep=1)
    assert names(folder) == steps(2)


def test_25_8_a_link_that_leads_nowhere_is_in_nobody_s_way(folder):
    linked(folder, 1, dangling=True)
    (folder / "global_step_3.incomplete").symlink_to(folder / "nothing")
    for step in (2, 3, 4):
        manager(step).save_checkpoint(folder / f"global_step_{step}", global_step=step, max_ckpt_to_keep=2)
        assert find_latest_ckpt_path(folder) == str(folder / f"global_step_{step}")
    one = manager()
    one.previous_saved_paths = [str(folder / "global_step_1")]
    one.remove_previous_save_local_path(str(folder / "global_step_1"))
    assert names(folder) == steps(3, 4)


@pytest.mark.parametrize("part", ["", "actor"])
def test_25_8_a_link_that_was_loaded_goes_and_its_bytes_stay(folder, part):
    real = linked(folder, 1, dangling=False, part=part)
    before = content(real)
    one = manager(-1.0)
    one.load_checkpoint(folder / "global_step_1" / part, del_local_after_load=True)
    assert one.model.weight[0, 0].item() == 1.0
    assert content(real) == before
    assert names(folder) == (steps(1) if part else [])  # other parts of the step are still to be loaded


def test_25_8_a_folder_of_checkpoints_may_be_a_link(tmp_path):
    (tmp_path / "disk7").mkdir()
    (tmp_path / "run1").symlink_to(tmp_path / "disk7")
    for step in (1, 2, 3):
        manager(step).save_checkpoint(tmp_path / "run1" / f"global_step_{step}", global_step=step, max_ckpt_to_keep=1)
    assert names(tmp_path / "disk7") == steps(3)
    manager().load_checkpoint(tmp_path / "run1" / "global_step_3", del_local_after_load=True)
    assert names(tmp_path / "disk7") == []
    assert (tmp_path / "run1").is_symlink()


def test_so_many_are_kept_and_a_restart_remembers(tmp_path):
    for step in (1, 2, 3):
        manager().save_checkpoint(tmp_path / f"global_step_{step}", global_step=step, max_ckpt_to_keep=2)
    assert names(tmp_path) == steps(2, 3)
    again = manager()
    again.save_checkpoint(tmp_path / "global_step_10", global_step=10, max_ckpt_to_keep=2)
    assert names(tmp_path) == steps(10, 3)
    assert again.previous_saved_paths == [str(tmp_path / "global_step_3"), str(tmp_path / "global_step_10")]
    for unlimited in (None, 0):
        again.save_checkpoint(tmp_path / "global_step_11", global_step=11, max_ckpt_to_keep=unlimited)
        assert names(tmp_path) == steps(10, 11, 3)
    # A training that went back to an earlier step: what was just written always stays.
    again.save_checkpoint(tmp_path / "global_step_4", global_step=4, max_ckpt_to_keep=1)
    assert names(tmp_path) == steps(4)


def test_only_what_probe_wrote_is_removed(tmp_path):
    foreign = tmp_path / "global_step_1"
    (foreign / "actor").mkdir(parents=True)
    (foreign / "actor" / "model.pt").write_bytes(b"x")
    (tmp_path / "global_step_5_best").mkdir()
    shutil.copytree(foreign, tmp_path / "other_step_1")
    for step in (2, 3, 4):
        for part in ("actor", "critic"):
            manager().save_checkpoint(tmp_path / f"global_step_{step}" / part, global_step=step)
        if step == 2:
            (tmp_path / "global_step_2" / "data.pt").write_bytes(b"x")
    one = manager()
    one.save_checkpoint(tmp_path / "global_step_6" / "actor", global_step=6, max_ckpt_to_keep=2)
    assert names(tmp_path) == ["global_step_1", *steps(2, 3, 4), "global_step_5_best", "global_step_6", "other_step_1"]
    assert names(tmp_path / "global_step_2") == ["critic", "data.pt"]
    assert names(tmp_path / "global_step_3") == ["critic"]
    assert names(tmp_path / "global_step_4") == ["actor", "critic"]
    one.save_checkpoint(tmp_path / "global_step_6" / "critic", global_step=6, max_ckpt_to_keep=1)
    assert names(tmp_path) == ["global_step_1", *steps(2, 4), "global_step_5_best", "global_step_6", "other_step_1"]
    assert (foreign / "actor" / "model.pt").exists()


def test_what_a_trainer_puts_into_a_checkpoint_outlives_its_removal_and_its_rewriting(tmp_path):
    for step in (1, 2):
        manager(step).save_checkpoint(tmp_path / f"global_step_{step}", global_step=step)
        (tmp_path / f"global_step_{step}" / "data.pt").write_bytes(b"x")
    manager(5.0).save_checkpoint(tmp_path / "global_step_2", global_step=2, max_ckpt_to_keep=1)
    assert value_of(tmp_path / "global_step_2") == 5.0
    assert "data.pt" in names(tmp_path / "global_step_2")
    assert names(tmp_path / "global_step_1") == ["data.pt"]


def test_numbers_of_other_things_are_not_steps(tmp_path):
    for run in (0, 1, 2):
        manager().save_checkpoint(tmp_path / f"run_{run}" / "actor", max_ckpt_to_keep=1)
    assert names(tmp_path) == ["run_0", "run_1", "run_2"], "saved without a step: none is older than another"


def test_without_a_step_in_the_path_a_manager_counts_its_own(tmp_path):
    one = manager()
    for name in ("a", "b", "c"):
        one.save_checkpoint(tmp_path / name, global_step=77, max_ckpt_to_keep=2)
    assert names(tmp_path) == ["b", "c"]
    assert one.previous_saved_paths == [str(tmp_path / "b"), str(tmp_path / "c")]
    one.remove_previous_save_local_path([str(tmp_path / "b"), str(tmp_path / "none")])
    assert names(tmp_path) == ["c"]
    assert one.previous_saved_paths == [str(tmp_path / "c")]
    assert one.local_mkdir(tmp_path / "x" / "y") == str(tmp_path / "x" / "y") == one.local_mkdir(tmp_path / "x" / "y")


def test_a_folder_with_other_files_is_never_replaced(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match=r"holds files but no manifest.json"):
        manager().save_checkpoint(tmp_path / "home")
    assert names(tmp_path) == ["home"]
    (tmp_path / "empty").mkdir()
    manager(2.0).save_checkpoint(tmp_path / "empty")
    assert value_of(tmp_path / "empty") == 2.0


# ------------------------------------------------------------------------------------------------------------- crashes


def test_a_crash_between_the_renames_brings_the_older_one_back(tmp_path):
    one = tmp_path / "global_step_1"
    manager(1.0).save_checkpoint(one, global_step=1)
    one.rename(tmp_path / "global_step_1.replaced")
    (tmp_path / "global_step_1.incomplete").mkdir()
    assert find_latest_ckpt_path(tmp_path) == str(one)
    assert value_of(one) == 1.0
    one.rename(tmp_path / "global_step_1.replaced")
    assert value_of(one) == 1.0, "loading finds it, too"
    shutil.copytree(one, tmp_path / "global_step_1.replaced")
    manager(2.0).save_checkpoint(one, global_step=1)
    assert names(tmp_path) == steps(1)
    assert value_of(one) == 2.0


CRASH = """
import os, signal, sys
from pathlib import Path
from torch import nn
from probe.core.checkpoint import files as checkpoint_files
from probe.core.checkpoint import fsdp as checkpoint_fsdp
from probe.core.checkpoint import FSDPCheckpointManager
import torch, pathlib

calls = {"left": int(sys.argv[2])}

def count(event, arguments):
    if event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree", "open"):
        if event == "open" and "global_step" not in str(arguments[0]) and "latest" not in str(arguments[0]):
            return
        if calls["left"] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        calls["left"] -= 1

model = nn.Linear(3, 2)
nn.init.constant_(model.weight, 2.0)
manager = FSDPCheckpointManager(model, checkpoint_contents={"save": ["model"]})
for left in range(int(sys.argv[2]), int(sys.argv[3])):
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        print(left, os.waitstatus_to_exitcode(status), flush=True)
        if os.waitstatus_to_exitcode(status) == 0:
            break
        continue
    calls["left"] = left
    root = Path(sys.argv[1]) / str(left)
    sys.addaudithook(count)
    manager.save_checkpoint(root / "global_step_1", global_step=1)
    manager.save_checkpoint(root / "global_step_2", global_step=2, max_ckpt_to_keep=1)
    os._exit(0)
"""


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_a_checkpoint_that_loads(tmp_path):
    """The same step again, then a next one with only one kept: killed before each change on the disk in turn."""
    torch.manual_seed(0)
    first = tmp_path / "first"
    manager(1.0).save_checkpoint(first / "global_step_1", global_step=1)
    most = 200
    for left in range(most):
        shutil.copytree(first, tmp_path / "runs" / str(left))
    command = [sys.executable, "-c", CRASH, tmp_path / "runs", "0", str(most)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    told = [line.split() for line in done.stdout.splitlines()]
    assert len(told) > 20, "there are many moments"
    assert [code for _, code in told] == ["-9"] * (len(told) - 1) + ["0"]
    found = set()
    for left, _ in told:
        root = tmp_path / "runs" / left
        latest = find_latest_ckpt_path(root)
        assert latest is not None, left
        found.add((Path(latest).name, value_of(latest)))
        if int(left) % 3:  # of each third the training goes on
            continue
        manager(3.0).save_checkpoint(root / "global_step_3", global_step=3, max_ckpt_to_keep=1)
        assert find_latest_ckpt_path(root) == str(root / "global_step_3")
        assert names(root) == ["global_step_3"], left
    assert found == {("global_step_1", 1.0), ("global_step_1", 2.0), ("global_step_2", 2.0)}


def test_a_file_that_cannot_grow_is_an_os_error_and_the_old_one_stays(tmp_path):
    manager(1.0).save_checkpoint(tmp_path / "global_step_1", global_step=1)
    big = FSDPCheckpointManager(nn.Linear(400, 400), checkpoint_contents={"save": ["model"]})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        for step in (1, 2):
            with pytest.raises(OSError, match="File too large"):
                big.save_checkpoint(tmp_path / f"global_step_{step}", global_step=step, max_ckpt_to_keep=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert names(tmp_path) == steps(1)
    assert value_of(find_latest_ckpt_path(tmp_path)) == 1.0


@pytest.fixture
def full_disk(tmp_path):
    """A file system of its own, of one MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"can't mount a small disk here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_a_full_disk_is_an_os_error_and_the_old_one_stays(full_disk):
    manager(1.0).save_checkpoint(full_disk / "global_step_1", global_step=1)
    big = FSDPCheckpointManager(nn.Linear(1000, 1000), checkpoint_contents={"save": ["model"]})
    with pytest.raises(OSError, match="No space left"):
        big.save_checkpoint(full_disk / "global_step_2", global_step=2, max_ckpt_to_keep=1)
    assert names(full_disk) == steps(1)
    assert value_of(find_latest_ckpt_path(full_disk)) == 1.0
    manager(2.0).save_checkpoint(full_disk / "global_step_2", global_step=2)
    assert value_of(find_latest_ckpt_path(full_disk)) == 2.0


@pytest.fixture
def unprivileged():
    """A folder of this process as a user for whom permissions count: root may write anywhere."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    root = os.geteuid() == 0
    if root:
        os.chown(folder, 65534, 65534)
        os.seteuid(65534)
    yield folder
    if root:
        os.seteuid(0)
    folder.chmod(0o700)
    shutil.rmtree(folder)


def test_a_read_only_folder(unprivileged, caplog):
    manager(1.0).save_checkpoint(unprivileged / "global_step_1", global_step=1)
    unprivileged.chmod(0o555)
    with pytest.raises(PermissionError):
        manager(2.0).save_checkpoint(unprivileged / "global_step_2", global_step=2, max_ckpt_to_keep=1)
    assert find_latest_ckpt_path(unprivileged) == str(unprivileged / "global_step_1")
    assert value_of(unprivileged / "global_step_1") == 1.0, "it can still be read"
    unprivileged.chmod(0o755)
    manager(2.0).save_checkpoint(unprivileged / "global_step_2", global_step=2)
    # An old one that can't be removed is named in the log, and the new one is there all the same.
    (unprivileged / "global_step_1" / "shards").chmod(0o555)
    manager(3.0).save_checkpoint(unprivileged / "global_step_3", global_step=3, max_ckpt_to_keep=1)
    left = unprivileged / "global_step_1.incomplete"
    assert "global_step_1: can't be removed" in caplog.text
    assert find_latest_ckpt_path(unprivileged) == str(unprivileged / "global_step_3")
    (left / "shards").chmod(0o755)
    manager(4.0).save_checkpoint(unprivileged / "global_step_4", global_step=4, max_ckpt_to_keep=1)
    assert names(unprivileged) == steps(4)


def test_a_file_where_a_folder_should_be(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError, match="file"):
        manager().save_checkpoint(tmp_path / "file" / "global_step_1", global_step=1)
    with pytest.raises(InputError, match="holds files"):
        manager().save_checkpoint(tmp_path / "file")
    assert not checkpoint_files.is_complete(tmp_path / "file")
