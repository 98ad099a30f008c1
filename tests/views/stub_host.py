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
from tests.views import stub_boards as boards

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


def config(key: str, **more: Any) -> dict[str, Any]:
    """The trait ``config``."""
    about = {"shows": "What is drawn.", "read": "How to read it.", "do": "What to do about it."}
    missing = {one.id: one.missing for board in dashboards.dashboards() for one in board.panels}
    panels = {
        id: {"title": boards.TITLES[id], "about": about, "live": live, "missing": missing.get(id, "")}
        for id, live in boards.LIVE.items()
    }
    run = {
        "project": "arithmetic",
        "experiment": "grpo-7b",
        "path": "runs/arithmetic/grpo-7b",
        "world_size": 4,
        "started_at": 0,
    }
    made = {"version": 1, "key": key, "run": run, "views": boards.VIEWS, "panels": panels, "schema": as_data(DECLARED)}
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
