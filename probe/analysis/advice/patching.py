"""Changed values in the text of a configuration file, everything else left as it stands: comments, order, layout."""

from __future__ import annotations

import ast
import difflib
import json
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final, cast

from probe.errors import InputError


def patch(path: str, text: str, values: Mapping[str, Any]) -> str:
    """A unified diff of a file under which ``values`` are set.

    Args:
        path: Of the file: ``.yaml`` and ``.yml`` are read as YAML, ``.py`` as Python whose calls and assignments name
            the settings, anything else as text with overrides of Hydra's, ``key=value``.
        text: What is in it.
        values: By dotted key.

    Returns:
        What ``patch -p1`` and ``git apply`` understand; "" where nothing changes.

    Raises:
        InputError: The file can't be read so, or a key has no place in it.
    """
    changed = edited(path, text, values)
    before, after = text.splitlines(keepends=True), changed.splitlines(keepends=True)
    name = path.lstrip("/")
    made: list[str] = []
    for line in difflib.unified_diff(before, after, f"a/{name}", f"b/{name}"):
        made.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(made)


def edited(path: str, text: str, values: Mapping[str, Any]) -> str:
    """The text of a file with ``values`` set; see :func:`patch`, which says more.

    Args:
        path: Of the file; its ending says what it is.
        text: What is in it.
        values: By dotted key.

    Raises:
        InputError: The file can't be read so, or a key has no place in it.

    >>> edited("a.yaml", "actor:\\n  cap: 5  # tokens\\n", {"actor.cap": 7})
    'actor:\\n  cap: 7  # tokens\\n'
    """
    ending = PurePath(path).suffix.lower()
    if ending in (".yaml", ".yml"):
        for key, value in values.items():
            text = _in_yaml(path, text, key, value)
        return text
    if ending == ".py":
        for key, value in values.items():
            text = _in_python(path, text, key, value)
        return text
    for key, value in values.items():
        text = _in_overrides(path, text, key, value)
    return text


def overrides(values: Mapping[str, Any]) -> list[str]:
    """The same for Hydra's command line.

    Args:
        values: By dotted key.

    >>> overrides({"trainer.balance_batch": True})
    ['trainer.balance_batch=true']
    """
    return [f"{key}={_yaml_value(value)}" for key, value in values.items()]


def _yaml_value(value: Any) -> str:
    return json.dumps(value)


# ------------------------------------------------------------------------------------------------------------ YAML


def _in_yaml(path: str, text: str, key: str, value: Any) -> str:
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise InputError(f"config: {path} isn't one YAML document: {error}") from error
    if not isinstance(root, yaml.MappingNode):
        raise InputError(f"config: {path} has no mapping (key: value) at its top level, expected a YAML mapping")
    found, rest, inner = _place(root, key)
    if rest:
        made = _inserted(path, text, inner, rest, value)
    else:
        begin, end = found.start_mark.index, found.end_mark.index
        anchor = re.search(r"\*\s*[\w-]+$", text[:end]) if text[begin : begin + 1] == "&" else None
        if anchor or not isinstance(found, yaml.ScalarNode) or text[begin:end].startswith(("&", "*", "|", ">")):
            raise InputError(f"config: {key} in {path} isn't a plain value; change it by hand to {_yaml_value(value)}")
        made = text[:begin] + _yaml_value(value) + text[end:]
    _check_yaml(path, text, made, key, value)
    return made


def _place(node: Any, key: str) -> tuple[Any, list[str], Any]:
    """The node of a dotted key; where it isn't there, the parts that are lacking, and the mapping that lacks them."""
    import yaml

    for own, value in node.value:  # a key that has dots of its own
        if own.value == key:
            return value, [], node
    parts = key.split(".")
    for at, part in enumerate(parts):
        if not isinstance(node, yaml.MappingNode):
            raise InputError(f"config: {'.'.join(parts[:at])} isn't a mapping, so {key} can't be set; set it by hand")
        inside = [value for own, value in node.value if own.value == part]
        if not inside:
            return None, parts[at:], node
        inner, node = node, inside[-1]
    return node, [], inner


def _inserted(path: str, text: str, mapping: Any, parts: list[str], value: Any) -> str:
    """The text with new lines before the first key of a mapping in block style, as far in as that is."""
    if mapping.flow_style or not mapping.value:
        raise InputError(f"config: {'.'.join(parts)} isn't in {path}; add it by hand with {_yaml_value(value)}")
    first = mapping.value[0][0].start_mark
    line = text.rfind("\n", 0, first.index) + 1
    if text[line : first.index].strip():
        raise InputError(f"config: {'.'.join(parts)} isn't in {path}; add it by hand with {_yaml_value(value)}")
    lines = [f"{' ' * (first.column + 2 * at)}{part}:" for at, part in enumerate(parts)]
    added = "\n".join(lines) + f" {_yaml_value(value)}\n"
    return text[:line] + added + text[line:]


def _check_yaml(path: str, before: str, after: str, key: str, value: Any) -> None:
    """Raise where anything but the value has changed."""
    import yaml

    try:
        old, new = (yaml.safe_load(one) for one in (before, after))
    except yaml.YAMLError as error:
        raise InputError(
            f"config: {path} uses YAML that can't be changed safely; set {key} by hand: {error}"
        ) from error
    where = old
    parts = [key] if key in old else key.split(".")
    for part in parts[:-1]:
        where = where.setdefault(part, {})
    where[parts[-1]] = value
    if old != new:
        raise InputError(
            f"config: a new {key} in {path} would change other values too; set it by hand to {_yaml_value(value)}"
        )


# ---------------------------------------------------------------------------------------------------------- Python

#: probe's own functions that cut micro-batches, and those of their arguments that have a default: advice adds them.
_CUTTERS: Final = ("rearrange_micro_batches", "prepare_dynamic_batch", "micro_batches")
_ARGUMENTS: Final = ("balance", "strict")


def _in_python(path: str, text: str, key: str, value: Any) -> str:
    """The literal that a keyword argument, an entry of a dict or an assignment of that name has."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise InputError(f"config: {path} isn't Python: {error}") from error
    name = key.rpartition(".")[2]
    found: list[ast.expr] = []
    calls = [one for one in ast.walk(tree) if isinstance(one, ast.Call) and _called(one) in _CUTTERS]
    if name in _ARGUMENTS and calls:  # of other calls an argument of that name is something else
        found = [one.value for call in calls for one in call.keywords if one.arg == name]
        if not found and len(calls) == 1:
            return _with_argument(path, text, calls[0], name, value)
    for node in () if name in _ARGUMENTS and calls else ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg in (key, name):
            found.append(node.value)
        elif isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            found += [one for own, one in pairs if isinstance(own, ast.Constant) and own.value in (key, name)]
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found += [node.value for one in targets if isinstance(one, ast.Name) and one.id == name]
    if len(found) != 1 or not isinstance(found[0], ast.Constant):
        what = "isn't" if not found else "appears more than once" if len(found) > 1 else "isn't a plain value"
        raise InputError(f"config: {name} {what} in {path}; set it by hand to {value!r}")
    begin, end = _bytes_of(text, found[0])
    raw = text.encode()
    return (raw[:begin] + repr(value).encode() + raw[end:]).decode()


def _called(call: ast.Call) -> str:
    """The last name of what is called."""
    named = call.func
    return named.attr if isinstance(named, ast.Attribute) else named.id if isinstance(named, ast.Name) else ""


def _bytes_of(text: str, node: ast.expr | ast.keyword) -> tuple[int, int]:
    """Where a node begins and ends, in bytes of UTF-8."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    begin = starts[node.lineno - 1] + node.col_offset
    return begin, starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)


def _with_argument(path: str, text: str, call: ast.Call, name: str, value: Any) -> str:
    """The text with an argument more in a call, behind the last that it has."""
    alone = cast("ast.Call", ast.parse(f"f({name}={value!r})", mode="eval").body)
    raw, wanted = text.encode(), ast.dump(alone.keywords[0])
    given: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    end = max((_bytes_of(text, one)[1] for one in given), default=-1)
    made = (raw[:end] + f", {name}={value!r}".encode() + raw[end:]).decode() if given else text
    try:
        after = [one for one in ast.walk(ast.parse(made)) if isinstance(one, ast.Call) and _called(one) in _CUTTERS]
    except SyntaxError:
        after = []
    before = [ast.dump(one) for one in given]
    now = [ast.dump(one) for each in after for one in (*each.args, *each.keywords)]
    if sorted(now) != sorted([*before, wanted]):
        raise InputError(f"config: {name} isn't in {path}; add the argument {name}={value!r} by hand")
    return made


# ------------------------------------------------------------------------------------------------------- overrides


def _in_overrides(path: str, text: str, key: str, value: Any) -> str:
    pattern = re.compile(rf"(?<![\w.])(\+{{0,2}}{re.escape(key)}=)(\"[^\"\n]*\"|'[^'\n]*'|[^\s\\\"';#]+)")
    found = pattern.findall(text)
    if len(found) != 1:
        what = "isn't" if not found else "appears more than once"
        raise InputError(f"config: {key} {what} in {path}; add the override {overrides({key: value})[0]}")
    return pattern.sub(lambda match: match[1] + _yaml_value(value), text)
