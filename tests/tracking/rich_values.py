"""Values of every kind that can be logged and is no number."""

from __future__ import annotations

from typing import Any

import numpy as np

from probe.tracking.media import Histogram, Image, Span, Spans, Table


def rich_values() -> dict[str, Any]:
    import plotly.graph_objects as go

    return {
        "lengths": Histogram.from_values([1, 2, 2, 5], bins=2),
        "samples": Table(["prompt", "reward"], [["a|b", 0.5], ["c", None]]),
        "curve": go.Figure(go.Scatter(x=[1, 2], y=[3, 4]), layout={"title": {"text": "</script> of losses"}}),
        "note": "two\nlines",
        "picture": Image.from_picture(np.arange(24, dtype=np.uint8).reshape(2, 4, 3)),
        "phase": Span(1_000_000_000, 2_000_000_000, {"tokens": 7}),
        "step": Spans([Span(1_000_000_000, 2_000_000_000, name="step", number=1)]),
        "loss": 0.5,
    }
