"""Advice on planted runs: what is wrong comes first, the gain is the replay's, and a file changes by that alone."""

from __future__ import annotations

import html
import json
import re

import numpy as np
import pytest
from tensordict import TensorDict

import probe
from probe.analysis.advice import Suggestion, advise, copying
from probe.analysis.advice.advice import _one_a_key
from probe.analysis.advice.gains import Gain, sure
from probe.analysis.advice.keys import key_of
from probe.analysis.memory_model import risk_of, room_over_steps
from probe.analysis.verdict import balance, with_advice
from probe.analysis.what_if import Replayer, Settings, what_if
from probe.cli import main
from probe.errors import InputError, UnknownNameError
from probe.records import GIB
from probe.views.panel import looking
from probe.views.report.sections import advice_section
from tests.analysis.planted_batches import MIB, Planted, planted
from tests.sample_run import open_run, sample_rows

CAP = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
DYNAMIC = "actor_rollout_ref.actor.use_dynamic_bsz"

YAML = """\
# Ours, tuned by hand in March.
actor_rollout_ref:
  actor:   # the policy
    use_dynamic_bsz: {dynamic}
    ppo_max_token_len_per_gpu: {cap}  # tokens
    ppo_micro_batch_size_per_gpu: 4
trainer: {{balance_batch: {balance}, nnodes: 1}}
"""


def config(cap=8192, dynamic=True, balance=True):
    return {
        "actor_rollout_ref": {"actor": {"ppo_max_token_len_per_gpu": cap, "use_dynamic_bsz": dynamic}},
        "trainer": {"balance_batch": balance},
    }


def test_4_a_cap_that_leaves_room_is_raised_to_what_fits_and_the_gain_is_the_replays(tmp_path):
    with planted(tmp_path, Planted(total=60 * GIB, config=config())) as run:
        found = advise(run)
        (one,) = found.suggestions
        assert one.kind == "cap"
        assert one.before == {CAP: 8192}
        cap = one.values[CAP]
        # 60 − 2 (not torch's) − 1 (reserved above) − 20 GiB hold some 12,600 tokens of 3 MiB, less what rows cost.
        assert 8192 < cap < 12_600
        again = what_if(run, cap_tokens=cap)
        assert again.saved_s[("actor", "update_actor")] == one.gain_s
        assert again.number("micro_batches") == one.what_if.number("micro_batches")
        micro = again.number("micro_batches")
        assert f"{micro[0]:.4g} → {micro[1]:.4g} a step" in one.gains[1]


def risk_under(run, cap):
    own = Replayer(run)
    (model,) = own.memory.values()
    return risk_of(model, [sorted(own.after(at, Settings(cap_tokens=cap)).micro_batches) for at in range(len(own))])


def test_4_the_advised_cap_keeps_the_risk_and_a_larger_one_does_not(tmp_path):
    with planted(tmp_path, Planted(total=60 * GIB, config=config())) as run:
        cap = advise(run, risk=0.02).suggestions[0].values[CAP]
        assert risk_under(run, cap) <= 0.02
        assert risk_under(run, int(1.05 * cap)) > 0.02
        assert advise(run, risk=0.5).suggestions[0].values[CAP] >= cap


def test_4_where_no_cap_is_safe_it_says_so(tmp_path):
    with planted(tmp_path, Planted(total=30 * GIB, config=config())) as run:
        found = advise(run)
        assert not found.suggestions
        (remark,) = found.remarks
        assert re.fullmatch(
            r"update_actor: no cap is advised\. Under a cap of [\d,]+, about the smallest that holds the longest row, "
            r"\d+ % of runs of 1,000 steps run out of memory\.", remark,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "why"),
    [
        ((0.4, 0.1), None),
        ((0.4, 0.5), "the interval of the time saved includes 0"),
        (None, "its time isn't measured"),
    ],
)
def test_4_why_confidence_is_not_high_tells_a_time_that_noise_hides_from_one_that_is_unknown(tmp_path, seconds, why):
    with planted(tmp_path, Planted(total=60 * GIB, config=config())) as run:
        answer = what_if(run, cap_tokens=9000)
    gain = Gain(0.1, seconds)
    because, confidence = sure(answer, gain.surely, gain)
    plain = f"{answer.steps} steps replayed by the rule of its packer"
    assert (because, confidence) == ((plain, "high") if why is None else (f"{plain}; {why}", "medium"))


def test_2_what_a_slider_may_ask_for_is_told_beyond_what_was_seen_too(tmp_path):
    with planted(tmp_path / "a", Planted(rows=256, config=config(), steps=6)) as run:
        found = advise(run)
        (limit,) = found.limits.values()
        assert limit.best == found.suggestions[0].values[CAP]
        assert 16_000 < limit.best <= 16_384  # twice the largest that was seen
        assert risk_under(run, limit.risky) > 0.02 >= risk_under(run, limit.risky - 256)
    with planted(tmp_path / "b", Planted(config=config(), steps=6, total=43 * GIB)) as run:
        (limit,) = advise(run).limits.values()
        assert limit.best < limit.risky < 8192
        assert limit.risky - limit.best == 256  # the next step
    with planted(tmp_path / "c", Planted(config=config(), steps=6, total=2000 * GIB)) as run:
        (limit,) = advise(run).limits.values()
        assert limit.risky is None
    looker = looking.Looker(str(tmp_path / "b"), looks=[], often=[])
    (phase,) = looker.answer({"attempt": None, "whole": True})["what_if"]["phases"]
    with probe.open(tmp_path / "b") as run:
        (limit,) = advise(run).limits.values()
    assert phase["caps"] == {"best": limit.best, "risky": limit.risky, "risk": 0.02}


def test_4_a_cap_that_runs_out_of_memory_is_lowered_and_comes_first(tmp_path):
    with planted(tmp_path, Planted(total=43 * GIB, balanced=False, config=config(balance=False))) as run:
        found = advise(run).suggestions
        assert found[0].kind == "cap"
        assert found[0].values[CAP] < 8192
        assert found[0].gains[0].startswith("today's cap runs out of memory in 100 % of runs")
        assert found[1].values == {"trainer.balance_batch": True}


def test_4_fixed_rows_and_uneven_ranks_are_named_with_their_keys(tmp_path):
    made = Planted(cap=None, balanced=False, config=config(dynamic=False, balance=False))
    with planted(tmp_path, made) as run:
        dynamic, balance = advise(run).suggestions
        assert dynamic.values[DYNAMIC] is True
        assert dynamic.values[CAP] == run.micro_batches["tokens"].max()  # none is larger than before
        assert dynamic.gain_share > balance.gain_share > 0.01
        assert dynamic.confidence == "low"  # all had four rows: what a fifth costs wasn't seen
        assert dynamic.because.endswith("; whether its memory suffices isn't known")
        assert np.isnan(dynamic.what_if.number("predicted_peak_bytes")[1])
        why = "Each micro-batch had 4 rows, so what a row needs isn't known."
        assert any(one.startswith(f"update_actor: no peak is told. {why}") for one in dynamic.gains)
        assert not any("peaks at" in one for one in dynamic.gains)
        assert balance.values == {"trainer.balance_batch": True}
        assert balance.gains[0].startswith("imbalance over ranks 1.")


@pytest.mark.parametrize(
    ("phase", "then"),
    [("update", "per_device_train_batch_size = 1"), ("evaluate", "1 row in each micro-batch")],
)
def test_4_trl_gets_no_more_rows_where_nothing_shows_what_a_row_needs(tmp_path, phase, then):
    told = {"per_device_train_batch_size": 2, "per_device_eval_batch_size": 2, "gradient_accumulation_steps": 16}
    made = Planted(cap=None, rows_each=2, mini_batches=1, phase=phase, tells_packer=False, config=told)
    with planted(tmp_path, made) as run:
        found = advise(run)
        assert [one for one in found.suggestions if one.kind == "rows"] == []
        why = "Each micro-batch had 2 rows, so what a row needs isn't known."
        cure = f"Run one step with {then}: fewer rows can't run out of memory."
        assert f"{phase}: more rows aren't advised. {why} {cure}" in found.remarks


def test_3_the_phase_that_binds_and_the_room_it_leaves_are_told(tmp_path):
    with planted(tmp_path, Planted(config=config() | {"model": {"vocab_size": 152_000}})) as run:
        found = advise(run)
        assert found.binding.phase == "update_actor"
        assert found.to_dict()["binding_phase"] == "update_actor"
        assert "a token's share ÷ the vocabulary is 2" in repr(found)
        assert "update_actor needs the most memory: its largest peak left" in repr(found).replace("\n", " ")
        room = room_over_steps(run)
        assert room["step"].tolist() == list(range(1, 13))
        assert room["room_bytes"].min() - GIB == pytest.approx(found.binding.left_bytes, abs=2)


def test_4_of_phases_that_share_a_setting_the_one_that_needs_most_decides():
    def cap(phase, value):
        return Suggestion("cap", {"max_token_len": value}, {}, phase, (), 0.1, None, "high", "", None)

    kept = _one_a_key([cap("old_log_prob", 2000), cap("update", 1500), cap("ref", 1800)])
    assert [one.advice for one in kept] == ["update"]


def test_4_a_loose_cap_is_named(tmp_path):
    made = Planted(packer="verl 0.7.1", ranks=1, cap=4096, config=config(4096))
    made.lengths = lambda random, rows: random.lognormal(6.3, 0.7, rows).clip(20, 2000)
    with planted(tmp_path, made) as run:
        strict = next(one for one in advise(run).suggestions if one.kind == "strict")
        assert strict.values == {}
        assert strict.advice == "Use verl 0.9.1 or later, whose cap holds."
        assert strict.gains[0].endswith("→ 0")


def test_4_nothing_is_advised_where_nothing_can_be_told(tmp_path):
    alike = Planted(cap=4096, config=config(4096), lengths=lambda random, rows: random.integers(1015, 1024, rows))
    with planted(tmp_path / "a", alike) as run:
        found = advise(run)
        assert found.suggestions == ()
        assert "actor · update_actor: no cap is advised. Its micro-batches are all alike" in found.remarks[0]
        assert "Run one step with a cap of 2,048 tokens" in found.remarks[0]
        assert repr(found).startswith("Nothing was found that is worth a change.")
    with planted(tmp_path / "b", Planted(config=config(), total=45 * GIB)) as run:
        kept = [one for one in advise(run).suggestions if one.kind == "cap"]
        assert all(one.values[CAP] != 8192 for one in kept)
        with pytest.raises(InputError, match="risk: got 2, expected a share"):
            run.advise(risk=2)
    with open_run(tmp_path / "c", sample_rows(ranks=2, steps=3)) as run:
        assert advise(run).values == {}


def test_4_keys_are_those_of_the_framework(tmp_path):
    with planted(tmp_path / "a", Planted(steps=1, config=config())) as run:
        assert key_of(run, "cap_tokens", "ref") == "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu"
        assert key_of(run, "cap_tokens", "update_critic") == "critic.ppo_max_token_len_per_gpu"
        assert key_of(run, "cap_tokens", "unheard of") is None
    nemo = {"policy": {"dynamic_batching": {"enabled": True}}, "cluster": {}}
    with planted(tmp_path / "b", Planted(steps=1, config=nemo)) as run:
        assert key_of(run, "cap_tokens", "train") == "policy.dynamic_batching.train_mb_tokens"
        assert key_of(run, "cap_tokens", "logprob") == "policy.dynamic_batching.logprob_mb_tokens"
    with planted(tmp_path / "c", Planted(steps=1, config={"max_tokens": 8192})) as run:
        assert key_of(run, "cap_tokens", "update") == "max_tokens"


@pytest.fixture(scope="module")
def wasteful(tmp_path_factory):
    """A run directory whose cap is too high and whose ranks are uneven."""
    made = Planted(total=40 * GIB, balanced=False, ranks=4, steps=6, mini_batches=1, config=config(balance=False))
    path = tmp_path_factory.mktemp("wasteful") / "run"
    planted(path, made).close()
    return path


def test_4_the_advice_stands_on_the_finding_that_it_belongs_to_as_the_command_prints_it(wasteful):
    with probe.open(wasteful) as run:
        advice, found = advise(run), run.findings()
        by_kind = {one.kind: one for one in advice.suggestions}
        for name, kind in (("tight_memory", "cap"), ("uneven_ranks", "balance")):
            change = found.named(name).change
            assert change == by_kind[kind].change
            assert "\n".join(change.told) == repr(by_kind[kind])
            printed = [line.strip() for line in repr(found).splitlines()]
            assert {line.strip() for line in repr(by_kind[kind]).splitlines()} <= set(printed)
        assert found.named("uneven_ranks").change.line == "trainer.balance_batch=True"
        frame = found.to_frame().set_index("name")
        assert frame.loc["uneven_ranks", "change_confidence"] == by_kind["balance"].confidence
        assert json.loads(json.dumps([one.to_dict() for one in found]))
        patch = copying.copied(run, advice)
        assert "-  balance_batch: false\n+  balance_batch: true\n" in patch
        assert copying.recorded_patch(run, {"a.b.c": 7}) != ""  # a setting that it hasn't is put in
        assert copying.recorded_patch(run, {}) == ""


def test_4_report_and_panel_have_the_advice_as_the_command_prints_it_and_work_it_out_once(wasteful, monkeypatch):
    with probe.open(wasteful) as run:
        advice, page = advise(run), advice_section(run)
        patch = copying.copied(run, advice)
    assert len(advice.suggestions) == 2
    for one in advice.suggestions:
        assert f'<pre tabindex="0">{html.escape(repr(one))}</pre>' in page
    assert f'<pre id="advice-patch" tabindex="0">{html.escape(patch)}</pre>' in page
    asked = []
    monkeypatch.setattr(looking, "advise", lambda run: asked.append(run) or advise(run))
    looker = looking.Looker(str(wasteful), looks=[balance.ranks], often=[])
    for live in (True, True, False):  # as long as no more steps end
        told = json.loads(json.dumps(looker.answer({"attempt": None, "whole": True, "live": live})))
    assert len(asked) == 1
    assert told["failed"] == []
    assert ["\n".join(one["told"]) for one in told["advice"]["changes"]] == [repr(one) for one in advice.suggestions]
    assert told["advice"]["patch"] == patch
    (finding,) = told["findings"]
    assert "\n".join(finding["change"]["told"]) in [repr(one) for one in advice.suggestions]


@pytest.mark.usefixtures("lenient")
def test_4_advice_is_asked_for_only_where_a_finding_could_have_some_and_its_failure_hides_nothing(
    tmp_path, monkeypatch, caplog
):
    asked = []

    def fails(run):
        asked.append(run)
        raise ValueError("no advice")

    monkeypatch.setattr(with_advice, "advise", fails)
    with open_run(tmp_path / "a", sample_rows(ranks=1, steps=2)) as run:
        names = {one.name for one in run.findings()}
    assert bool(asked) == bool(names & set(with_advice.ANSWERS))
    before = len(asked)
    with planted(tmp_path / "b", Planted(balanced=False, ranks=4, steps=3, mini_batches=1)) as run:
        assert run.findings().named("uneven_ranks").change.confidence is None
    assert len(asked) == before + 1
    assert "advice failed" in caplog.text


def test_4_verl_s_actor_and_rollout_are_turned_together(tmp_path):
    told = config(dynamic=False)
    told["actor_rollout_ref"]["rollout"] = {"log_prob_use_dynamic_bsz": False}
    with planted(tmp_path, Planted(cap=None, ranks=2, steps=4, config=told)) as run:
        (one,) = [each for each in advise(run).suggestions if each.kind == "dynamic"]
    # verl refuses to start where the two differ.
    assert one.values[DYNAMIC] is one.values["actor_rollout_ref.rollout.log_prob_use_dynamic_bsz"] is True
    assert any(gain.startswith("micro-batches of the rank with the most: ") for gain in one.gains)


def test_4_the_panel_says_an_advice_without_a_setting_once(tmp_path):
    planted(tmp_path / "run", Planted(packer="probe", balanced=False, steps=6, mini_batches=1)).close()
    looker = looking.Looker(str(tmp_path / "run"), looks=[balance.ranks], often=[])
    (finding,) = looker.answer({"attempt": None, "whole": True})["findings"]
    advice, told = finding["change"]["advice"], finding["change"]["told"]
    assert advice.startswith("Deal rows to ranks")
    assert told[0].strip().startswith("imbalance over ranks")
    assert advice not in told


def test_4_an_own_loop_s_arguments_keep_their_names_and_a_python_file_is_patched(tmp_path, capsys):
    loop = "parts, rows = rearrange_micro_batches(batch, max_token_len=8192, balance='workload')  # ours\n"
    file = tmp_path / "train.py"
    file.write_text(loop)
    planted(tmp_path / "a", Planted(packer="probe", ranks=1, steps=6)).close()
    assert main(["advise", str(tmp_path / "a"), "--config", str(file)]) == 0
    said = capsys.readouterr()
    with probe.open(tmp_path / "a") as run:
        cap = advise(run).values["max_token_len"]
    assert cap > 8192
    assert f"max_token_len: 8192 → {cap}" in said.err
    assert f"+{loop.replace('8192', str(cap))}" in said.out


def test_4_an_own_loop_whose_cap_is_loose_is_told_to_be_strict(tmp_path, capsys):
    import torch

    mask = (torch.arange(64) < torch.tensor([50, 50, 50])[:, None]).long()
    batch = TensorDict({"attention_mask": mask}, batch_size=[3])
    with probe.start("loops", "own", run_dir=str(tmp_path / "run")) as session:
        for step in range(4):
            with session.step(step), probe.phase("update"):
                probe.rearrange_micro_batches(batch, max_token_len=80, strict=False)
    file = tmp_path / "train.py"
    file.write_text("parts = rearrange_micro_batches(batch, max_token_len=80, strict=False)\n")
    assert main(["advise", str(tmp_path / "run"), "--config", str(file)]) == 0
    said = capsys.readouterr()
    assert "strict: false → true" in said.err
    assert "+parts = rearrange_micro_batches(batch, max_token_len=80, strict=True)\n" in said.out
    with probe.open(tmp_path / "run") as run:
        assert run.findings().named("over_cap").change.line == "strict=True"


def long_and_short(random, rows):
    few = random.random(rows) < 0.08
    return np.where(few, random.integers(20_000, 30_000, rows), random.integers(200, 1500, rows))


def test_4_an_own_loop_whose_memory_is_full_evens_tokens_before_it_lowers_its_cap(tmp_path, capsys):
    made = Planted(packer="probe", ranks=1, rows=64, mini_batches=1, cap=80_000, lengths=long_and_short)
    made.per_token, made.per_longest, made.per_row = 0.5 * MIB, 0, 0
    made.total = 62 * GIB
    planted(tmp_path / "run", made).close()
    with probe.open(tmp_path / "run") as run:
        found = advise(run)
        (one,) = found.suggestions
        assert (one.kind, one.values, one.before) == ("evened", {"balance": "tokens"}, {"balance": "workload"})
        assert one.gains[0] == "today's micro-batches run out of memory in 100 % of runs of 1,000 steps"
        again = what_if(run, evened="tokens")
        for name in ("largest_tokens", "predicted_peak_bytes"):
            before, after = again.number(name)
            assert after < before
        assert again.number("micro_batches")[0] == again.number("micro_batches")[1]
        assert f"peaks at {again.number('predicted_peak_bytes')[1] / GIB:.1f} ±" in one.gains[1]
        assert run.findings().named("tight_memory").change == one.change
    file = tmp_path / "train.py"  # which leaves it to the default
    file.write_text("for part in probe.micro_batches(\n    batch,\n    max_token_len=80_000,\n):\n    pass\n")
    assert main(["advise", str(tmp_path / "run"), "--config", str(file)]) == 0
    assert "+    max_token_len=80_000, balance='tokens',\n" in capsys.readouterr().out
    made.total = 58 * GIB  # even tokens aren't enough: the cap has to go down
    with planted(tmp_path / "less", made) as run:
        assert [each.kind for each in advise(run).suggestions] == ["cap"]


def test_4_ranks_of_an_own_loop_that_go_in_step_even_the_work_where_the_measured_times_say_so(tmp_path):
    made = Planted(packer="probe", rows=128, mini_batches=1, cap=60_000, lengths=long_and_short, evened="tokens")
    made.per_token, made.per_longest, made.per_row, made.per_square_s = 0.1 * MIB, 0, 0, 4e-9
    with planted(tmp_path / "a", made) as run:
        (one,) = [each for each in advise(run).suggestions if each.kind == "evened"]
        assert one.values == {"balance": "workload"}
        value, reach = one.gain_s
        assert value > reach > 0
        assert one.gains[-1].endswith("a step, where ranks wait for each other after each micro-batch, as under FSDP")
    made.evened, made.per_square_s = "workload", 4e-9
    with planted(tmp_path / "b", made) as run:  # which is so already
        assert [each for each in advise(run).suggestions if each.kind == "evened"] == []
    made.packer = "verl 0.9.1"
    with planted(tmp_path / "c", made) as run:
        assert [each for each in advise(run).suggestions if each.kind == "evened"] == []
        with pytest.raises(InputError, match=r"evened: the packer verl\.rearrange_micro_batches doesn't take it"):
            what_if(run, evened="tokens")


def test_4_a_loop_that_cuts_by_itself_names_its_rule_and_gets_its_cap(tmp_path, capsys):
    made = Planted(tells_packer=False, balanced=False, source="micro_batch", ranks=1, steps=6)
    with planted(tmp_path / "a", made) as run:
        found = advise(run)
        assert found.values == {}
        assert "who cut its batches wasn't recorded. Name the rule with packer=" in found.remarks[0]
        one = advise(run, packer="verl.rearrange_micro_batches").suggestions[0]
        assert one.before == {"cap": 8192}
        assert one.values["cap"] > 8192
        assert "and verl.fixed_rows refuses them: rows_each" in advise(run, packer="verl.fixed_rows").remarks[0]
        with pytest.raises(UnknownNameError, match="packer"):
            advise(run, packer="theirs")
    file = tmp_path / "train.py"
    file.write_text("with probe.micro_batch(at, lengths=lengths, cap=8192):\n    pass\n")
    assert main(["advise", str(tmp_path / "a"), "--packer", "verl.rearrange_micro_batches", "--config", str(file)]) == 0
    assert f"+with probe.micro_batch(at, lengths=lengths, cap={one.values['cap']}):" in capsys.readouterr().out


# ----------------------------------------------------------------------------------------------------- the command


@pytest.fixture
def uneven(tmp_path):
    made = Planted(cap=None, balanced=False, config=config(dynamic=False, balance=False))
    planted(tmp_path / "run", made).close()
    return str(tmp_path / "run")


def test_4_the_command_prints_the_list_and_as_json_what_stands_behind_it(uneven, capsys):
    assert main(["advise", uneven]) == 0
    said = capsys.readouterr().out
    assert f"{DYNAMIC}: false → true" in said
    assert "confidence high: 12 steps replayed by the rule of its packer" in said
    assert "confidence low: 12 steps replayed by the rule of its packer; " in said
    assert "no peak is told" in said
    assert main(["advise", uneven, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["framework"] == "verl"
    assert [one["kind"] for one in told["suggestions"]] == ["dynamic", "balance"]
    assert told["suggestions"][0]["what_if"]["steps"] == 12
    assert "patch" not in told


def test_4_config_prints_a_patch_that_keeps_comments_and_changes_nothing_by_itself(uneven, tmp_path, capsys):
    import subprocess

    import yaml

    file = tmp_path / "ppo.yaml"
    file.write_text(YAML.format(dynamic="false", cap="8192", balance="false"))
    before = file.read_text()
    assert main(["advise", uneven, "--config", str(file)]) == 0
    said = capsys.readouterr()
    assert file.read_text() == before
    assert DYNAMIC in said.err
    subprocess.run(["patch", "-p1", "-d", "/"], input=said.out, text=True, check=True, capture_output=True)
    after = file.read_text()
    assert "# Ours, tuned by hand in March." in after
    assert "  actor:   # the policy" in after
    loaded = yaml.safe_load(after)
    assert loaded["actor_rollout_ref"]["actor"]["use_dynamic_bsz"] is True
    assert loaded["trainer"] == {"balance_batch": True, "nnodes": 1}
    assert len([1 for a, b in zip(before.splitlines(), after.splitlines(), strict=True) if a != b]) == 3
    assert main(["advise", uneven, "--config", str(tmp_path / "none.yaml")]) == 2
    assert "config: " in capsys.readouterr().err
