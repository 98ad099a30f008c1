"""What the files of a checkpoint hold: plain state, tensors, random state, and a model that transformers loads."""

from __future__ import annotations

import json
import logging
import random
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.core.checkpoint import (
    BaseCheckpointManager,
    FSDPCheckpointManager,
    find_latest_ckpt_path,
    get_rng_state,
    load_rng_state,
)
from probe.core.checkpoint import hf as checkpoint_hf
from probe.core.checkpoint.plain_state import decode, encode, read_plain, write_plain
from probe.errors import (
    MissingKeyError,
    SerializationError,
)
from tests.core.checkpoint.checkpoint_training import Tokenizer

pytestmark = pytest.mark.usefixtures("same_random_state")


# ------------------------------------------------------------------------------------------------------ plain state

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.sampled_from([torch.bfloat16, np.float32(0.1), np.int64(7)]),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text(), inner)
        | st.dictionaries(st.integers(), inner)
        | st.dictionaries(st.tuples(st.integers(), st.text()), inner)
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=40)
@given(value=values)
def test_plain_state_comes_back_the_same(value):
    tree, tensors = encode(value)
    again = decode(json.loads(json.dumps(tree)), lambda name, node: tensors[name])
    assert again == value
    assert repr(again) == repr(value), "types, too"


def test_tensors_and_arrays_come_back_the_same(tmp_path):
    value = {
        "t": torch.tensor([1.5, torch.nan], dtype=torch.bfloat16),
        "a": (np.arange(3, dtype=np.uint32), np.array(2.5)),
        "c": Counter({2: 3}),
        "nan": float("nan"),
        "empty": torch.empty(0, 3),
    }
    write_plain(tmp_path / "one", value)
    again = read_plain(tmp_path / "one")
    assert torch.equal(again["t"].view(torch.int16), value["t"].view(torch.int16))
    assert again["a"][0].dtype == np.uint32
    assert np.array_equal(again["a"][0], value["a"][0])
    assert again["a"][1].shape == ()
    assert again["c"] == value["c"]
    assert type(again["c"]) is Counter
    assert again["nan"] != again["nan"]
    assert again["empty"].shape == (0, 3)
    with pytest.raises(SerializationError, match="two tensors"):
        encode({"a.b": torch.zeros(1), "a": {"b": torch.zeros(1)}})
    with pytest.raises(SerializationError, match=r"\$evil: not a tag"):
        decode({"$evil": 1}, lambda name, node: None)


def test_random_state_comes_back_through_the_disk(tmp_path):
    write_plain(tmp_path / "rng", BaseCheckpointManager.get_rng_state())

    def draw():
        return torch.rand(2).tolist(), np.random.randn(3).tolist(), random.gauss(0, 1), random.random()  # noqa: NPY002  (the global generator is what is tested)

    random.gauss(0, 1)  # keeps a second number in store
    np.random.randn(1)  # noqa: NPY002  (the global generator is what is tested)
    write_plain(tmp_path / "rng", get_rng_state())
    expected = draw()
    BaseCheckpointManager.load_rng_state(rng_state=read_plain(tmp_path / "rng"))
    assert draw() == expected
    with pytest.raises(MissingKeyError, match="lacks numpy, random; it has"):
        load_rng_state({"cpu": torch.get_rng_state()})


# ----------------------------------------------------------------------------------------------------- hugging face


@pytest.fixture
def llama():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
    )
    return transformers.LlamaForCausalLM(config)


@pytest.mark.parametrize("limit", [5_000_000_000, 3_000])
def test_the_full_model_loads_in_transformers(tmp_path, llama, monkeypatch, limit):
    import transformers

    monkeypatch.setattr(checkpoint_hf, "MAX_FILE_BYTES", limit)
    contents = {"save": ["model", "hf_model"]}
    manager = FSDPCheckpointManager(llama, processing_class=Tokenizer("hello"), checkpoint_contents=contents)
    manager.save_checkpoint(tmp_path / "one")
    folder = tmp_path / "one" / "huggingface"
    files = sorted(path.name for path in folder.rglob("*") if path.is_file())
    assert {"config.json", "generation_config.json", "tokenizer.json", "template.jinja"} <= set(files)
    assert ("model.safetensors.index.json" in files) == (limit == 3_000)
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    assert llama.config.architectures is None, "the model's own config is left alone"
    again = transformers.AutoModelForCausalLM.from_pretrained(folder)
    for name, tensor in llama.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


def test_an_optional_part_that_fails_costs_only_itself(tmp_path, caplog, llama):
    manager = FSDPCheckpointManager(llama, processing_class=Tokenizer("hello", fails=True))
    manager.save_checkpoint(tmp_path / "global_step_1", global_step=1)
    assert find_latest_ckpt_path(tmp_path) == str(tmp_path / "global_step_1")
    manager.load_checkpoint(tmp_path / "global_step_1")
    manifest = json.loads((tmp_path / "global_step_1" / "manifest.json").read_text())
    assert manifest["failed"] == {"processing_class": "ZeroDivisionError: on purpose"}
    assert [path.name for path in (tmp_path / "global_step_1" / "huggingface").iterdir() if "token" in path.name] == []
    assert "huggingface/config.json" in manifest["files"]
    ours = [record for record in caplog.records if record.name == "probe.checkpoint"]
    assert [record.levelno for record in ours] == [logging.ERROR]
    assert "processing_class couldn't be written" in caplog.text
