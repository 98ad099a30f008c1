"""Can tools read the docstrings? ``make lint`` runs this; it prints what they can't read, and fails if there is any.

griffe, which editors and mkdocstrings build on, reads every docstring of ``probe`` and ``probe_rl``:

* without a warning;
* an Args section documents the signature's parameters, all of them and nothing else, in their order;
* an Attributes section documents attributes that are there;
* a Raises section has one exception an entry, by a name that leads to an exception's class;
* on the API pages (``docs/pages/api.py``), what takes two arguments or more has an Args section, and every docstring
  begins with a sentence.

No name is excepted.
"""

from __future__ import annotations

import builtins
import logging
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import griffe
import yaml

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(Path(__file__).resolve().parent))

from pages import api  # noqa: E402  (the line above lets it be found)

_ENDS: Final = (".", "?", "…", ":")


class _Heard(logging.Handler):
    """Keeps what griffe says."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def problems(package: str = "probe", path: Path = ROOT) -> list[str]:
    """What is wrong with the docstrings of ``package`` in the directory ``path``, a line for each."""
    root = _loaded(package, path)
    found: list[str] = []
    for one in documented(root):
        found += _of_docstring(one)
    for one in shown(root):
        found += _of_shown(one)
    return found


def _loaded(package: str, path: Path) -> griffe.Module:
    root = griffe.GriffeLoader(search_paths=[path]).load(package, try_relative_path=False)
    assert isinstance(root, griffe.Module)
    return root


def documented(place: griffe.Object) -> Iterator[griffe.Object]:
    """Everything that has a docstring, ``place`` itself first."""
    if place.docstring is not None:
        yield place
    for one in place.members.values():
        if isinstance(one, griffe.Object):  # else an alias: it is met where it is defined
            yield from documented(one)


def shown(root: griffe.Module) -> Iterator[griffe.Object]:
    """What has a place on the API pages: functions, classes and their public methods."""
    for group in api.groups() if root.name == "probe" else ():
        for path in group.modules:
            name, _, only = path.partition(":")
            module = root[name.partition(".")[2]]
            for one in only.split(",") if only else _public(module):
                yield from _with_methods(module[one])


def _public(module: Any) -> list[str]:
    if module.exports is not None:
        return [str(name) for name in module.exports]
    return [name for name, one in module.members.items() if not name.startswith("_") and not one.is_alias]


def _with_methods(found: Any) -> Iterator[griffe.Object]:
    one = found.final_target if found.is_alias else found
    if one.is_function or one.is_class:
        yield one
    if one.is_class:
        members = one.all_members if one.path in api.WITH_INHERITED else one.members
        yield from (part for name, part in members.items() if part.is_function and not name.startswith("_"))


# --------------------------------------------------------------------------------------------------- any docstring


def _of_docstring(one: griffe.Object) -> Iterator[str]:
    sections, said = read(one)
    yield from said
    for section in sections:
        if section.kind is griffe.DocstringSectionKind.parameters:
            yield from _of_arguments(one, [entry.name for entry in section.value])
        elif section.kind is griffe.DocstringSectionKind.attributes:
            yield from _of_attributes(one, [entry.name for entry in section.value])
        elif section.kind is griffe.DocstringSectionKind.raises:
            yield from _of_raises(one, [str(entry.annotation) for entry in section.value])
        else:
            continue
        yield from (f"{_place(one)}: an entry says nothing" for entry in section.value if not entry.description)


def read(one: griffe.Object) -> tuple[list[Any], list[str]]:
    """The sections that griffe reads in a docstring, by the options of ``mkdocs.yml``, and its warnings."""
    assert one.docstring is not None
    heard, log = _Heard(), logging.getLogger("griffe")
    log.addHandler(heard)
    propagates, log.propagate = log.propagate, False
    try:
        return one.docstring.parse("google", **_OPTIONS), heard.said
    finally:
        log.removeHandler(heard)
        log.propagate = propagates


def _options() -> dict[str, Any]:
    plugins = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["plugins"]
    settings = next(one["mkdocstrings"] for one in plugins if isinstance(one, dict) and "mkdocstrings" in one)
    return dict(settings["handlers"]["python"]["options"]["docstring_options"])


_OPTIONS: Final = _options()


def _of_arguments(one: griffe.Object, named: list[str]) -> Iterator[str]:
    there = parameters(one)
    if named != there:
        yield f"{_place(one)}: Args: got {', '.join(named)}, expected {', '.join(there) or 'no such section'}"


def parameters(one: Any) -> list[str]:
    """The names in a signature, with their stars, without the instance or the class."""
    if not (one.is_function or one.is_class):
        return []
    stars = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}
    method = one.is_class or (one.parent is not None and one.parent.is_class and "staticmethod" not in one.labels)
    there = [stars.get(each.kind, "") + each.name for each in one.parameters]
    return there[1:] if method and there and there[0] in {"self", "cls"} else there


def _of_attributes(one: Any, named: list[str]) -> Iterator[str]:
    for name in named:
        if not one.is_class or not _has(one, name):
            yield f"{_place(one)}: Attributes: there is no {name}"


def _has(one: Any, name: str) -> bool:
    if name in one.all_members:
        return True
    return any(f"self.{name}" in (part.source or "") for part in one.members.values() if part.is_function)


def _of_raises(one: griffe.Object, named: list[str]) -> Iterator[str]:
    for name in named:
        if not _is_exception(one, name):
            yield f"{_place(one)}: Raises: {name} is no class of an exception"
    if len(set(named)) < len(named):
        yield f"{_place(one)}: Raises: an exception has two entries"


def _is_exception(one: griffe.Object, name: str) -> bool:
    """Whether ``name`` leads to an exception: of the language, of ``probe.errors``, or what the module calls so."""
    errors = import_module("probe.errors")
    if not all(part.isidentifier() for part in name.split(".")):
        return False
    found = getattr(builtins, name, None) or getattr(errors, name, None) or _imported(one, name)
    return isinstance(found, type) and issubclass(found, BaseException)


def _imported(one: griffe.Object, name: str) -> Any:
    try:
        place, _, last = one.module.resolve(name).rpartition(".")
    except griffe.NameResolutionError:
        place, _, last = name.rpartition(".")
    try:
        return getattr(import_module(place), last, None) if place else None
    except ImportError:
        return None


# ------------------------------------------------------------------------------------------------ on the API pages


def _of_shown(one: Any) -> Iterator[str]:
    if one.docstring is None:
        return
    summary = one.docstring.value.partition("\n\n")[0].strip()
    if not summary.endswith(_ENDS) or summary[0].islower():
        yield f"{_place(one)}: got {summary!r}, expected it to begin with a sentence"
    made = one.is_class and ("dataclass" in one.labels or "__init__" not in one.members)  # of its fields
    sections = {section.kind for section in read(one)[0]}
    if len(parameters(one)) > 1 and not made and griffe.DocstringSectionKind.parameters not in sections:
        yield f"{_place(one)}: expected an Args section, as it takes {', '.join(parameters(one))}"


def _place(one: griffe.Object) -> str:
    return f"{one.path} ({one.relative_package_filepath}:{one.lineno})"


def main() -> int:
    """Print the problems; the exit status says whether there are any."""
    found = [*problems(), *problems("probe_rl")]
    sys.stdout.write("".join(f"{one}\n" for one in found))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
