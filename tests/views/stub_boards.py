"""Views, titles and panels with all marks, for the configuration of a panel in a test."""

from __future__ import annotations

from typing import Any

_STEP = {"kind": "step"}
LIVE: dict[str, dict[str, Any]] = {
    "overview_tiles": {
        "mark": "tiles",
        "tiles": [
            {
                "id": "step_time",
                "title": "Step time",
                "table": "spans",
                "where": _STEP,
                "y": "duration",
                "reduce": "max",
            }
            | {"unit": "s", "better": "lower", "means": {"good": "The slowest rank's time: the others wait for it."}},
            {"id": "tokens_per_second", "title": "Tokens per second", "table": "micro", "y": "tokens", "reduce": "sum"}
            | {"divide": {"table": "spans", "where": _STEP, "y": "duration", "reduce": "max"}, "unit": "tokens/s"}
            | {"better": "higher", "means": {"good": "Tokens of all micro-batches over the time of the step."}},
            {
                "id": "peak_memory",
                "title": "Peak memory",
                "table": "spans",
                "y": "peak",
                "reduce": "max",
                "unit": "bytes",
            }
            | {
                "capacity": {"table": "memory", "y": "total", "reduce": "max"},
                "better": "lower",
                "warn": 0.85,
                "alarm": 0.95,
            }
            | {
                "means": {
                    "good": "There is room for more tokens.",
                    "warn": "One long batch may not fit.",
                    "alarm": "The next long batch won't fit.",
                }
            },
            {
                "id": "rank_imbalance",
                "title": "Rank imbalance",
                "table": "micro",
                "y": "tokens",
                "each": "rank",
                "reduce": "imbalance",
                "missing": {"rows": "no micro-batches were cut", "value": "needs two ranks or more"},
            }
            | {"unit": "ratio", "better": "lower", "warn": 1.1, "alarm": 1.25}
            | {
                "means": {
                    "good": "Ranks get nearly equal work.",
                    "warn": "Balancing across ranks pays off.",
                    "alarm": "Ranks wait a quarter of the step.",
                }
            },
            {
                "id": "padding_tax",
                "title": "Padding tax",
                "table": "padding",
                "where": {"counted": 2},
                "y": ["tokens", "rectangle"],
            }
            | {"reduce": "ratio", "unit": "percent", "better": "lower", "warn": 0.2, "alarm": 0.4}
            | {
                "means": {
                    "good": "Little is computed on padding.",
                    "warn": "Bucket by length or cut by tokens.",
                    "alarm": "Most of the work is on padding.",
                }
            },
            {
                "id": "own_cost",
                "title": "probe's own cost",
                "table": "scalars",
                "where": {"key": "probe/cost/overhead_ms"},
                "y": "value",
                "own": True,
                "by": "rank",
                "divide": {"table": "scalars", "where": {"key": "probe/cost/step_ms"}, "y": "value", "by": "rank"},
                "pooled": True,
            }
            | {"reduce": "max", "unit": "percent", "better": "lower", "warn": 0.01, "alarm": 0.05}
            | {
                "means": {
                    "good": "Looking costs next to nothing.",
                    "warn": "Record fewer hook points.",
                    "alarm": "Record fewer hook points.",
                }
            },
            {
                "id": "alerts",
                "title": "Alerts",
                "table": "events",
                "y": "count",
                "reduce": "sum",
                "unit": "count",
                "total": True,
            }
            | {
                "better": "lower",
                "warn": 1,
                "alarm": 10,
                "means": {"good": "Nothing went wrong.", "warn": "See Events.", "alarm": "See Events."},
            },
        ],
    },
    "phase_durations": {"mark": "stack", "table": "spans", "where": {"level": "phase"}, "x": "step", "y": "duration"}
    | {"by": "phase", "each": "rank", "reduce": "mean", "unit": "s"},
    "step_timeline": {
        "mark": "timeline",
        "table": "spans",
        "where": {"level": ["phase", "micro_batch"]},
        "by": ["rank"],
    }
    | {"colour": "phase", "of": "step"},
    "memory_timeline": {"mark": "line", "table": "memory", "x": "time", "y": "allocated", "by": "role", "reduce": "max"}
    | {"unit": "bytes", "lines": [{"title": "capacity", "y": "total", "reduce": "max"}]},
    "memory_parts": {
        "mark": "line",
        "table": "memory",
        "x": "time",
        "y": ["allocated", "reserved", "non_torch", "used"],
    }
    | {"reduce": "max", "unit": "bytes", "names": {"non_torch": "non-PyTorch", "used": "used on the device"}},
    "memory_boxes": {"mark": "timeline", "table": "spans", "where": {"level": ["phase", "micro_batch"]}, "y": "peak"}
    | {"by": "role", "of": "step", "unit": "bytes"},
    "memory_by_phase": {
        "mark": "bars",
        "table": "spans",
        "where": {"maker": 1},
        "x": "phase",
        "y": "peak",
        "by": "role",
    }
    | {"reduce": "max", "unit": "bytes", "sort": "value"},
    "memory_over_steps": {
        "mark": "line",
        "table": "spans",
        "where": {"level": "phase"},
        "x": "step",
        "y": "peak",
        "by": "phase",
    }
    | {"reduce": "max", "unit": "bytes"},
    "memory_by_tokens": {
        "mark": "scatter",
        "table": "spans",
        "where": {"kind": "micro_batch"},
        "x": "tokens",
        "y": "peak",
    }
    | {"by": ["role", "phase"], "unit": "bytes", "fit": {"explained": 0.5, "rows": 8}},
    "balance_heat": {
        "mark": "heat",
        "table": "micro",
        "where": {"phase": "update_actor"},
        "x": "micro_batch",
        "by": "rank",
    }
    | {"y": "tokens", "reduce": "sum", "of": "step", "unit": "tokens", "over": "over", "cap": "cap"},
    "balance_bars": {
        "mark": "bars",
        "table": "micro",
        "x": "rank",
        "y": "tokens",
        "reduce": "sum",
        "of": "step",
        "unit": "tokens",
    }
    | {"lines": [{"title": "ideal", "value": "mean"}]},
    "balance_fullest": {"mark": "bars", "table": "micro", "x": "rank", "y": "tokens", "by": "phase", "reduce": "max"}
    | {"of": "step", "unit": "tokens"}
    | {
        "lines": [
            {"title": "cap", "y": "cap", "reduce": "max", "by": "phase"},
            {"title": "mean micro-batch", "y": "tokens", "reduce": "mean"},
        ]
    },
    "balance_stragglers": {"mark": "stragglers", "table": "micro", "y": "tokens", "unit": "tokens"},
    "balance_over_steps": {
        "mark": "line",
        "table": "micro",
        "x": "step",
        "y": "tokens",
        "each": "rank",
        "reduce": "imbalance",
    }
    | {"by": "phase", "unit": "ratio"},
    "padding_over_steps": {
        "mark": "stack",
        "table": "padding",
        "where": {"counted": 2},
        "x": "step",
        "y": "tokens",
        "by": "cause",
    }
    | {"reduce": "sum", "share": "rectangle", "unit": "percent"},
    "padding_by_field": {
        "mark": "stack",
        "table": "padding",
        "where": {"counted": [1, 2]},
        "x": "field",
        "y": "bytes",
        "by": "cause",
    }
    | {"reduce": "sum", "unit": "bytes", "sort": "value"},
    "padding_time": {"mark": "stack", "table": "spans", "where": {"level": "micro_batch"}, "x": "step"}
    | {"y": "on_padding", "by": "phase", "each": "rank", "reduce": "mean", "unit": "s", "y_title": "estimated time"},
    "calls": {"mark": "table", "table": "calls", "newest": 100, "sort": "t", "tone": "error"}
    | {
        "columns": [
            "t",
            "step",
            "rank",
            "phase",
            "name",
            "rows_in",
            "rows_out",
            "bytes_out",
            "duration",
            "added",
            "error",
        ]
    },
    "metrics": {
        "mark": "line",
        "table": "scalars",
        "where": {"own": 0},
        "x": "step",
        "y": "value",
        "by": "key",
        "reduce": "mean",
    },
    "reductions": {"mark": "table", "table": "reductions", "of": "step"}
    | {
        "columns": ["key", "value", "reducer", "chosen_by", "count", "smallest", "largest", "nan", "step"],
        "tone": "nan",
    },
    "events": {"mark": "table", "table": "events", "tone": "off"}
    | {"columns": ["t", "step", "rank", "kind", "where", "message", "count", "off"]},
}

VIEWS: list[dict[str, Any]] = [
    {
        "id": "overview",
        "title": "Overview",
        "about": "Where the run stands.",
        "panels": ["overview_tiles", "phase_durations", "step_timeline"],
    },
    {"id": "memory", "title": "Memory", "about": "Which phase, micro-batch and rank make the peaks."}
    | {
        "panels": [
            "memory_timeline",
            "memory_boxes",
            "memory_parts",
            "memory_over_steps",
            "memory_by_phase",
            "memory_by_tokens",
        ]
    },
    {"id": "time", "title": "Time", "about": "Where the time goes.", "panels": ["balance_stragglers", "padding_time"]},
    {"id": "tokens", "title": "Tokens", "about": "How tokens lie, and what is padding."}
    | {
        "panels": [
            "balance_heat",
            "balance_bars",
            "balance_over_steps",
            "balance_fullest",
            "padding_over_steps",
            "padding_by_field",
        ]
    },
    {"id": "data", "title": "Data", "about": "What became of the batches.", "panels": ["calls"]},
    {
        "id": "metrics",
        "title": "Metrics",
        "about": "What was logged and from what.",
        "panels": ["metrics", "reductions"],
    },
    {"id": "events", "title": "Events", "about": "What went wrong with the observing.", "panels": ["events"]},
]

TITLES = {
    "overview_tiles": "At a glance",
    "phase_durations": "Time of each phase over the run",
    "step_timeline": "One step, rank by rank",
    "memory_timeline": "Allocated memory by role",
    "memory_boxes": "Peaks of one step",
    "memory_parts": "Where the device's memory is",
    "memory_over_steps": "Peak of each phase over the run",
    "memory_by_phase": "Largest peak of each phase",
    "memory_by_tokens": "Peak against tokens",
    "balance_heat": "Tokens by rank and micro-batch",
    "balance_bars": "Tokens of each rank",
    "balance_over_steps": "Imbalance over steps",
    "balance_fullest": "Fullest micro-batch of each rank",
    "balance_stragglers": "Which rank is the fullest",
    "padding_time": "Time on padding (an estimate)",
    "padding_over_steps": "Padding by cause",
    "padding_by_field": "Padding by field",
    "calls": "What happened to the batches",
    "metrics": "Metrics",
    "reductions": "What went in, what came out",
    "events": "Events",
}
