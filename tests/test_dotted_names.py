"""Every dotted name leads somewhere: those of the documents that the core follows, and those of our own pages."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from probe.errors import MissingDependencyError
from probe.publishing import summary
from probe.tracking.backends import mlflow

ROOT = Path(__file__).resolve().parent.parent

#: What the documents of verl and NeMo-RL name, and where it is here.
DOCUMENTED = {
    "verl.DataProto": "probe.core.protocol.DataProto",
    "verl.DataProto.concat": "probe.core.protocol.DataProto.concat",
    "verl.DataProto.make_iterator": "probe.core.protocol.DataProto.make_iterator",
    "verl.DataProto.select": "probe.core.protocol.DataProto.select",
    "verl.DataProto.to": "probe.core.protocol.DataProto.to",
    "verl.DataProto.union": "probe.core.protocol.DataProto.union",
    "verl.protocol.list_of_dict_to_dict_of_list": "probe.core.protocol.list_of_dict_to_dict_of_list",
    "verl.protocol.union_two_dict": "probe.core.protocol.union_two_dict",
    "verl.utils.checkpoint.checkpoint_manager.BaseCheckpointManager": "probe.core.checkpoint.BaseCheckpointManager",
    "verl.utils.checkpoint.checkpoint_manager.should_save_ckpt_esi": "probe.core.checkpoint.should_save_ckpt_esi",
    "verl.utils.checkpoint.checkpoint_manager.find_latest_ckpt_path": "probe.core.checkpoint.find_latest_ckpt_path",
    "verl.utils.checkpoint.fsdp_checkpoint_manager.FSDPCheckpointManager": (
        "probe.core.checkpoint.FSDPCheckpointManager"
    ),
    "verl.utils.dataset.rl_dataset.RLHFDataset": "probe.core.rl_dataset.RLHFDataset",
    "verl.utils.dataset.rl_dataset.collate_fn": "probe.core.rl_dataset.collate_fn",
    "verl.utils.debug.GPUMemoryLogger": "probe.core.memory_logger.GPUMemoryLogger",
    "verl.utils.debug.performance.GPUMemoryLogger": "probe.core.memory_logger.GPUMemoryLogger",
    "verl.utils.fs.copy_to_local": "probe.core.fs.copy_to_local",
    "verl.utils.fsdp_utils.get_fsdp_wrap_policy": "probe.core.fsdp.get_fsdp_wrap_policy",
    "verl.utils.metric.Metric": "probe.core.metric.Metric",
    "verl.utils.metric.reduce_metrics": "probe.core.metric.reduce_metrics",
    "verl.utils.py_functional.append_to_dict": "probe.core.metric.append_to_dict",
    "verl.utils.seqlen_balancing.get_reverse_idx": "probe.core.seqlen_balancing.get_reverse_idx",
    "verl.utils.seqlen_balancing.rearrange_micro_batches": "probe.core.seqlen_balancing.rearrange_micro_batches",
    "verl.utils.torch_functional.get_constant_schedule_with_warmup": (
        "probe.core.torch_functional.get_constant_schedule_with_warmup"
    ),
    "verl.utils.torch_functional.gather_from_labels": "probe.core.torch_functional.gather_from_labels",
    "verl.utils.torch_functional.postprocess_data": "probe.core.torch_functional.postprocess_data",
    "verl.utils.torch_functional.logprobs_from_logits": "probe.core.torch_functional.logprobs_from_logits",
    "verl.utils.torch_functional.masked_mean": "probe.core.torch_functional.masked_mean",
    "verl.utils.torch_functional.masked_whiten": "probe.core.torch_functional.masked_whiten",
    "verl.utils.tracking.Tracking": "probe.tracking.tracking.Tracking",
    "verl.utils.ulysses.Gather": "probe.core.ulysses.Gather",
    "verl.utils.ulysses.SeqAllToAll": "probe.core.ulysses.SeqAllToAll",
    "verl.utils.ulysses.gather_outpus_and_unpad": "probe.core.ulysses.gather_outpus_and_unpad",
    "verl.utils.ulysses.ulysses_pad_and_slice_inputs": "probe.core.ulysses.ulysses_pad_and_slice_inputs",
    **{
        f"nemo_rl.data_plane.codec.{name}": f"probe.core.codec.{name}"
        for name in (
            "materialize",
            "maybe_pack_jagged",
            "pack_jagged_fields",
            "pack_per_token_field",
            "response_from_nested",
            "stack_or_nest",
            "to_nested_by_length",
            "unwrap_wire_stripped_payload",
        )
    },
    "nemo_rl.data_plane.schema.Layout": "probe.core.codec.Layout",
}

#: Dotted, but labels that a backend shows.
LABELS = {mlflow.NAMES_TAG, mlflow.INFINITIES_TAG, mlflow.END_TAG, *summary.VERDICT_TAGS}

NAME = r"(?<![\w./-])probe(?:\.[A-Za-z_]\w*)+"
#: A table of names that changed: its first column says what they were.
BEFORE = re.compile(r"^\| before \|.*\n(?:\|.*\n)*", re.MULTILINE)
ROLE = rf":(?:func|class|meth|data|mod|attr|exc):`~?({NAME})`"


def leads_to(name: str) -> Any:
    """The module, or what is in it, that a dotted name means."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        try:
            for part in parts[count:]:
                found = getattr(found, part)
        except MissingDependencyError:  # it is there for who has the framework
            assert name == "probe.lightning.Callback"
        return found
    raise AttributeError(name)


def pages() -> list[Path]:
    written = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "notebooks").glob("*.ipynb")]
    return sorted([*written, *(ROOT / "dashboards").rglob("*.yaml")])


def words(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return re.sub(BEFORE, lambda table: re.sub(r"^\|[^|]*", "", table[0], flags=re.MULTILINE), text)
    return "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])


def imports(text: str) -> set[str]:
    """What ``from probe… import …`` takes, each with its module."""
    found = re.findall(r"^ *from (probe[\w.]*) import (?:\(([^)]*)\)|(.*))$", text, re.MULTILINE)
    taken = ((module, inside or line) for module, inside, line in found)
    return {f"{module}.{name}" for module, line in taken for name in re.findall(r"(\w+)(?: as \w+)?,?", line)}


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_documented_name_is_there(name: str) -> None:
    assert leads_to(DOCUMENTED[name]) is not None
    if not name.endswith("DataProto"):  # which verl has at its root
        assert DOCUMENTED[name].endswith(f".{name.rpartition('.')[2]}")


@pytest.mark.parametrize("path", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_dotted_names_of_a_page_are_there(path: Path) -> None:
    text = words(path)
    for name in sorted(({*re.findall(NAME, text)} | imports(text)) - LABELS):
        assert leads_to(name) is not None, name


def test_the_dotted_names_of_docstrings_are_there() -> None:
    found = {name for path in (ROOT / "probe").rglob("*.py") for name in re.findall(ROLE, path.read_text("utf-8"))}
    assert len(found) > 50
    for name in sorted(found):
        assert leads_to(name) is not None, name


def test_names_are_found_and_a_wrong_one_is_told(tmp_path: Path) -> None:
    text = (
        "Use `probe.start`, not probe/x.y nor a.probe.z.\nfrom probe.core.metric import (\n    Metric, reduce_metrics)"
    )
    assert set(re.findall(NAME, text)) == {"probe.start", "probe.core.metric"}
    assert imports(text) == {"probe.core.metric.Metric", "probe.core.metric.reduce_metrics"}
    table = "`probe.a`\n\n| before | now |\n|---|---|\n| `probe.b` | `probe.c` |\n\n| other |\n| `probe.d` |\n"
    (tmp_path / "page.md").write_text(table)
    assert re.findall(NAME, words(tmp_path / "page.md")) == ["probe.a", "probe.c", "probe.d"]
    assert imports("from probe import hooks, inspect as look\n") == {"probe.hooks", "probe.inspect"}
    with pytest.raises(AttributeError):
        leads_to("probe.core.metric.nothing_of_the_kind")
    with pytest.raises(AttributeError):
        leads_to("probe.nothing.of_the_kind")
