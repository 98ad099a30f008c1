"""Values changed in the text of a file, everything else as it stood."""

from __future__ import annotations

import pytest
import yaml

from probe.analysis.advice.patching import edited, overrides, patch
from probe.errors import InputError


def test_4_yaml_keeps_its_comments_quotes_order_and_layout():
    text = "b: 1 # one\na:\n    c:   'x'   # two\n\n    d: [1, 2]\n"
    assert edited("f.yaml", text, {"b": 2}) == text.replace("b: 1", "b: 2")
    assert edited("f.yml", text, {"a.c": 7}) == text.replace("'x'", "7")
    flow = "t: {balance: false, n: 1}\n"
    assert edited("f.yaml", flow, {"t.balance": True}) == "t: {balance: true, n: 1}\n"
    assert edited("f.yaml", "a.b: 1\n", {"a.b": 2}) == "a.b: 2\n"
    windows = "a:\r\n  b: 1\r\n"
    assert edited("f.yaml", windows, {"a.b": 2}) == "a:\r\n  b: 2\r\n"


def test_4_what_is_lacking_is_put_beside_its_neighbours():
    made = edited("f.yaml", "a:\n    # of a\n    b: 1\nz: 2\n", {"a.c": True, "a.n.m": 5})
    assert yaml.safe_load(made) == {"a": {"b": 1, "c": True, "n": {"m": 5}}, "z": 2}
    assert "    # of a\n" in made


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("a: &x 1\nb: *x\n", "b"),
        ("a: &x 1\nb: *x\n", "a"),
        ("a: |\n  long\n", "a"),
        ("a: {}\n", "a.b"),
        ("a: 1\n", "a.b"),
        ("- 1\n", "a"),
        ("a: 1\n---\na: 2\n", "a"),
        ("a: [1\n", "a"),
        ("x: &m\n  a: 1\ny:\n  <<: *m\n", "x.a"),
    ],
)
def test_4_yaml_that_cannot_be_changed_safely_is_refused(text, key):
    with pytest.raises(InputError, match="config: "):
        edited("f.yaml", text, {key: 5})


def test_4_python_arguments():
    text = "args = GRPOConfig(\n    per_device_train_batch_size=4,  # fits\n    output_dir='ä',\n)\n"
    made = edited("train.py", text, {"per_device_train_batch_size": 8})
    assert made == text.replace("=4,", "=8,")
    assert edited("t.py", "'ä'; x = {'cap': 5, 'b': 6}\n", {"cap": 7}) == "'ä'; x = {'cap': 7, 'b': 6}\n"
    assert edited("t.py", "cap: int = 5\n", {"loop.cap": 7}) == "cap: int = 7\n"
    for broken, why in (
        ("cap = 1\ncap = 2\n", "more than once"),
        ("x = 1\n", "cap isn't in t.py"),
        ("cap = n\n", "plain"),
    ):
        with pytest.raises(InputError, match=why):
            edited("t.py", broken, {"cap": 7})
    with pytest.raises(InputError, match="isn't Python"):
        edited("t.py", "(", {"cap": 7})


def test_4_an_argument_that_the_call_of_an_own_loop_leaves_out_is_added_to_it():
    cut = "parts, rows = rearrange_micro_batches(\n    batch,\n    max_token_len=cap(8),  # ours\n)\n"
    made = edited("t.py", cut + "loop(balance=1)\n", {"balance": "tokens"})
    assert made == (cut + "loop(balance=1)\n").replace("cap(8),", "cap(8), balance='tokens',")
    named = edited("t.py", cut.replace("cap(8)", "8, balance='workload'"), {"balance": "tokens"})
    assert named == cut.replace("cap(8)", "8, balance='tokens'")
    for broken in ("rearrange_micro_batches()\n", "micro_batches((batch))\n", cut + cut):
        with pytest.raises(InputError, match="balance isn't in"):
            edited("t.py", broken, {"balance": "tokens"})


def test_4_hydra_overrides_in_a_script():
    text = "python -m verl.trainer.main_ppo \\\n    actor.cap=16384 \\\n    +trainer.balance_batch=False # no\n"
    made = edited("run.sh", text, {"actor.cap": 21000, "trainer.balance_batch": True})
    assert made == text.replace("16384", "21000").replace("=False", "=true")
    with pytest.raises(InputError, match=r"add the override actor\.other=3"):
        edited("run.sh", text, {"actor.other": 3})
    with pytest.raises(InputError, match="more than once"):
        edited("run.sh", text + text, {"actor.cap": 3})
    assert overrides({"a.b": 3, "c": True}) == ["a.b=3", "c=true"]


def test_4_a_patch_is_empty_where_nothing_changes_and_says_where_a_last_line_has_no_end():
    assert patch("f.yaml", "a: 1\n", {"a": 1}) == ""
    made = patch("conf/f.yaml", "a: 1", {"a": 2})
    assert made.startswith("--- a/conf/f.yaml\n+++ b/conf/f.yaml\n")
    assert made.count("\\ No newline at end of file") == 2
