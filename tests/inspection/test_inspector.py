"""The inspector: what a person sees of a batch, in text, in saved HTML, in a kernel, and in a real browser."""

from __future__ import annotations

import gc
import json
import weakref
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from tensordict import TensorDict

from probe.core.batched_data_dict import BatchedDataDict
from probe.core.columns.jagged import build_jagged
from probe.core.protocol import DataProto
from probe.errors import InputTypeError, MissingKeyError, SessionError
from probe.inspection import widget as inspector_view
from probe.inspection.inspector import Inspection, inspect

NASTY = "<img src=x onerror=globalThis.__hurt=1><script>globalThis.__hurt=2</script>"
SCRIPT = Path(inspector_view.__file__).parent / "static" / "inspector.js"


class Letters:
    """A tokenizer whose token n is the n-th letter."""

    def decode(self, ids):
        return "".join(chr(97 + one % 26) for one in ids)


def batch_of(rows=6, **meta):
    ids = torch.arange(rows * 12).reshape(rows, 12)
    mask = torch.ones(rows, 12, dtype=torch.long)
    mask[:, :2] = 0
    mask[0, 9:] = 0
    tensors = {"input_ids": ids, "attention_mask": mask, "responses": ids[:, 8:], "reward": torch.rand(rows)}
    return DataProto.from_dict(tensors, {"uid": [f"u{row}" for row in range(rows)]}, meta)


class Tags(HTMLParser):
    """The tags of a document, and whether each is closed in its order."""

    def __init__(self, text):
        super().__init__()
        self.names, self._open = [], []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag, attributes):
        self.names.append(tag)
        if tag != "br":
            self._open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.names.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag


# ---- asking


@pytest.mark.parametrize(
    "make",
    [
        batch_of,
        lambda: batch_of().batch,
        lambda: BatchedDataDict(dict(batch_of().batch)),
        lambda: dict(batch_of().batch),
    ],
)
def test_every_kind_of_batch(make):
    inspection = inspect(make(), Letters(), rows=slice(0, 2))
    assert "input_ids" in repr(inspection)
    assert "··ppppppr···" in repr(inspection)
    Tags(inspection._repr_html_())
    text = inspection.texts(0)[0]
    assert (text.prompt, text.response, text.whole) == ("cdefgh", "i", "")


def test_the_frame_says_what_the_table_says():
    frame = inspect(batch_of()).frame()
    assert isinstance(frame, pd.DataFrame)
    assert frame["key"].tolist() == ["input_ids", "attention_mask", "responses", "reward", "uid"]
    assert frame["bytes"].tolist()[:2] == [576, 576]
    assert frame["memory"].tolist() == ["A", "", "A", "", ""]
    assert inspect({}).frame().empty


def test_values_on_demand():
    batch = batch_of()
    inspection = inspect(batch, rows=(1, 3))
    assert [row.tolist() for row in inspection.values("input_ids", positions=(0, 2))] == [[12, 13], [24, 25]]
    assert inspection.values("batch.input_ids", 5, (1, 2))[0].tolist() == [61]
    assert inspection.values("uid") == ["u1", "u2"]
    assert inspection.values("input_ids", 0)[0].data_ptr() == batch.batch["input_ids"].data_ptr()
    with pytest.raises(MissingKeyError, match="no column 'ids'"):
        inspection.values("ids")
    with pytest.raises(MissingKeyError, match="tokenizer"):
        inspection.texts()
    with pytest.raises(InputTypeError, match="decode"):
        inspect(batch, tokenizer="gpt2")
    with pytest.raises(InputTypeError, match="rows"):
        inspect(batch, rows="all")


def test_jagged_batches():
    offsets = torch.tensor([0, 5, 8])
    ids = build_jagged(torch.arange(8), offsets, 3, 5)
    responses = build_jagged(torch.tensor([3, 4, 7]), torch.tensor([0, 2, 3]), 1, 2)
    inspection = inspect(TensorDict({"input_ids": ids, "responses": responses}, [2]), Letters())
    assert [(one.prompt, one.response) for one in inspection.texts()] == [("abc", "de"), ("fg", "h")]
    assert "pppr" in repr(inspection)
    assert [row.tolist() for row in inspection.values("input_ids", positions=(1, 3))] == [[1, 2], [6, 7]]


def test_prompts_and_responses_alone_are_decoded():
    batch = {"prompts": torch.tensor([[0, 1]]), "responses": torch.tensor([[2, 3]])}
    (text,) = inspect(batch, Letters()).texts()
    assert (text.prompt, text.response) == ("ab", "cd")
    with pytest.raises(MissingKeyError, match="input_ids"):
        inspect({"x": torch.zeros(2)}, Letters()).texts()


def test_lengths_and_a_long_batch():
    mask = (torch.arange(5000)[None] < torch.arange(1, 41)[:, None] * 100).long()
    inspection = inspect({"input_ids": mask, "attention_mask": mask}, rows=(0, 40))
    assert inspection.lengths() == {"tokens": [100 * (row + 1) for row in range(40)]}
    assert "tokens a row: 100 to 4,000, mean 2,050.0" in repr(inspection)
    assert max(map(len, repr(inspection).splitlines())) < 200
    assert len(inspection._repr_html_()) < 60_000


def test_a_map_that_changes_at_every_position_stays_small():
    mask = (torch.arange(20_000) % 2)[None].repeat(64, 1)
    document = inspect({"attention_mask": mask}, rows=(0, 64))._repr_html_()
    assert len(document) < 200_000


def test_closing_lets_go_of_the_batch():
    batch = batch_of()
    gone = weakref.ref(batch.batch["reward"])
    inspection = inspect(batch, Letters())
    del batch
    gc.collect()
    assert gone() is not None
    inspection.close()
    inspection.close()
    gc.collect()
    assert gone() is None
    assert "closed" in repr(inspection)
    Tags(inspection._repr_html_())
    for ask in (
        lambda: inspection.values("uid"),
        inspection.token_map,
        inspection.lengths,
        lambda: inspection.texts(0),
    ):
        with pytest.raises(SessionError, match="closed"):
            ask()


# ---- users' text


class Hostile:
    def __repr__(self):
        raise RuntimeError(NASTY)


def test_names_values_and_errors_from_users_are_escaped():
    class Bad:
        def decode(self, ids):
            raise ValueError(NASTY)

    odd = np.array([NASTY, Hostile()], dtype=object)
    mask = torch.ones(2, 3)
    batch = DataProto.from_dict(
        {NASTY: mask, "input_ids": mask.long(), "attention_mask": mask}, {"odd": odd, "\ud800": odd}, {NASTY: NASTY}
    )
    inspection = inspect(batch, Bad())
    document = inspection._repr_html_()
    names = Tags(document).names
    assert "script" not in names
    assert "img" not in names
    assert document.encode()
    assert repr(inspection).encode()
    assert "onerror" in document  # it is there, as text
    reply = inspector_view.answer(
        inspection, {"id": "1.1", "ask": "values", "key": "odd", "rows": [0, 2], "positions": [0, 9]}
    )
    assert "script" not in Tags(reply["html"]).names


def test_nothing_comes_from_outside():
    document = inspect(batch_of())._repr_html_()
    for outside in ("http:", "https:", "//", "@import", "url("):
        assert outside not in document


# ---- the kernel's side


def asked(**more):
    return {"v": 1, "id": "1.1", "ask": "values", "key": "input_ids", "rows": [0, 2], "positions": [0, 3], **more}


def test_questions_are_answered_or_said_to_be_wrong():
    inspection = inspect(batch_of(), Letters())
    answer = inspector_view.answer
    assert "[12, 13, 14]" in answer(inspection, asked())["html"]
    assert "<svg" in answer(inspection, asked(ask="tokens"))["html"]
    assert "cdefgh" in answer(inspection, asked(ask="text"))["html"]
    assert "no column" in answer(inspection, asked(key="nothing"))["error"]
    assert "ask" in answer(inspection, asked(ask="everything"))["error"]
    assert "two whole numbers" in answer(inspection, asked(rows=[0]))["error"]
    assert "two whole numbers" in answer(inspection, asked(rows=[0, "1"]))["error"]
    assert answer(inspection, "nonsense")["id"] is None
    assert "no longer in memory" in answer(None, asked())["error"]
    inspection.close()
    assert "no longer in memory" in answer(inspection, asked())["error"]


def test_one_question_is_about_so_many_rows_at_most():
    batch = {"x": torch.arange(1000).reshape(1000, 1)}
    html = inspector_view.answer(inspect(batch), asked(key="x", rows=[0, 1000]))["html"]
    assert html.count("<tr>") == inspector_view.MAX_ROWS + 1


def test_the_widget_does_not_keep_the_batch():
    batch = batch_of()
    inspection = Inspection(batch)
    widget = inspector_view.make_widget(inspection)
    sent = []
    widget.send = sent.append
    try:
        widget._handle_custom_msg(asked(), [])
        assert "[0, 1, 2]" in sent[0]["html"]
        gone = weakref.ref(batch.batch["reward"])
        del batch, inspection
        gc.collect()
        assert gone() is None
        widget._handle_custom_msg(asked(), [])
        assert "no longer in memory" in sent[1]["error"]
    finally:
        widget.close()


def test_outside_a_notebook_the_plain_forms_are_shown():
    assert inspector_view.show(inspect(batch_of())) is None


NOTEBOOK = """
import torch
from probe.inspection.inspector import inspect
x = torch.arange(8).reshape(2, 4)
batch = {"input_ids": x, "attention_mask": torch.ones_like(x)}
"""


@pytest.mark.slow
# The client's own sockets are closed by the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_in_a_kernel_the_output_holds_both_and_in_the_end_the_static_form_alone(tmp_path):
    import nbformat
    from nbclient import NotebookClient

    cells = [
        NOTEBOOK,
        "kept = inspect(batch)\nkept",
        "kept.close()",
        "inspect(batch)",
        "%load_ext probe.notebook.magic\n",
        "%%probe phase=a\n1",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in cells])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    closed, live, summary = (notebook.cells[at].outputs for at in (1, 3, 5))
    assert [sorted(one.data) for one in closed] == [["text/html", "text/plain"]] * 2
    assert dict(closed[1].data) == {"text/html": "", "text/plain": ""}
    assert "input_ids" in closed[0].data["text/plain"]
    assert [sorted(one.data) for one in live] == [
        ["text/html", "text/plain"],
        ["application/vnd.jupyter.widget-view+json", "text/plain"],  # apart, so that the first needs no kernel
    ]
    assert "run the cell again" in live[1].data["text/plain"]
    assert "measured directly" in json.dumps(summary)


# ---- a real browser


HOST = """
<!doctype html><meta charset="utf-8"><title>host</title><body data-jp-theme-light="true"><div id="at"></div><script>
globalThis.__host = {
  sent: [], heard: [], busy: false,
  async open(code, traits) {
    const url = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
    const model = {
      get: (name) => traits[name], on: (name, call) => this.heard.push(call),
      off: (name, call) => { this.heard = this.heard.filter((one) => one !== call); },
      send: (content) => { if (this.dead) throw new Error("closed"); this.sent.push(content); },
    };
    this.stop = (await import(url)).default.render({ model, el: document.getElementById("at") });
  },
  reply(content) { for (const call of this.heard) call(content, []); },
};
</script>
"""


@pytest.fixture
def page(chromium, tmp_path):
    from playwright.sync_api import sync_playwright

    path = tmp_path / "host.html"
    path.write_text(HOST)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        opened = browser.new_page(viewport={"width": 900, "height": 1000})
        opened.goto(path.as_uri())
        yield opened
        browser.close()


@pytest.mark.browser
def test_the_widget_asks_waits_and_shows(page, tmp_path):
    page.set_default_timeout(180_000)
    wrong = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    batch = batch_of()
    batch.non_tensor_batch["odd"] = np.array([NASTY] * 6, dtype=object)
    inspection = inspect(batch, Letters())
    widget = inspector_view.make_widget(inspection)
    traits = {"about": widget.about}
    page.add_style_tag(content=widget._css)
    widget.close()
    page.evaluate("([code, traits]) => __host.open(code, traits)", [SCRIPT.read_text(), traits])

    page.select_option("select[name=key]", "non_tensor_batch.odd")
    page.fill("input[name=first]", "1")
    page.click("text=Show values")
    assert page.text_content("[role=status]") == "Asked the kernel …"
    page.wait_for_function("document.querySelector('[role=status]').textContent.includes('busy')")
    (question,) = page.evaluate("__host.sent")
    assert (question["key"], question["rows"]) == ("non_tensor_batch.odd", [1, 4])

    page.click("text=Show tokens")  # the answer to the first question comes late, and is not shown
    first, second = (inspector_view.answer(inspection, one) for one in page.evaluate("__host.sent"))
    page.evaluate("(content) => __host.reply(content)", first)
    assert page.inner_text(".probe-answer") == ""
    page.evaluate("(content) => __host.reply(content)", second)
    assert page.locator(".probe-answer svg").count() == 1
    assert page.text_content("[role=status]") == ""

    page.click("text=Show values")
    page.evaluate(
        "(content) => __host.reply(content)", inspector_view.answer(inspection, page.evaluate("__host.sent")[2])
    )
    assert "<script>" in page.inner_text(".probe-answer")
    assert page.evaluate("globalThis.__hurt") is None

    page.evaluate("__host.dead = true")
    page.click("text=Show text")
    assert "no kernel" in page.text_content("[role=status]")
    assert page.evaluate("document.documentElement.scrollWidth") <= 900
    page.set_viewport_size({"width": 400, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400

    light = page.evaluate("getComputedStyle(document.querySelector('.probe-batch')).backgroundColor")
    page.evaluate("document.body.setAttribute('data-jp-theme-light', 'false')")
    assert page.evaluate("getComputedStyle(document.querySelector('.probe-batch')).backgroundColor") != light
    page.evaluate("__host.stop()")
    assert page.evaluate("document.getElementById('at').children.length") == 0
    assert page.evaluate("__host.heard.length") == 0
    assert not wrong
