"""Changed values in the text of a configuration file, everything else left as it stands: comments, order, layout."""

from __future__ import annotations

import ast
import difflib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, Final, NamedTuple, cast

from probe.analysis.advice.patching_scripts import with_override
from probe.errors import InputError

#: What Windows' editors put before a text in UTF-8. Neither YAML nor Python has it among its letters.
_MARK: Final = "\ufeff"


class NoPlaceError(InputError):
    """A setting has no place in a file in which it could be changed safely."""

    def __init__(self, name: str, path: str, why: str, setting: str) -> None:
        super().__init__(f"config: {name} {why} in {path}; set it by hand: {setting}")
        self.why = why


class ByHand(NamedTuple):
    """A setting that a patch lacks.

    Attributes:
        key: Dotted.
        value: That it is to have.
        setting: The same as it stands in a file of that kind.
        why: It has no place in the file, or with which other setting it belongs, in words.
    """

    key: str
    value: Any
    setting: str
    why: str


class Patched(NamedTuple):
    """What can be changed in a file, and what can't.

    Attributes:
        patch: As of :func:`patch`; "" where nothing changes.
        by_hand: The settings that it lacks.
    """

    patch: str
    by_hand: tuple[ByHand, ...]


def patch(path: str, text: str, values: Mapping[str, Any]) -> str:
    """A unified diff of a file under which ``values`` are set.

    Args:
        path: Of the file: ``.yaml`` and ``.yml`` are read as YAML, ``.py`` as Python whose calls and assignments name
            the settings, anything else as text with overrides of Hydra's, ``key=value``.
        text: What is in it, its line ends as they are.
        values: By dotted key.

    Returns:
        What ``patch -p1`` and ``git apply`` understand; "" where nothing changes.

    Raises:
        NoPlaceError: A key has no place in it.
        InputError: The file can't be read so.
    """
    return _diff(path, text, edited(path, text, values))


def patched(path: str, text: str, together: Sequence[Mapping[str, Any]]) -> Patched:
    """A unified diff of a file under which those settings are changed that have a place in it.

    Args:
        path: Of the file; its ending says what it is, see :func:`patch`.
        text: What is in it, its line ends as they are.
        together: Settings by dotted key. Those that stand in one of the mappings are changed all or none.

    Raises:
        InputError: The file can't be read so.
    """
    made = edited(path, text, {})
    by_hand: list[ByHand] = []
    for values in together:
        tried, why = made, {}
        for key, value in values.items():
            try:
                tried = edited(path, tried, {key: value})
            except NoPlaceError as error:
                why[key] = f"{error.why} in the file"
        if not why:
            made = tried
            continue
        for key, value in values.items():
            told = why.get(key, f"goes with {', '.join(why)}")
            by_hand.append(ByHand(key, value, _setting(path, key, value), told))
    return Patched(_diff(path, text, made), tuple(by_hand))


def edited(path: str, text: str, values: Mapping[str, Any]) -> str:
    """The text of a file with ``values`` set; see :func:`patch`, which says more.

    Args:
        path: Of the file; its ending says what it is.
        text: What is in it.
        values: By dotted key.

    Raises:
        NoPlaceError: A key has no place in it.
        InputError: The file can't be read so.

    >>> edited("a.yaml", "actor:\\n  cap: 5  # tokens\\n", {"actor.cap": 7})
    'actor:\\n  cap: 7  # tokens\\n'
    """
    mark = _MARK if text.startswith(_MARK) else ""
    made = text.removeprefix(mark)
    kind = _kind(path)
    if kind == "yaml":
        _mapping(path, made)
    elif kind == "python":
        _tree(path, made)
    change = {"yaml": _in_yaml, "python": _in_python, "overrides": _in_overrides}[kind]
    for key, value in values.items():
        made = change(path, made, key, value)
    return mark + made


def overrides(values: Mapping[str, Any]) -> list[str]:
    """The same for Hydra's command line.

    Args:
        values: By dotted key.

    >>> overrides({"trainer.balance_batch": True})
    ['trainer.balance_batch=true']
    """
    return [f"{key}={_yaml_value(value)}" for key, value in values.items()]


def _kind(path: str) -> str:
    ending = PurePath(path).suffix.lower()
    return "yaml" if ending in (".yaml", ".yml") else "python" if ending == ".py" else "overrides"


def _setting(path: str, key: str, value: Any) -> str:
    """A setting as it stands in a file of that kind."""
    kind = _kind(path)
    if kind == "python":
        return f"{key.rpartition('.')[2]}={value!r}"
    return f"{key}: {_yaml_value(value)}" if kind == "yaml" else overrides({key: value})[0]


def _yaml_value(value: Any) -> str:
    return json.dumps(value)


def _diff(path: str, before: str, after: str) -> str:
    """A unified diff. Only a line feed ends a line: so do those who apply it count."""
    place = Path(path)
    name = (place.resolve() if ".." in place.parts else place).as_posix().lstrip("/")
    old, new = (re.findall(r"[^\n]*\n|[^\n]+", text) for text in (before, after))
    made: list[str] = []
    for line in difflib.unified_diff(old, new, f"a/{name}", f"b/{name}"):
        made.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(made)


def _line_end(text: str) -> str:
    """How the lines of a text end."""
    return "\r\n" if "\r\n" in text else "\n"


# ------------------------------------------------------------------------------------------------------------ YAML


def _mapping(path: str, text: str) -> Any:
    """The mapping at the top of a file."""
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise InputError(f"config: {path} isn't one YAML document: {error}") from error
    if not isinstance(root, yaml.MappingNode):
        raise InputError(f"config: {path} has no mapping (key: value) at its top level, expected a YAML mapping")
    return root


def _in_yaml(path: str, text: str, key: str, value: Any) -> str:
    import yaml

    found, rest, inner = _place(path, _mapping(path, text), key, value)
    if rest:
        made = _inserted(path, text, inner, rest, key, value)
    else:
        begin, end = found.start_mark.index, found.end_mark.index
        anchor = re.search(r"\*\s*[\w-]+$", text[:end]) if text[begin : begin + 1] == "&" else None
        if anchor or not isinstance(found, yaml.ScalarNode) or text[begin:end].startswith(("&", "*", "|", ">")):
            raise _unplaced(path, key, "isn't a plain value", value)
        made = text[:begin] + _yaml_value(value) + text[end:]
    _check_yaml(path, text, made, key, value)
    return made


def _unplaced(path: str, key: str, why: str, value: Any) -> NoPlaceError:
    return NoPlaceError(key, path, why, _setting(path, key, value))


def _place(path: str, node: Any, key: str, value: Any) -> tuple[Any, list[str], Any]:
    """The node of a dotted key; where it isn't there, the parts that are lacking, and the mapping that lacks them."""
    import yaml

    for own, inside in node.value:  # a key that has dots of its own
        if own.value == key:
            return inside, [], node
    parts = key.split(".")
    for at, part in enumerate(parts):
        if not isinstance(node, yaml.MappingNode):
            raise _unplaced(path, key, f"has no place, since {'.'.join(parts[:at])} isn't a mapping", value)
        nodes = [one for own, one in node.value if own.value == part]
        if not nodes:
            return None, parts[at:], node
        inner, node = node, nodes[-1]
    return node, [], inner


def _inserted(path: str, text: str, mapping: Any, parts: list[str], key: str, value: Any) -> str:
    """The text with new lines before the first key of a mapping in block style, as far in as that is."""
    if mapping.flow_style or not mapping.value:
        raise _unplaced(path, key, "isn't", value)
    first = mapping.value[0][0].start_mark
    line = text.rfind("\n", 0, first.index) + 1
    if text[line : first.index].strip():
        raise _unplaced(path, key, "isn't", value)
    lines = [f"{' ' * (first.column + 2 * at)}{part}:" for at, part in enumerate(parts)]
    end = _line_end(text)
    added = end.join(lines) + f" {_yaml_value(value)}{end}"
    return text[:line] + added + text[line:]


def _check_yaml(path: str, before: str, after: str, key: str, value: Any) -> None:
    """Raise where anything but the value has changed."""
    import yaml

    try:
        old, new = (yaml.safe_load(one) for one in (before, after))
    except yaml.YAMLError as error:
        raise _unplaced(path, key, "can't be changed safely", value) from error
    where = old
    parts = [key] if key in old else key.split(".")
    for part in parts[:-1]:
        where = where.setdefault(part, {})
    where[parts[-1]] = value
    if old != new:
        raise _unplaced(path, key, "shares its value with others", value)


# ---------------------------------------------------------------------------------------------------------- Python

#: probe's own functions that cut micro-batches, and those of their arguments that have a default: advice adds them.
_CUTTERS: Final = ("rearrange_micro_batches", "prepare_dynamic_batch", "micro_batches")
_ARGUMENTS: Final = ("balance", "strict")


def _tree(path: str, text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise InputError(f"config: {path} isn't Python: {error}") from error


def _in_python(path: str, text: str, key: str, value: Any) -> str:
    """The literal that a keyword argument, an entry of a dict or an assignment of that name has."""
    tree = _tree(path, text)
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
        raise NoPlaceError(name, path, what, _setting(path, name, value))
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
    for line in re.findall(r"[^\r\n]*(?:\r\n|\r|\n)", text):  # no other letter ends a line of Python's
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
        raise NoPlaceError(name, path, "isn't", _setting(path, name, value))
    return made


# ------------------------------------------------------------------------------------------------------- overrides


def _in_overrides(path: str, text: str, key: str, value: Any) -> str:
    made, why = with_override(text, key, _yaml_value(value))
    if why:
        raise _unplaced(path, key, why, value)
    return made
