"""A stand-in for the kernel: encodes messages as the contract of the live panel says, and makes up runs to send.

The page (stub.html) is the stand-in for the notebook: a stub model with get, on, send, and the real code of the panel.
"""

from __future__ import annotations

import base64
import json
import math
import random
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from probe import dashboards
from probe.dashboards.columns import LIVE as DECLARED
from probe.dashboards.columns import as_data
from probe.dashboards.spec import TABLES
from probe.views.panel import assets
from probe.views.panel.widget import packed

PAGE = Path(__file__).with_name("stub.html")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
GIB = 1024.0**3
NASTY = "<img src=x onerror=globalThis.__hurt=1><script>globalThis.__hurt=2</script>"


# ---- messages

_FORMATS = {"word": ("i4", "i", -1), "i4": ("i4", "i", -1), "u1": ("u1", "B", 0), "f8": ("f8", "d", math.nan)}
_FORMATS["f4"] = ("f4", "f", math.nan)


def _whole(table: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with what every row has: the name of the process that wrote it; and a micro-batch's round."""
    rank = row.get("rank")
    process = {"process": f"rank-{rank:05d}"} if rank is not None and "process" in TABLES[table] else {}
    process |= {"who": f"rank {rank}"} if rank is not None and "who" in TABLES[table] else {}
    return {**process, **({"round": 1} if table == "micro" else {}), **row}


class Encoder:
    """Rows as dicts to messages; keeps all rows, so that a keyframe can be made at any time."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.told = 0
        self.seq = 0
        self.rows: dict[str, list[Mapping[str, Any]]] = {}

    def delta(self, tables: Mapping[str, Iterable[Mapping[str, Any]]], **state: Any) -> dict[str, Any]:
        """A delta with these new rows."""
        heads: list[dict[str, Any]] = []
        buffers: list[bytes] = []
        for name, new in tables.items():
            rows: list[Mapping[str, Any]] = [_whole(name, row) for row in new]
            kept = self.rows.setdefault(name, [])
            heads.append(self._head(name, rows, len(kept), len(buffers)))
            buffers.append(self._columns(name, rows))
            kept.extend(rows)
        return self._message("d", heads, buffers, state, self._new_words())

    def keyframe(self, **state: Any) -> dict[str, Any]:
        """Everything so far."""
        heads: list[dict[str, Any]] = []
        buffers: list[bytes] = []
        for name, rows in self.rows.items():
            heads.append({**self._head(name, rows, 0, len(buffers)), "next": len(rows)})
            buffers.append(self._columns(name, rows))
        self.told = len(self.words)
        return self._message("k", heads, buffers, state, (self.words, 0))

    def state(self, **state: Any) -> dict[str, Any]:
        return self._message("s", [], [], state, ([], self.told))

    def snapshot(self, **state: Any) -> tuple[dict[str, Any], bytes]:
        """The traits ``snapshot_head`` and ``snapshot``."""
        self.seq -= 1
        made = self.keyframe(**state)
        return made["head"], b"".join(base64.b64decode(one) for one in made["buffers"])

    def _message(self, kind: str, heads: Any, buffers: Any, state: Any, words: tuple[list[str], int]) -> dict[str, Any]:
        self.seq += 1
        head = {"v": 1, "t": kind, "seq": self.seq, "words": words[0], "words_from": words[1], "tables": heads}
        steps = [row["step"] for rows in self.rows.values() for row in rows[-1:] if row.get("step", -1) >= 0]
        told: dict[str, Any] = {
            "step": max(steps, default=-1),
            "finished": False,
            "live": True,
            "dropped": 0,
            "errors": [],
        }
        head["state"] = {**told, "cost": {"kernel_ms": 0.4, "bytes": 900}, "updated_at": 0, **state}
        return {"head": head, "buffers": [base64.b64encode(one).decode() for one in buffers]}

    def _new_words(self) -> tuple[list[str], int]:
        new, begin = self.words[self.told :], self.told
        self.told = len(self.words)
        return new, begin

    def _code(self, word: str | None) -> int:
        if not word:
            return -1
        if word not in self.words:
            self.words.append(word)
        return self.words.index(word)

    @staticmethod
    def _head(name: str, rows: list[Any], begin: int, buffer: int) -> dict[str, Any]:
        columns = " ".join(f"{column}:{_FORMATS[kind][0]}" for column, kind in TABLES[name].items())
        return {"name": name, "from": begin, "n": len(rows), "cols": columns, "buffer": buffer}

    def _columns(self, name: str, rows: list[Mapping[str, Any]]) -> bytes:
        made = b""
        for column, kind in TABLES[name].items():
            _, letter, missing = _FORMATS[kind]
            values = [row.get(column) for row in rows]
            if kind == "word":
                values = [self._code(value) for value in values]
            packed = struct.pack(f"<{len(values)}{letter}", *(missing if value is None else value for value in values))
            made += packed + b"\0" * (-len(packed) % 8)
        return made


# ---- a run that could have been

ROLES = {"generate": "rollout", "old_log_prob": "actor", "values": "critic", "update_actor": "actor"}


class Run:
    """Rows of a made-up run: ``step(n)`` gives those of one step, table by table."""

    def __init__(self, *, ranks: int = 4, seed: int = 0, names: Mapping[str, str] | None = None) -> None:
        self.ranks = ranks
        self.random = random.Random(seed)
        self.names = dict(names or {})
        self.now = 0.0
        self.scope = 0

    def step(self, number: int) -> dict[str, list[dict[str, Any]]]:
        self.tables: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
        begin = self.now
        spike = number == 17
        for phase, role in ROLES.items():
            self._phase(number, phase, self._name(role), spike=spike and phase == "update_actor")
        self.now += 0.2
        for rank in range(self.ranks):
            self._span(number, rank, "step", begin, self.now, peak=max(self._peaks(rank)))
        self._metrics(number)
        return {name: rows for name, rows in self.tables.items() if rows}

    def steps(self, first: int, last: int) -> Iterator[dict[str, list[dict[str, Any]]]]:
        for number in range(first, last + 1):
            yield self.step(number)

    def _name(self, word: str) -> str:
        return self.names.get(word, word)

    def _peaks(self, rank: int) -> list[float]:
        return [row["peak"] for row in self.tables["spans"] if row["rank"] == rank]

    def _phase(self, step: int, phase: str, role: str, *, spike: bool) -> None:
        begin, longest = self.now, 0.0
        base = {"generate": 9.0, "old_log_prob": 6.0, "values": 5.2, "update_actor": 7.5}[phase]
        for rank in range(self.ranks):
            at, peak = begin, 0.0
            for micro in range(0 if phase == "generate" else 4):
                at, made = self._micro(
                    step, rank, phase, role, (micro, at, base), spike=spike and rank == 2 and micro == 1
                )
                peak = max(peak, made)
            if phase == "generate":
                at += 1.4 + 0.3 * self.random.random()
                peak = base + 0.4 * self.random.random()
            self._span(step, rank, "phase", begin, at, phase=phase, role=role, peak=peak * GIB)
            self._memory(step, rank, phase, role, (begin, at, peak))
            self._call(step, rank, phase, role, begin, at)
            longest = max(longest, at)
        self.now = longest + 0.05

    def _micro(
        self, step: int, rank: int, phase: str, role: str, at: tuple[int, float, float], *, spike: bool
    ) -> tuple[float, float]:
        micro, begin, base = at
        lengths = [int(120 + 400 * self.random.random() ** 2) for _ in range(8)]
        if spike:
            lengths[3] = 1900
        tokens = sum(lengths) + (160 if rank == 2 else 0)
        cap, width = 3200, max(lengths)
        peak = base + tokens / 1100
        end = begin + 0.12 + tokens / 16000
        row = {
            "step": step,
            "rank": rank,
            "role": role,
            "phase": self._name(phase),
            "batch": step * 10 + list(ROLES).index(phase),
        }
        row |= {"micro_batch": micro, "tokens": tokens, "sequences": 8, "longest": width, "width": width, "cap": cap}
        self.tables["micro"].append(row | {"workload": tokens / 3000, "over": int(tokens > cap)})
        told = {"phase": phase, "role": role, "micro": micro, "tokens": tokens, "batch": row["batch"]}
        self._span(step, rank, "micro_batch", begin, end, peak=peak * GIB, slots=8 * width, **told)
        for cause, part in (("longest_row", width * 8 - sum(lengths)), ("filler_rows", 64 if micro == 3 else 0)):
            self._padding(step, rank, cause, (part, width * 8 if cause == "longest_row" else 0, sum(lengths)))
        return end, peak

    def _padding(self, step: int, rank: int, cause: str, of: tuple[int, int, int]) -> None:
        part, rectangle, valid = of
        for field, size, counted in (("input_ids", 8, 2), ("old_log_probs", 4, 1)):
            key = {"step": step, "rank": rank, "source": "seqlen_balancing.partition", "field": self._name(field)}
            key |= {"cause": cause, "counted": counted}
            rows = self.tables["padding"]
            old = next((row for row in rows if all(row[name] == value for name, value in key.items())), None)
            if old is None:
                old = {**key, "tokens": 0, "bytes": 0, "rectangle": 0, "valid": 0}
                rows.append(old)
            old["tokens"] += part
            old["bytes"] += part * size
            old["rectangle"] += rectangle
            old["valid"] += valid if rectangle else 0

    def _span(self, step: int, rank: int, kind: str, begin: float, end: float, **more: Any) -> None:
        self.scope += 1
        phase, peak = more.get("phase"), more.get("peak", 0.0)
        self.tables["spans"].append(
            {"step": step, "rank": rank, "kind": kind, "name": phase or kind, "role": more.get("role")}
            | {"phase": phase and self._name(phase), "micro_batch": more.get("micro"), "scope": self.scope, "parent": 0}
            | {"begin": begin, "end": end, "peak": peak, "reserved_peak": peak * 1.12, "at_begin": peak * 0.6}
            | {"at_end": peak * 0.62, "tokens": more.get("tokens"), "peak_kind": "exact"}
            | {"level": kind, "maker": int(kind == "micro_batch" or phase == "generate"), "batch": more.get("batch")}
            | {"slots": more.get("slots")}
        )

    def _memory(self, step: int, rank: int, phase: str, role: str, of: tuple[float, float, float]) -> None:
        begin, end, peak = of
        for part in range(5):
            share = (0.62, 0.8, 1.0, 0.9, 0.62)[part]
            allocated = peak * share * GIB
            row = {
                "t": begin + (end - begin) * part / 4,
                "rank": rank,
                "role": role,
                "phase": self._name(phase),
                "step": step,
            }
            row |= {"allocated": allocated, "reserved": peak * 1.12 * GIB, "non_torch": 0.9 * GIB}
            self.tables["memory"].append(row | {"used": (peak * 1.12 + 0.9) * GIB, "total": 16 * GIB})

    def _call(self, step: int, rank: int, phase: str, role: str, begin: float, end: float) -> None:
        row = {
            "t": begin,
            "step": step,
            "rank": rank,
            "role": role,
            "phase": self._name(phase),
            "rows_in": 32,
            "rows_out": 32,
        }
        row |= {"point": "data_proto.union", "name": "union", "duration": (end - begin) / 40, "bytes_in": 2.1e6}
        row |= {"bytes_out": 2.9e6, "added": self._name("old_log_probs"), "error": None}
        self.tables["calls"].append(row)

    def _metrics(self, step: int) -> None:
        reward = 1 - math.exp(-step / 30) + 0.05 * self.random.random()
        values = {
            "reward/mean": reward,
            "actor/entropy": 2.2 * math.exp(-step / 60) + 0.1,
            "actor/grad_norm": 0.4 + 0.2 * self.random.random(),
        }
        ratio = 0.002 + 0.001 * self.random.random()
        own = {"probe/cost/overhead_ms": 900 * ratio, "probe/cost/step_ms": 900.0, "probe/cost/overhead_ratio": ratio}
        for key, value in (values | own).items():
            row = {
                "t": self.now,
                "step": step,
                "rank": 0,
                "key": self._name(key),
                "value": value,
                "own": int(key in own),
            }
            self.tables["scalars"].append(row)
        for key, value in values.items():
            self.tables["reductions"].append(
                {"step": step, "rank": 0, "key": self._name(key), "reducer": "mean", "chosen_by": "name", "count": 16}
                | {"smallest": value * 0.7, "largest": value * 1.3, "nan": 1 if step == 5 else 0, "value": value}
            )
        if step % 20 == 3:
            self.event(step, "backend", "mlflow", "did not answer within 2 s")

    def event(self, step: int, kind: str, where: str, message: str, *, off: int = 0) -> None:
        self.tables["events"].append(
            {
                "t": self.now,
                "step": step,
                "rank": 0,
                "kind": kind,
                "where": self._name(where),
                "message": message,
                "count": 1,
                "off": off,
            }
        )


# ---- the configuration of a panel with all marks

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
                    "warn": "Balancing across ranks pays.",
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
    | {"reduce": "max", "unit": "bytes", "names": {"non_torch": "not torch's", "used": "used on the device"}},
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


def config(key: str, **more: Any) -> dict[str, Any]:
    """The trait ``config``."""
    about = {"shows": "What is drawn.", "read": "How to read it.", "do": "What to do about it."}
    missing = {one.id: one.missing for board in dashboards.dashboards() for one in board.panels}
    panels = {
        id: {"title": TITLES[id], "about": about, "live": live, "missing": missing.get(id, "")}
        for id, live in LIVE.items()
    }
    run = {
        "project": "arithmetic",
        "experiment": "grpo-7b",
        "path": "runs/arithmetic/grpo-7b",
        "world_size": 4,
        "started_at": 0,
    }
    made = {"version": 1, "key": key, "run": run, "views": VIEWS, "panels": panels, "schema": as_data(DECLARED)}
    made |= {"thresholds": {}}
    return (
        made
        | {"hint": 'probe.open("runs/arithmetic/grpo-7b").panel()', "limits": {"rows": 20000, "points": 4000}}
        | more
    )


def opened(page: Any, key: str, *, plotly: bool = False, snapshot: tuple[Any, bytes] = ({}, b""), **more: Any) -> None:
    """Make a model in the page and show one view of it; more views come from ``__host.view()``."""
    page.evaluate(
        "([code, css, traits, buffers]) => __host.open(code, css, traits, buffers)",
        opening(key, plotly=plotly, snapshot=snapshot, **more),
    )


def opening(key: str, *, plotly: bool = False, snapshot: tuple[Any, bytes] = ({}, b""), **more: Any) -> list[Any]:
    """What ``__host.open`` takes."""
    traits = {"config": config(key, **more), "snapshot_head": snapshot[0]}
    buffers = {"snapshot": packed(*snapshot)[1], "plotly_gz": assets.plotly_packed() if plotly else b""}
    encoded = {name: base64.b64encode(value).decode() for name, value in buffers.items()}
    return [assets.script(), assets.styles(), traits, encoded]


def send(page: Any, *messages: Mapping[str, Any]) -> None:
    """Messages from the kernel, as they'd come from it."""
    page.evaluate("(messages) => __host.send(messages)", json.loads(json.dumps(list(messages))))
