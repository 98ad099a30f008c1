"""Token balance: rank × micro-batch with the cap, imbalance over steps, and who is the straggler."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from probe import text as words
from probe.figures import theme as look
from probe.figures.theme import Theme

MISSING = "No micro-batches were recorded: nothing was cut by probe.micro_batches or rearrange_micro_batches."

#: Cells up to this many carry their number.
_NUMBERED = 160


def heat(frame: pd.DataFrame, *, theme: Theme = "light") -> go.Figure:
    """Tokens of each micro-batch on each rank, from ``analysis.token_balance.heat``; those over the cap are
    marked."""
    if frame.empty:
        return look.nothing(MISSING, theme)
    ranks = sorted(frame["rank"].unique().tolist())
    slots = np.arange(int(frame["micro_batch"].max()) + 1)
    grid = frame.pivot_table("tokens", "rank", "micro_batch", aggfunc="sum").reindex(index=ranks, columns=slots)
    figure = look.blank(theme, height=int(np.clip(150 + 34 * len(ranks), 240, 640)))
    tokens = grid.to_numpy(dtype=float, na_value=np.nan)
    figure.add_trace(
        go.Heatmap(
            z=tokens,
            x=slots,
            y=ranks,
            coloraxis="coloraxis",
            xgap=2,
            ygap=2,
            hoverongaps=False,
            text=_cells(tokens) if tokens.size <= _NUMBERED else None,
            texttemplate="%{text}" if tokens.size <= _NUMBERED else None,
            textfont={"size": 11},
            hovertext=_hover_texts(frame, ranks, slots),
            hoverinfo="text",
        )
    )
    _mark_over_cap(figure, frame)
    cap = frame["cap_tokens"].max()
    figure.update_layout(coloraxis=_scale(float(np.nanmax(tokens)), None if words.missing(cap) else float(cap)))
    figure.update_xaxes(title_text="micro-batch", showline=False, **({"dtick": 1} if len(slots) <= 24 else {}))
    names = (
        {"tickvals": ranks, "ticktext": [f"rank {rank}" for rank in ranks]}
        if len(ranks) <= 24
        else {"title_text": "rank"}
    )
    figure.update_yaxes(autorange="reversed", showgrid=False, **names)
    return figure


def _cells(tokens: np.ndarray) -> list[list[str]]:
    return [["" if np.isnan(value) else words.count(value) for value in line] for line in tokens]


def _hover_texts(frame: pd.DataFrame, ranks: list[int], slots: np.ndarray) -> list[list[str]]:
    told = [["" for _ in slots] for _ in ranks]
    row_of = {rank: index for index, rank in enumerate(ranks)}
    for row in words.rows(frame):
        cap = "no cap"
        if not words.missing(row["cap_tokens"]):
            share = words.percent(row["tokens"] / row["cap_tokens"])
            cap = f"{share} of the cap of {words.count(row['cap_tokens'])}"
        longest = f", longest {words.count(row['longest'])}" if not words.missing(row["longest"]) else ""
        told[row_of[row["rank"]]][int(row["micro_batch"])] = look.hover(
            f"{words.count(row['tokens'])} tokens",
            cap + (" — over it" if row["over_cap"] else ""),
            f"{words.count(row['sequences'])} sequences{longest}",
            look.place({**row, "role": None}),
        )
    return told


def _mark_over_cap(figure: go.Figure, frame: pd.DataFrame) -> None:
    over = frame[frame["over_cap"].astype(bool)]
    if over.empty:
        return
    figure.add_trace(
        go.Scatter(
            x=over["micro_batch"].astype(int) + 0.38,
            y=over["rank"].astype(int),
            mode="markers",
            name="over the cap",
            showlegend=True,
            marker={
                "symbol": "triangle-up",
                "size": 11,
                "color": look.ALARM,
                "line": {"width": 1.5, "color": "#fff"},
            },
            hoverinfo="skip",
        )
    )


def _scale(largest: float, cap: float | None) -> dict[str, object]:
    top = max(largest, cap or 0, 1)
    ticks = [0, cap] if cap else [0, top]
    names = ["0", f"cap {words.count(cap)}"] if cap else ["0", words.count(top)]
    if cap and largest > 1.12 * cap:
        ticks, names = [*ticks, largest], [*names, words.count(largest)]
    bar = {"thickness": 10, "tickvals": ticks, "ticktext": names, "outlinewidth": 0, "x": 1.01, "xpad": 0}
    return {"cmin": 0, "cmax": top, "colorbar": bar}


def over_steps(frame: pd.DataFrame, *, theme: Theme = "light") -> go.Figure:
    """Imbalance of each step, from ``analysis.token_balance.imbalance``: largest ÷ mean, 1 is even."""
    if frame.empty:
        return look.nothing(MISSING, theme)
    figure = look.blank(theme, height=300)
    lines = (
        ("rank_imbalance_ratio", "across ranks", "solid"),
        ("micro_batch_imbalance_ratio", "over micro-batches of a rank", "dash"),
        ("sync_wait_ratio", "wait after each micro-batch", "dot"),
    )
    for index, (column, name, dash) in enumerate(lines):
        part = frame.iloc[look.thin(frame[column])]
        more = part["straggler"] if column == "rank_imbalance_ratio" else [None] * len(part)
        figure.add_trace(
            go.Scatter(
                x=part["step"].astype(float),
                y=part[column].astype(float),
                name=name,
                mode="lines+markers" if len(part) <= 120 else "lines",
                line={"color": look.PALETTE[index], "dash": dash, "width": 2},
                marker={"symbol": look.SYMBOLS[index], "size": 6},
                hovertext=[
                    look.hover(
                        words.ratio(value),
                        f"{name}, step {step}",
                        None if words.missing(who) else f"fullest: rank {int(who)}",
                    )
                    for value, step, who in zip(part[column], part["step"], more, strict=True)
                ],
                hoverinfo="text",
            )
        )
    figure.add_hline(y=1, line={"color": look.QUIET, "width": 1})
    look.step_axis(figure, frame["step"])
    figure.update_yaxes(title_text="largest ÷ mean", rangemode="normal")
    return figure


def stragglers(frame: pd.DataFrame, *, theme: Theme = "light", most: int = 32) -> go.Figure:
    """Tokens of each rank beside the mean, from ``analysis.token_balance.stragglers``; the fullest ``most``
    ranks."""
    if frame.empty:
        return look.nothing("Only one rank cut batches: there is nobody to compare it with.", theme)
    part = frame.nlargest(most, "share_ratio").sort_values("rank")
    worst = int(frame["rank"].iloc[0])
    figure = look.blank(theme, height=280, bargap=0.3)
    rows = list(enumerate(words.rows(part)))
    figure.add_trace(_ranks([one for one in rows if one[1]["rank"] != worst], look.PALETTE[0], ""))
    figure.add_trace(_ranks([one for one in rows if one[1]["rank"] == worst], look.PALETTE[1], "/"))
    figure.add_hline(
        y=1,
        line={"color": look.ALARM, "width": 1.5, "dash": "dash"},
        annotation_text="even",
        annotation_position="top right",
    )
    figure.update_xaxes(tickvals=[place for place, _ in rows], ticktext=[f"rank {row['rank']}" for _, row in rows])
    figure.update_yaxes(title_text="tokens ÷ mean of the ranks", rangemode="tozero")
    return figure


def _ranks(rows: list[tuple[int, dict[Any, Any]]], colour: str, pattern: str) -> go.Bar:
    return go.Bar(
        x=[place for place, _ in rows],
        y=[float(row["share_ratio"]) for _, row in rows],
        width=0.7,
        marker={"color": colour, "pattern": look.hatch(pattern)},
        text=[words.ratio(row["share_ratio"]) for _, row in rows],
        textposition="inside",
        insidetextanchor="middle",
        hovertext=[
            look.hover(
                f"rank {row['rank']}: {words.ratio(row['share_ratio'])} the mean",
                f"{words.count(row['tokens'])} tokens",
                f"fullest in {words.count(row['largest_in'])} of {words.count(row['rounds'])} batches",
            )
            for _, row in rows
        ],
        hoverinfo="text",
        showlegend=False,
    )
