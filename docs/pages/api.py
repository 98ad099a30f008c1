"""The API pages: every public name on the page of its module, and an index of the front door."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any, Final, NamedTuple

import probe
from pages.markdown import first_line, markdown


class Group(NamedTuple):
    """Modules whose names stand on one page; after a colon, only those names of the module."""

    place: str
    title: str
    modules: tuple[str, ...]


_MAGIC: Final = "load_ipython_extension,unload_ipython_extension"
_MEDIA: Final = "Histogram,Table,Text,Figure,Image"

#: Classes that show what they inherit, too: who uses one sees it as one class.
WITH_INHERITED: Final = frozenset({"probe.opened.Run", "probe.core.protocol.DataProto"})

#: Those of them that show methods alone, class by class. The others' members are shown in the order of their lines.
CLASS_BY_CLASS: Final = frozenset({"probe.core.protocol.DataProto"})

#: Modules of the front door's names must all be here; a test compares.
GROUPS: Final = (
    Group("session", "Recording", ("probe.session", "probe.notebook.training")),
    Group("hooks", "Hooks and scopes", ("probe.hooks",)),
    Group(
        "run",
        "Reading a run",
        (
            "probe.opened",
            "probe.runs.finding:find_run",
            "probe.runs.compaction:compact,Compaction",
            "probe.analysis.verdict:findings,Finding,Findings,Where,Since,Cost,Change",
            "probe.analysis.post_mortem:post_mortem,PostMortem,Event,Standing,DeviceMemory,PhaseMemory,Column,LastRow",
            "probe.analysis.what_if.answering:what_if,WhatIf",
            "probe.analysis.what_if.settings:Settings",
            "probe.analysis.what_if.recorded:replayed,replayed_dealings",
            "probe.analysis.advice.advice:advise,Advice,Suggestion",
            "probe.analysis.advice.promises:promises",
            "probe.analysis.memory_model:memory_models,MemoryModel,risk_of,room_over_steps,rooms,Room",
            "probe.analysis.time_model:time_models,TimeModel",
            "probe.views.report.report",
            "probe.dashboards:dashboards,dashboard,panel,Dashboard,Panel,Chart,About",
        ),
    ),
    Group(
        "notebook",
        "In a notebook",
        ("probe.views.panel.panel:Panel", "probe.inspection.inspector", f"probe.notebook.magic:{_MAGIC}"),
    ),
    Group("tracking", "Tracking", ("probe.tracking.tracking", f"probe.tracking.media:{_MEDIA}")),
    Group("protocol", "DataProto", ("probe.core.protocol",)),
    Group("batched_data_dict", "BatchedDataDict and packing", ("probe.core.batched_data_dict", "probe.core.packing")),
    Group("codec", "The jagged codec", ("probe.core.codec",)),
    Group("seqlen_balancing", "Sequence balancing", ("probe.core.seqlen_balancing", "probe.core.micro_batch")),
    Group("metric", "Metrics", ("probe.core.metric",)),
    Group("torch_functional", "Torch functionals", ("probe.core.torch_functional",)),
    Group("parallel", "Ulysses and FSDP", ("probe.core.ulysses", "probe.core.fsdp")),
    Group("checkpoint", "Checkpoints", ("probe.core.checkpoint",)),
    Group("data", "Data and files", ("probe.core.rl_dataset", "probe.core.fs")),
    Group("logging", "Timers and memory logs", ("probe.core.timing", "probe.core.memory_logger")),
    Group(
        "comparison",
        "Comparing batches and runs",
        (
            "probe.comparing",
            "probe.inspection.comparison:Comparison,Difference",
            "probe.analysis.run_comparison",
            "probe.analysis.difference.parts:CAUSES,Difference,Part,Waterfall",
            "probe.analysis.limits",
            "probe.analysis.noise:Change,Verdict",
        ),
    ),
    Group("records", "Row types", ("probe.records",)),
    Group("recorders", "Recorders", ("probe.recorders.recorder", "probe.devices")),
    Group("errors", "Errors", ("probe.errors",)),
    Group("testing", "Fakes for tests", ("probe.testing",)),
)


def pages() -> dict[str, str]:
    """Every page of this section, by its place in the site; the order is that of the navigation."""
    seen: set[str] = set()
    made = {"api/index.md": _index()}
    for group in groups():
        made[f"api/{group.place}.md"] = _page(group, seen)
    return made


def groups() -> tuple[Group, ...]:
    """The groups, and one more for front-door modules that none of them has yet."""
    listed = {_module_of(path) for group in GROUPS for path in group.modules}
    rest = sorted({path.partition(":")[0] for path in probe.EXPORTS.values()} - listed)
    return (*GROUPS, Group("more", "More", tuple(rest))) if rest else GROUPS


def navigation() -> list[dict[str, str]]:
    """Titles and places."""
    return [{group.title: f"api/{group.place}.md"} for group in groups()]


def place_of(path: str) -> str:
    """The page of the module that a front-door name lives in, relative to the index."""
    module = _module_of(path)
    return next(f"{group.place}.md" for group in groups() if module in map(_module_of, group.modules))


def _module_of(path: str) -> str:
    return path.partition(":")[0]


def public(module: Any) -> list[tuple[str, Any]]:
    """Functions and classes that a module offers: those of ``__all__``, else those that it defines."""
    names = getattr(module, "__all__", None)
    if names is None:
        names = [name for name, one in vars(module).items() if getattr(one, "__module__", None) == module.__name__]
    found = [(name, getattr(module, name)) for name in names if not name.startswith("_")]
    return [
        (name, one)
        for name, one in found
        if (inspect.isclass(one) or callable(one)) and str(getattr(one, "__module__", "")).startswith("probe.")
        if hasattr(one, "__qualname__")  # a function, a cached one included; no instance
    ]


def _index() -> str:
    lines = [
        "# API",
        "",
        "The names of the front door: `probe.<name>`. They load on first use, so that `import probe` brings neither",
        "torch nor plotly. Each module has a page with the rest of what it offers.",
        "",
        "| name | |",
        "|---|---|",
    ]
    for name, path in probe.EXPORTS.items():
        one = getattr(probe, name)
        anchor = f"{one.__module__}.{one.__qualname__}"
        lines.append(f"| [`probe.{name}`]({place_of(path)}#{anchor}) | {first_line(one).replace('|', chr(92) + '|')} |")
    return "\n".join([*lines, ""])


def _page(group: Group, seen: set[str]) -> str:
    text = [f"# {group.title}\n"]
    for path in group.modules:
        name, _, only = path.partition(":")
        module = import_module(name)
        text.append(f"## `{name}`\n\n{markdown(module.__doc__ or '')}\n")
        wanted = [pair for pair in public(module) if not only or pair[0] in only.split(",")]
        for _, one in wanted:
            anchor = f"{one.__module__}.{one.__qualname__}"
            if anchor not in seen:
                seen.add(anchor)
                options = ["heading_level: 3"]
                if anchor in WITH_INHERITED:
                    options += ["inherited_members: true", "show_bases: false"]
                if anchor in CLASS_BY_CLASS:
                    options.append(f"members: [{', '.join(_methods(one))}]")
                text.append("\n      ".join([f"::: {anchor}\n    options:", *options]) + "\n")
    return "\n".join(text)


def _methods(one: type) -> list[str]:
    """The public methods of a class, its own first, then those of each class that it derives from."""
    every = dict.fromkeys(name for kind in one.__mro__ for name in vars(kind) if not name.startswith("_"))
    return [name for name in every if callable(getattr(one, name))]
