"""What is logged beside numbers: frozen when it is made, and plain."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from probe.errors import InputError, InputTypeError
from probe.tracking.media import Figure, Histogram, Image, Span, Spans, Table, Text, as_medium, medium_of, page


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("first", [False, True])
def test_a_picture_is_a_png_that_others_read(channels, first):
    from PIL import Image as Pillow

    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, channels), dtype=np.uint8)
    made = Image.from_picture(pixels.transpose(2, 0, 1) if first else pixels)
    read = Pillow.open(io.BytesIO(made.png))
    assert (read.size, (made.width, made.height)) == ((7, 5), (7, 5))
    assert np.array_equal(np.asarray(read).reshape(pixels.shape), pixels)
    assert np.array_equal(
        np.asarray(Pillow.open(io.BytesIO(Image.from_picture(read).png))).reshape(pixels.shape), pixels
    )


def test_pictures_of_floats_tensors_and_files(tmp_path):
    made = Image.from_picture(torch.tensor([[0.0, 0.5], [1.0, 2.0]]))
    assert made == Image.from_picture(np.array([[0, 128], [255, 255]], dtype=np.uint8))
    (tmp_path / "a.png").write_bytes(made.png)
    assert (
        Image.from_picture(tmp_path / "a.png")
        == Image.from_picture(str(tmp_path / "a.png"))
        == Image.from_picture(made.png)
        == made
    )


@pytest.mark.parametrize("bad", [np.zeros((2, 3, 5)), np.zeros(3), np.zeros((2, 2), int), b"GIF89a", np.zeros((0, 2))])
def test_what_is_no_picture_is_named(bad):
    with pytest.raises(InputError, match="picture"):
        Image.from_picture(bad)


def test_histograms():
    assert Histogram.from_values(torch.tensor([[0.0, 1.0], [float("nan"), float("inf")]]), bins=1) == Histogram(
        (0.0, 1.0), (2,)
    )
    with pytest.raises(InputError, match="finite"):
        Histogram.from_values([float("nan")])
    with pytest.raises(InputTypeError, match="meta"):
        Histogram.from_values(torch.empty(3, device="meta"))
    with pytest.raises(InputError, match="edges"):
        Histogram([1.0], [2])


def test_tables():
    import pandas as pd

    frame = pd.DataFrame({"a": [1, 2], "b": ["x", "y"]})
    table = as_medium(frame)
    frame["a"] = 0
    assert table == Table(["a", "b"], [[1, "x"], [2, "y"]])
    assert as_medium(table) is table
    assert Table(["n"], [[np.float32(0.5)], [np.int64(3)], [Text("t")]]).rows == ((0.5,), (3,), ("Text(text='t')",))
    with pytest.raises(InputError, match="expected 2"):
        Table(["a", "b"], [[1]])


def test_a_figure_is_kept_as_it_is_now():
    import plotly.graph_objects as go

    figure = go.Figure(go.Bar(y=[1]))
    kept = as_medium(figure)
    figure.add_bar(y=[2])
    assert isinstance(kept, Figure)
    assert kept.spec.count('"y":[') == 1
    assert "https://" not in page(kept, "<b>").partition("<script>")[0]
    assert as_medium(object()) is None


def test_spans_are_read_again_as_they_were():
    spans = Spans([Span(1, 2, {"a": None}, "why", name="x", number=4, parent=3), Span(0, 3)])
    assert medium_of(json.loads(json.dumps(spans.plain()))) == spans


@pytest.mark.parametrize("content", [b"\x89PNG\r\n\x1a\n", b"GIF89a" + bytes(100)], ids=["cut", "of another kind"])
def test_bytes_that_are_no_whole_png_are_refused(content):
    with pytest.raises(InputError, match="expected a PNG"):
        Image.from_picture(content)


def test_only_what_has_rows_or_pixels_becomes_a_medium_by_itself():
    import pandas as pd

    frame = pd.DataFrame({"a": [1]})
    assert as_medium(frame) == Table(["a"], [[1]])
    assert as_medium(frame["a"]) is None
    assert as_medium(pd.Timestamp(0)) is None
    assert as_medium(SimpleNamespace(columns=["a"], mode="RGB")) is None


def test_a_histogram_as_bars_stands_over_its_edges():
    spec = json.loads(Histogram((0.0, 1.0, 4.0), (5, 2)).figure("lengths").spec)
    (bars,) = spec["data"]
    assert (bars["x"], bars["width"], bars["y"]) == ([0.5, 2.5], [1.0, 3.0], [5, 2])
    assert spec["layout"]["title"]["text"] == "lengths"
