"""Values changed in the text of a file, everything else as it stood."""

from __future__ import annotations

import pytest
import yaml

from probe.analysis.advice.patching import NoPlaceError, edited, overrides, patch, patched
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
    assert edited("f.yaml", "\ufeff" + windows, {"a.c.d": 2}) == "\ufeffa:\r\n  c:\r\n    d: 2\r\n  b: 1\r\n"


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
    ends = "\ufeffa = 'a form\x0cfeed\u2028'\r\ncap = 5\r\n"
    assert edited("t.py", ends, {"cap": 7}) == ends.replace("5", "7")
    first = ends.partition("\n")[0]
    assert f"\n {first}\n-cap = 5\r\n+cap = 7\r\n" in patch("t.py", ends, {"cap": 7})
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
    with pytest.raises(InputError, match="more than once"):
        edited("run.sh", text + text, {"actor.cap": 3})
    assert overrides({"a.b": 3, "c": True}) == ["a.b=3", "c=true"]


OTHER = {"actor.other.deep": 3}


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("python t.py a.b=1 actor.cap=5 x=2\n", "python t.py a.b=1 actor.other.deep=3 actor.cap=5 x=2\n"),
        # Beside the nearest: what it shares most parts with.
        ("t \\\n  actor.other.b=1 \\\n  actor.cap=5", "t \\\n  {} \\\n  actor.other.b=1 \\\n  actor.cap=5"),
        ("t \\\r\n\t'actor.cap=a b'\r\n", "t \\\r\n\t{} \\\r\n\t'actor.cap=a b'\r\n"),
        ("A=(\n  actor.cap=5\n)\nt ${{A[@]}}\n", "A=(\n  {}\n  actor.cap=5\n)\nt ${{A[@]}}\n"),
        # What stands in a comment is none.
        ("# t actor.other.deep=4\nt +actor.cap=5\n", "# t actor.other.deep=4\nt {} +actor.cap=5\n"),
        ("t actor.cap=5 # actor.x=1\n", "t {} actor.cap=5 # actor.x=1\n"),
    ],
)
def test_4_an_override_that_is_lacking_is_put_before_its_nearest(text, made):
    assert edited("run.sh", text.format(), OTHER) == made.format("actor.other.deep=3")


@pytest.mark.parametrize(
    "text",
    [
        "t actor.cap=5\nt actor.cap=6\n",  # of which command?
        "A=(\n  actor.cap=5\n)\nB=(\n  actor.cap=6\n)\n",
        "t trainer.cap=5\n",  # nothing akin
        "spark --conf other.cap=5\n",
        'bash -c "t actor.cap=5"\n',  # would have to be one word with others
        "t actor.cap=5\necho it's\n",  # not to be read as a shell does
        "# t actor.cap=5\n",
        "",
    ],
)
def test_4_an_override_whose_place_is_not_sure_is_refused_with_what_to_set(text):
    with pytest.raises(
        NoPlaceError, match=r"actor\.other\.deep isn't in run\.sh; set it by hand: actor\.other\.deep=3"
    ):
        edited("run.sh", text, OTHER)


def test_4_settings_that_belong_together_are_changed_all_or_none():
    text = "a:\n  b: 1\nflow: {}\n"
    made = patched("f.yaml", text, [{"a.b": 2, "flow.x": True}, {"a.c": 3}])
    assert made.patch == patch("f.yaml", text, {"a.c": 3})
    assert made.by_hand == (
        ("a.b", 2, "a.b: 2", "goes with flow.x"),
        ("flow.x", True, "flow.x: true", "isn't in the file"),
    )
    assert patched("f.yaml", text, [{"a.b": 2}, {"a.b.c": 3}]).by_hand[0].why.startswith("has no place, since a.b ")
    with pytest.raises(InputError, match="isn't one YAML document"):
        patched("f.yaml", "[", [])


def test_4_a_patch_names_a_file_as_git_takes_it(tmp_path, monkeypatch):
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    for name, told in (("./c/f.yaml", "c/f.yaml"), ("../f.yaml", str(tmp_path / "f.yaml")[1:]), ("/f.yaml", "f.yaml")):
        assert patch(name, "a: 1\n", {"a": 2}).startswith(f"--- a/{told}\n+++ b/{told}\n")


def test_4_a_patch_is_empty_where_nothing_changes_and_says_where_a_last_line_has_no_end():
    assert patch("f.yaml", "a: 1\n", {"a": 1}) == ""
    made = patch("conf/f.yaml", "a: 1", {"a": 2})
    assert made.startswith("--- a/conf/f.yaml\n+++ b/conf/f.yaml\n")
    assert made.count("\\ No newline at end of file") == 2
