"""15.5: the report shows the answers that findings are of, and the worst step's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import probe
from probe.analysis.found_samples import OF_SAMPLES, worst_step
from probe.analysis.verdict.finding import Finding, Findings, Since, Where
from probe.runs.reader import Run
from probe.views.report import samples
from probe.views.report.report import report_html
from tests.told_samples import told_samples
from tests.views.test_report import Page

NAN = Finding("alarm", "nan", "NaN.", where=Where(step=2, phase="update_actor", micro_batch=1, process="rank-00000"))
SPIKE = Finding("alarm", "gradient_spike", "The norm jumped.", where=Where(step=1))
CUT = Finding("tuning", "cut_off", "Answers are cut off.", since=Since(2))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return told_samples(tmp_path_factory.mktemp("samples") / "run")


def answers_of(html: str, anchor: str) -> list[str]:
    """The rows that name an answer, in the place of that anchor."""
    (place,) = re.findall(rf'<article class="panel" id="{anchor}">(.*?)</article>', html, re.DOTALL)
    rows = re.findall(r'<tr><th scope="row">(.*?)</tr>', place)
    return [" ".join(re.sub(r"<[^>]+>", " ", row).split()) for row in rows]


def test_15_5_findings_on_nan_the_gradients_norm_and_truncation_lead_to_their_answers(directory: Path) -> None:
    found = Findings([NAN, SPIKE, CUT, NAN, Finding("alarm", "hang", "It hangs.")])
    with Run(directory) as run:
        made = samples.section(run, found)
    assert len(made.anchors) == 4
    anchors = {found[at].name: anchor for at, anchor in made.anchors.items()}
    assert set(anchors) == {"nan", "gradient_spike", "cut_off"}
    assert [one.split()[1] for one in answers_of(made.html, anchors["nan"])] == ["4", "3"]
    assert len(answers_of(made.html, anchors["gradient_spike"])) == 6
    (cut,) = answers_of(made.html, anchors["cut_off"])
    assert cut == "Answer 5 1 0 9 +0.05 dropped: truncated · length"
    assert "1 of 6 answers that have a row." in made.html


def test_15_5_a_mismatch_leads_to_the_answers_whose_tokens_are_kept(directory: Path) -> None:
    found = Findings([Finding("alarm", "mismatch", "They disagree.", since=Since(2))])
    with Run(directory) as run:
        made = samples.section(run, found)
        kept = run.sql("select row from token_blocks where step = 2")["row"].tolist()
    assert len(answers_of(made.html, made.anchors[0])) == len(kept) == 4
    assert "Step 2, answers whose tokens are kept" in made.html


def test_15_5_tokens_that_werent_sampled_lead_to_their_answers(tmp_path: Path) -> None:
    with probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=1) as session:
        for step in (1, 2):
            with session.step(step):
                trained = [[1, 2, 3], [1, 2, 3 * step]]
                probe.samples([3, 3], response_ids=trained, sampled_ids=[[1, 2, 3]] * 2)
    with probe.open(tmp_path / "run") as run:
        found = run.findings()
        made = samples.section(run, found)
    (at,) = [at for at, one in enumerate(found) if one.name == "not_sampled"]
    (changed,) = answers_of(made.html, made.anchors[at])
    assert changed.startswith("Answer 1 ")
    assert changed.endswith("other tokens than sampled")
    assert "Step 2, answers trained on other tokens than were sampled" in made.html


def test_15_5_the_report_shows_the_worst_step_group_by_group_and_recorded_texts_as_text(directory: Path) -> None:
    with Run(directory) as run:
        page = Page(report_html(run))
    anchors = {attributes.get("id") for _, attributes in page.tags}
    links = {str(attributes["href"])[1:] for tag, attributes in page.tags if tag == "a"}
    assert {"samples", "samples-worst", "ledger", "long-tail"} <= anchors
    assert {"samples", "ledger", "mismatch", "long-tail"} <= links <= anchors  # those of the header
    assert "Step 1 has most NaN: in 1 answer." in page.words
    assert "b: 3 answers, equal rewards Answer 4 1 0 3 1 NaN" in page.words
    assert "What is <b>1</b>? → answer 4" in page.words  # the worst of its group, with its markup


def test_15_5_no_text_that_the_run_doesnt_keep_is_in_the_report(tmp_path: Path) -> None:
    with Run(told_samples(tmp_path / "run", texts=None)) as run:
        made = samples.section(run, Findings([]))
    assert "Answer 4" in made.html
    assert "What is" not in made.html
    assert 'class="answer"' not in made.html


def test_15_5_the_report_is_bounded_in_places_groups_and_answers(tmp_path: Path) -> None:
    many = samples.ANSWERS + 3
    with probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=1) as session:
        for step in range(samples.PLACES + 2):
            with session.step(step):
                groups = [f"<g{row // many}>" for row in range(9 * many)]
                probe.samples([2] * 9 * many, groups=groups, rewards=[float(step)] * 9 * many)
    found = Findings(
        [Finding("alarm", "gradient_spike", "x", where=Where(step=at)) for at in range(samples.PLACES + 2)]
    )
    with Run(tmp_path / "run") as run:
        made, worst = samples.section(run, found), worst_step(run)
    assert len(made.anchors) == samples.PLACES
    assert made.html.count('<tr class="group">') == samples.GROUPS * (samples.PLACES + 1)
    assert len(answers_of(made.html, "samples-worst")) <= samples.GROUPS * samples.ANSWERS
    assert f"and {many - samples.ANSWERS} more" in made.html
    assert "the 5 worst of 9 groups" in made.html
    assert "<g0>" not in made.html
    assert worst is not None
    assert worst.sentence == "Step 0 has the lowest mean reward: 0."


def test_15_5_a_run_without_samples_has_no_such_section(tmp_path: Path) -> None:
    with probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=1) as session, session.step(0):
        pass
    with Run(tmp_path / "run") as run:
        assert samples.section(run, Findings([NAN])) == samples.Section()


def test_15_5_report_and_panel_lead_from_the_same_findings_to_the_same_answers() -> None:
    source = Path(__file__).parents[2] / "probe/views/panel/static/src/findings.js"
    (told,) = re.findall(r"const OF_SAMPLES = \{(.*)\};", source.read_text(encoding="utf-8"))
    of_panel = {name: only or "all" for name, only in re.findall(r'(\w+): \{ ?(?:only: "(\w+)" )?\}', told)}
    assert of_panel == OF_SAMPLES
