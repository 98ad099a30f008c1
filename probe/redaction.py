"""Secrets of a configuration, left out wherever it goes: ``run.json``, notes, and the parameters of every backend.

Only texts are looked at, never numbers, booleans or None. A text is left out where the last words of its name are those
of a secret (:data:`NAMES`), where it is one by its form (:data:`FORMS`: what providers' keys begin with), and, in part,
where it is a URL that carries one. A name that holds one is told without it. An empty text and a reference such as
``${oc.env:HF_TOKEN}`` are none.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from probe.errors import InputTypeError

#: What stands in the place of a secret.
REDACTED: Final = "[redacted]"

#: The last words of a name whose texts are secrets. "token" alone is none: ``eos_token`` is a word of a tokenizer.
NAMES: Final = frozenset(
    {
        "api_key",
        "apikey",
        "access_key",
        "secret_key",
        "private_key",
        "account_key",
        "secret",
        "password",
        "passwd",
        "passphrase",
        "authorization",
        "credential",
        "credentials",
    }
)

_PROVIDERS: Final = """
access anthropic api app auth aws azure bearer bitbucket clearml client cohere comet csrf databricks deploy dingtalk
discord docker face feishu gcp gh git github gitlab google groq hf hub huggingface jwt lark login mistral mlflow modal
modelscope neptune npm nvidia oauth openai openrouter pypi read refresh registry replicate runpod sas secret security
service session slack swanlab telegram together tracking trackio vault wandb write
"""
#: What stands before "token" in the name of one that opens something.
PROVIDERS: Final = frozenset(_PROVIDERS.split())

#: Last words of names of several, which are secrets where the name of one is.
_SEVERAL: Final = frozenset({"apikeys", "keys", "passphrases", "passwords", "passwds", "secrets", "tokens"})

#: Texts that are secrets whatever they are called. The words of the field that begin alike ("hf_model", "sk-learn")
#: are shorter, or have neither capitals nor digits.
FORMS: Final = tuple(
    re.compile(rf"(?<![A-Za-z0-9_-]){form}")
    for form in (
        r"hf_(?:[A-Za-z]{16,}[A-Za-z0-9]*|(?=[A-Za-z]*[0-9A-Z])[A-Za-z0-9]{8,})",
        r"sk-(?:[A-Za-z0-9_-]{20,}|(?=[A-Za-z_-]*[0-9A-Z])[A-Za-z0-9_-]{8,})",
        r"(?:gh[pousr]_|github_pat_|glpat-|gsk_|npm_|pypi-|xox[abeoprs]-|r8_|wandb_v1_|nvapi-)[A-Za-z0-9_-]{8,}",
        r"(?:AKIA|ASIA)[A-Z0-9]{12,}",
        r"AIza[A-Za-z0-9_-]{30,}",
        r"dapi[0-9a-f]{32}",
        r"ya29\.[A-Za-z0-9_.-]{16,}",
        r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",
        r"(?:Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{8,}",
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*)",
    )
)

#: User and password, which may hold an "@". What follows a host's ":" is a port; anything else there is a password,
#: also where nobody escaped its "/". A URL that became a path has lost a "/".
_USER: Final = re.compile(
    r"(?:(?<=://)(?:[^/\s?#]+|[^/\s?#@:\[]+:(?!\d*[/?#])[^\s@]+)|(?<=[a-z]:/)[^/\s?#@:]+:[^/\s?#]+)(?=@)"
)
_QUESTION: Final = re.compile(r"(?<=[?&])([A-Za-z0-9_.-]+)=([^&\s#]+)")
_SIGNED: Final = frozenset({"sig", "signature", "x_amz_signature", "x_amz_security_token", "x_goog_signature"})
_ASSIGNED: Final = re.compile(r"([-+~]*[A-Za-z_][\w.@/-]*)=(.+)", re.DOTALL)
#: How objects and JSON show a text beside its name: ``api_key='…'``, ``"api_key": "…"``, also inside another text.
_QUOTED: Final = re.compile(r"""([A-Za-z_][\w-]*)(\\*["']?\s*[=:]\s*)(\\*["'])(.*?)\3""")
#: How a command line or a text has one: ``--hf_token=…``, ``--api-key …``, ``export HF_TOKEN=…``, ``password: …``.
_INSIDE: Final = re.compile(
    r"""(?<![^\s(,;'"])(?:([-+~]*[A-Za-z_][\w.@/-]*)(\s*=(?!=)\s*|\s*:\s+)|(--[A-Za-z][\w.-]*)(\s+)(?!-))([^\s'"]+)"""
)
#: An option of a command line, or a name: whose value may be the next text of its list.
_NAME: Final = re.compile(r"-{0,2}[A-Za-z][\w.-]*")
#: How a list of variables calls one: ``{"name": "HF_TOKEN", "value": "…"}``.
_NAMED_BY: Final = ("name", "key")
_REFERENCE: Final = re.compile(r"\$\{[^}]*\}|\$[A-Z_][A-Z0-9_]*|<[^<>'\":=]*>")
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_DEEPEST: Final = 100


@dataclass(frozen=True)
class Redaction:
    """Which texts of a configuration are left out.

    Args:
        names: More names, beside :data:`NAMES`: a text is a secret where its name is one of these or ends with it,
            word by word. They are told in snake_case, and hold for camelCase and kebab-case too.
        keep: Names that are none, whatever the lists say; also for texts that are secrets by their form.
    """

    names: frozenset[str] = frozenset()
    keep: frozenset[str] = frozenset()

    def __call__(self, config: Any) -> Any:
        """``config``, made of dicts, lists and scalars, without its secrets. It stays as it is; what is returned shares
        nothing with it that could be changed.

        >>> Redaction()({"hf_token": "abc", "eos_token": "</s>", "url": "https://me:pw@host/x", "max_token_len": 512})
        {'hf_token': '[redacted]', 'eos_token': '</s>', 'url': 'https://[redacted]@host/x', 'max_token_len': 512}
        """
        return self._of(config, "", False, 0)

    def _of(self, value: Any, name: str, secret: bool, depth: int) -> Any:
        if isinstance(value, str):
            return self._of_text(value, secret, kept=_snake(name) in self.keep)
        if depth >= _DEEPEST:
            return value
        if isinstance(value, Mapping):
            found: dict[Any, Any] = {}
            named = any(self._is_name_of_one(value.get(one)) for one in _NAMED_BY)
            for key, one in value.items():
                inside = self._is_secret(str(key), secret) or (named and key == "value")
                found[self._of_key(key, found)] = self._of(one, str(key), inside, depth + 1)
            return found
        if isinstance(value, list | tuple):
            several = [
                self._of(one, name, secret or self._is_named(value, place), depth + 1)
                for place, one in enumerate(value)
            ]
            return several if isinstance(value, list) else tuple(several)
        return value

    def _is_named(self, values: Sequence[Any], place: int) -> bool:
        """Whether the text before names a secret: an option before its argument, or the name in a pair."""
        before, one = (values[place - 1], values[place]) if place else (None, None)
        if not isinstance(before, str) or not self._is_name_of_one(before):
            return False
        is_option = isinstance(one, str) and one.startswith("--")
        return not is_option and (len(values) == 2 or before.startswith("-"))

    def _is_name_of_one(self, text: Any) -> bool:
        return isinstance(text, str) and _NAME.fullmatch(text) is not None and self._is_secret(text, False)

    def _of_key(self, key: Any, beside: Mapping[Any, Any]) -> Any:
        """A name, as that of a host or of a token's owner may be: without what is a secret in it, and no other's."""
        if not isinstance(key, str):
            return key
        told = self._of_text(key, False, kept=_snake(key) in self.keep)
        if told == key:
            return key
        same = (told if number == 1 else f"{told} {number}" for number in itertools.count(1))
        return next(one for one in same if one not in beside)

    def _is_secret(self, name: str, around: bool) -> bool:
        """Whether texts of that name are secrets: all that is in ``credentials`` is, and so are those of several."""
        words = _snake(name).split("_")
        if "_".join(words) in self.keep:
            return False
        if len(words) > 1 and words[-1].isdigit():
            words = words[:-1]  # one of several
        return around or self._names_one(words) or (words[-1] in _SEVERAL and self._names_one(_of_one(words)))

    def _names_one(self, words: list[str]) -> bool:
        ends = {"_".join(words[begin:]) for begin in range(len(words))}
        opens = len(words) > 1 and words[-1] == "token" and words[-2] in PROVIDERS
        return opens or not ends.isdisjoint(NAMES | self.names)

    def _of_text(self, text: str, secret: bool, *, kept: bool) -> str:
        if kept or not text or (_REFERENCE.fullmatch(text) and not any(form.search(text) for form in FORMS)):
            return text
        if secret:
            return REDACTED
        assigned = _ASSIGNED.fullmatch(text)  # as an override on a command line
        if assigned and self._is_secret(re.split(r"[./]", assigned[1])[-1], False):
            return f"{assigned[1]}={REDACTED}"
        text = _QUOTED.sub(self._of_quoted, text)
        for form in FORMS:
            text = form.sub(REDACTED, text)
        text = self._of_line(text)
        return self.of_urls(text)

    def of_urls(self, text: str) -> str:
        """A text, its URLs without users, passwords, keys and signatures."""
        return _QUESTION.sub(self._of_question, _USER.sub(REDACTED, text)) if ":/" in text else text

    def _of_quoted(self, found: re.Match[str]) -> str:
        secret = self._is_secret(found[1], False) and found[4]
        return f"{found[1]}{found[2]}{found[3]}{REDACTED}{found[3]}" if secret else found[0]

    def _of_line(self, text: str) -> str:
        """A text in which names stand before their values; a value may have such pairs inside."""
        told, place = [], 0
        while found := _INSIDE.search(text, place):
            name, value = found[1] or found[3], found[5]
            secret = self._is_secret(re.split(r"[./]", name)[-1], False) and not _REFERENCE.fullmatch(value)
            told.append(text[place : found.start(5)] + (REDACTED if secret else ""))
            place = found.end(5) if secret else found.start(5)
        return "".join([*told, text[place:]])

    def _of_question(self, found: re.Match[str]) -> str:
        name = _snake(found[1])
        secret = name in _SIGNED or name == "token" or self._is_secret(name, False)
        return f"{found[1]}={REDACTED}" if secret else found[0]


#: What the argument ``redact`` may be: whether secrets are left out, more names of secrets, or a rule of one's own.
Redact: TypeAlias = "bool | Iterable[str] | Redaction"


def redaction(redact: Redact) -> Redaction | None:
    """The rule that an argument ``redact`` asks for; None leaves nothing out.

    Raises:
        InputTypeError: It is none of these.

    >>> redaction(True), redaction(False), redaction(["licence"]).names
    (Redaction(names=frozenset(), keep=frozenset()), None, frozenset({'licence'}))
    """
    if isinstance(redact, bool):
        return Redaction() if redact else None
    if isinstance(redact, Redaction):
        return Redaction(frozenset(map(_snake, redact.names)), frozenset(map(_snake, redact.keep)))
    if isinstance(redact, str) or not isinstance(redact, Iterable):
        raise InputTypeError(f"redact: got {redact!r}, expected True, False, a list of names, or a Redaction")
    names = list(redact)
    if not all(isinstance(one, str) and one for one in names):
        raise InputTypeError(f"redact: got {names!r}, expected names of secrets, such as ['licence_key']")
    return Redaction(frozenset(map(_snake, names)))


def without_secrets(config: Any, redact: Redact) -> Any:
    """``config``, made of dicts, lists and scalars, as ``redact`` asks for it.

    Raises:
        InputTypeError: ``redact`` can't be used.
    """
    rule = redaction(redact)
    return config if rule is None else rule(config)


def without_logins(text: str) -> str:
    """A text for a message or a log, its URLs without users, passwords, keys and signatures.

    >>> without_logins("nothing is at https://me:pw@host/data?version=2&sig=ab3")
    'nothing is at https://[redacted]@host/data?version=2&sig=[redacted]'
    """
    return Redaction().of_urls(text)


def _of_one(words: list[str]) -> list[str]:
    return [*words[:-1], words[-1].removesuffix("s")]


def _snake(name: str) -> str:
    """
    >>> _snake("WANDB_API_KEY"), _snake("hfToken"), _snake("x-api-key"), _snake("trainer.hub_token")
    ('wandb_api_key', 'hf_token', 'x_api_key', 'trainer_hub_token')
    """
    return "_".join(word.lower() for word in _WORD.findall(name))
