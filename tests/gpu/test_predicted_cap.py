"""16, item 3: a cap is predicted for a real model from micro-batches up to half of it, and run at 98 % and at 105 %."""

from __future__ import annotations

import gc
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import probe
from probe.analysis.memory_model import MemoryModel, memory_models
from probe.text import size

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device"),
]

VOCABULARY = 131_072
ROW = 128
STEPS = 32


def causal_model() -> Any:
    """Qwen2 with a large vocabulary: its logits are what fills the device, as in a language model's update."""
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=8,
        tie_word_embeddings=True,
    )
    return transformers.Qwen2ForCausalLM(config).to("cuda", torch.bfloat16)


def updated(model: Any, session: Any, step: int, rows: int) -> None:
    """One update of one packed micro-batch of ``rows`` rows."""
    gc.collect()  # of a step that failed the graph may hang in a cycle
    torch.cuda.empty_cache()  # what is reserved is this step's own
    tokens = rows * ROW
    mask = torch.ones(rows, ROW, dtype=torch.long)
    with session.step(step), probe.phase("update", role="actor"):
        for part in probe.micro_batches({"attention_mask": mask}, max_token_len=tokens, packed=True):
            many = int(part["attention_mask"].sum())
            ids = torch.randint(0, VOCABULARY, (1, many), device="cuda")
            logits = model(input_ids=ids, use_cache=False).logits
            torch.nn.functional.cross_entropy(logits[0, :-1].float(), ids[0, 1:]).backward()
            model.zero_grad(set_to_none=True)
            del logits


def per_row(model: Any) -> float:
    """Bytes that a row takes, from one small update: only to choose which sizes are looked at."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    ids = torch.randint(0, VOCABULARY, (1, 8 * ROW), device="cuda")
    torch.nn.functional.cross_entropy(
        model(input_ids=ids, use_cache=False).logits[0, :-1].float(), ids[0, 1:]
    ).backward()
    model.zero_grad(set_to_none=True)
    return (torch.cuda.max_memory_allocated() - before) / 8


def largest_rows(model: MemoryModel) -> int:
    """Rows of the largest micro-batch whose expected peak is within the room."""
    low, high = 1, 1_000_000
    while high - low > 1:
        middle = (low + high) // 2
        found = model.predict([[middle * ROW, ROW, middle]])
        assert found is not None
        assert model.room_bytes is not None
        low, high = (middle, high) if found[0][0] <= model.room_bytes else (low, middle)
    return low


def sizes(half: int) -> list[int]:
    """Rows of each step, up to half of what fits, in no order: a cost that grew with the steps would be drift."""
    told = [max(1, half * (at + 4) // (STEPS + 4)) for at in range(STEPS)]
    random.Random(0).shuffle(told)
    return told


@pytest.fixture
def grown_segments() -> Iterator[None]:
    """Segments that grow: what is reserved in pieces that no tensor fits into would else be room that the model has to
    leave, and a cap above its own might still fit.
    """
    set_allocator = getattr(torch._C, "_accelerator_setAllocatorSettings", None)  # torch before 2.10 has the other one
    set_allocator = set_allocator or torch.cuda.memory._set_allocator_settings
    set_allocator("expandable_segments:True")
    yield
    torch.cuda.empty_cache()
    set_allocator("expandable_segments:False")


@pytest.mark.usefixtures("grown_segments")
def test_16_3_a_predicted_cap_holds_at_98_percent_and_fails_at_105(tmp_path: Path) -> None:
    net = causal_model()
    per_row(net)  # makes what stays, such as the libraries' workspaces
    half = int(0.5 * torch.cuda.get_device_properties(0).total_memory / per_row(net))
    with probe.start("p", "seen", run_dir=tmp_path / "seen", rank=0, world_size=1, device="cuda") as session:
        for step, rows in enumerate(sizes(half)):
            updated(net, session, step, rows)
        with session.run as run:
            (model,) = memory_models(run, VOCABULARY)
    assert model.fit is not None, model.why
    assert model.room_bytes is not None
    assert model.capacity_bytes is not None
    # Logits in half precision, a copy in single precision, and gradients of both: a small number of bytes an entry.
    assert model.bytes_per_token_and_entry is not None
    assert 2 <= model.bytes_per_token_and_entry <= 24
    cap = largest_rows(model)
    said = []
    for share in (0.98, 1.05):
        tried = int(share * cap)
        expected = model.predict([[tried * ROW, ROW, tried]])
        assert expected is not None
        place = tmp_path / f"at_{share:.2f}"
        try:
            with probe.start("p", place.name, run_dir=place, rank=0, world_size=1, device="cuda") as session:
                updated(net, session, 0, tried)
            ended = "fits"
        except torch.OutOfMemoryError:
            ended = "runs out of memory"
        net.zero_grad(set_to_none=True)
        peak = math.nan
        if ended == "fits":
            with probe.open(place) as run:
                peak = float(run.sql("select max(peak) as peak from spans where kind = 'micro_batch'")["peak"][0])
        said.append((share, tried * ROW, float(expected[0][0]), peak, ended))
    print(
        f"\npredicted cap: {cap * ROW:,} tokens of {size(model.room_bytes)}; {size(model.reserved_above_bytes)} above"
    )
    for share, tokens, mean, peak, ended in said:
        measured = size(peak) if peak > 0 else "–"
        print(f"at {share:.0%}: {tokens:,} tokens, predicted peak {size(mean)}, measured {measured}: {ended}")
    (_, _, mean, peak, fits), (_, _, too_much, _, fails) = said
    assert fits == "fits"
    assert peak == pytest.approx(mean, rel=0.02)
    # 105 % can fail only where it is above all that torch can reserve, and not just above what the model leaves free.
    assert too_much > model.capacity_bytes
    assert fails == "runs out of memory"
