"""Secrets in text: well-known shapes of keys and passwords, and how to mask them. Pure.

Few patterns with high precision: what looks like a hash, an id or a picture stays. A text
without one of the needles of a pattern is never given to it, so most texts cost a few
substring searches. Every pattern takes linear time, also on text made to slow it down: it
begins with something literal, cannot begin again inside itself, and never goes back.

What is masked reads `[REDACTED:kind]`. That holds no quote and no backslash, so JSON within
a text stays JSON, and masking twice is the same as once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from ..events import MAX_DEPTH, Json

Redact = Callable[[Json], tuple[Json, int]]
"""Gives back a value without its secrets, and how many there were."""

OPAQUE = frozenset(
    {"signature", "thought_signature", "thoughtSignature", "encrypted_content"}
    | {"encrypted_reasoning", "reasoning_signature"}
)
"""Fields that a provider signed or encrypted: changing them breaks the conversation."""


_HEADER = "authorization: "


@dataclass(frozen=True, slots=True)
class _Shape:
    """One kind of secret. Of a match, the group `secret` is masked, else all of it."""

    kind: str
    needles: tuple[str, ...]
    pattern: re.Pattern[str]
    accepts: Callable[[re.Match[str]], bool] | None = None


def mask(text: str) -> tuple[str, int]:
    """`text` without its secrets, and how many there were."""
    total = 0
    lowered: str | None = None
    if _PEM in text:
        text, total = _mask_pem(text)
    for shape in _SHAPES:
        if any(needle in text for needle in shape.needles):
            text, count = _masked(text, shape)
            total += count
    for shape in _NAMED:
        if lowered is None:
            lowered = text.lower()
        if any(needle in lowered for needle in shape.needles):
            text, count = _masked(text, shape)
            total += count
    return text, total


def mask_json(value: Json) -> tuple[Json, int]:
    """A JSON value without the secrets in its texts, and how many there were.

    What is signed or encrypted, and the bytes of pictures and files, stay as they are. The
    value given is not changed.
    """
    masking = Masking()
    return masking.json(value), masking.count


@dataclass(slots=True)
class Masking:
    """Masks one text after another, and counts; with `on=False` it only passes them on."""

    on: bool = True
    count: int = field(default=0, init=False)

    def text(self, text: str) -> str:
        """One text without its secrets."""
        if not self.on:
            return text
        masked, count = mask(text)
        self.count += count
        return masked

    def json(self, value: Json) -> Json:
        """One value without its secrets."""
        return self._json(value, 0) if self.on else value

    def _json(self, value: Json, depth: int) -> Json:
        if isinstance(value, str):
            return self.text(value)
        if depth > MAX_DEPTH:
            # No event may hold it, so it is refused later.
            return value
        if isinstance(value, dict):
            return self._object(value, depth)
        if isinstance(value, list):
            return [self._json(item, depth + 1) for item in value]
        return value

    def _object(self, value: dict[str, Json], depth: int) -> dict[str, Json]:
        masked: dict[str, Json] = {}
        raw = "media_type" in value or value.get("type") in ("redacted_thinking", "base64")
        for key, item in value.items():
            if key in OPAQUE or (raw and key == "data"):
                masked[key] = item
            elif isinstance(item, str) and key.lower().endswith("authorization"):
                masked[key] = self.text(_HEADER + item)[len(_HEADER) :]
            elif isinstance(item, str) and is_secret_name(key) and _is_secret(item, 6):
                self.count += 1
                masked[key] = _tag("password" if "pass" in key.lower() else "secret")
            else:
                masked[self._key(key, masked)] = self._json(item, depth + 1)
        return masked

    def _key(self, key: str, taken: dict[str, Json]) -> str:
        masked = self.text(key)
        if masked == key:
            return key
        name, number = masked, 2
        while name in taken:
            name, number = f"{masked}#{number}", number + 1
        return name


# --- replacing ---------------------------------------------------------------------------


def _tag(kind: str) -> str:
    return f"[REDACTED:{kind}]"


def _masked(text: str, shape: _Shape) -> tuple[str, int]:
    count = 0

    def replace(match: re.Match[str]) -> str:
        nonlocal count
        if shape.accepts is not None and not shape.accepts(match):
            return match[0]
        count += 1
        if "secret" not in shape.pattern.groupindex:
            return _tag(shape.kind)
        begin, end = match.start("secret") - match.start(), match.end("secret") - match.start()
        return match[0][:begin] + _tag(shape.kind) + match[0][end:]

    return shape.pattern.sub(replace, text), count


_PEM = "PRIVATE KEY"
_MARK = re.compile(r"-----(BEGIN|END) (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----")
_BODY = re.compile(r"(?:[A-Za-z0-9+/=\s]|\\[nrt])*+")
_SHORTEST_PEM, _LONGEST_PEM = 32, 20_000


def _mask_pem(text: str) -> tuple[str, int]:
    """Private keys; one without an end, as `head` prints it, up to where its base64 stops."""
    parts: list[str] = []
    done = count = 0
    marks = list(_MARK.finditer(text))
    for mark, following in zip(marks, [*marks[1:], None], strict=True):
        if mark[1] != "BEGIN":
            continue
        begin = mark.end()
        if following is not None and following[1] == "END":
            body, stop = following.start() - begin, following.end()
        else:
            limit = following.start() if following is not None else len(text)
            found = _BODY.match(text, begin, min(limit, begin + _LONGEST_PEM))
            stop = begin + len(found[0].rstrip()) if found else begin
            body = stop - begin
        # With nothing between its marks it is only spoken of.
        if _SHORTEST_PEM <= body <= _LONGEST_PEM:
            parts += (text[done : mark.start()], _tag("private-key"))
            done = stop
            count += 1
    return "".join((*parts, text[done:])), count


# --- what a secret looks like ------------------------------------------------------------

_PLACEHOLDER = re.compile(
    r"(?i)your|example|placeholder|change[-_]?me|dummy|redacted|x{4}|\*{3}|\.\.\.|"
    r"\A(?:my|the|some|test|new|old)?[-_]?(?:api|access|auth)?[-_]?"
    r"(?:pass|password|passwd|secret|token|key)[-_]?[0-9]{0,2}\Z"
)


def _is_secret(value: str, least: int) -> bool:
    """Whether a value that is called a secret is one, and no variable, word or example."""
    if not least <= len(value) <= 512 or value[0] in "$<{%[(*/." or value.startswith("~/"):
        return False
    if any(sign.isspace() for sign in value) or _PLACEHOLDER.search(value):
        return False
    return _is_mixed(value)


def _is_mixed(value: str) -> bool:
    """Whether it holds a digit and a letter: words and numbers alone are no keys."""
    return any(sign.isdigit() for sign in value) and any(sign.isalpha() for sign in value)


def _mixed_match(match: re.Match[str]) -> bool:
    return _is_mixed(match[0].partition("-")[2])


_NAMES = frozenset(
    {"password", "passwd", "passphrase", "secret", "clientsecret", "apikey", "apisecret"}
    | {"accesstoken", "authtoken", "refreshtoken", "secretkey", "privatekey", "accesskey"}
    | {"secretaccesskey", "awssecretaccesskey", "sessiontoken", "bearertoken", "xapikey"}
    | {"dbpassword", "githubtoken"}
)
_SPOKEN = re.compile(
    r"(?:[A-Z0-9]+_)*(?:API_?KEY|SECRET(?:_KEY)?|PRIVATE_KEY|ACCESS_KEY|ENCRYPTION_KEY|SIGNING_KEY|"
    r"MASTER_KEY|[A-Z0-9]+_KEY|TOKEN|PASSWORD|PASSWD|PASSPHRASE|PASS|PWD|CREDENTIALS?)"
)
_HARMLESS = frozenset(
    {"PUBLIC", "PRIMARY", "FOREIGN", "CACHE", "SORT", "PARTITION", "PUBLISHABLE", "IDEMPOTENCY"}
    | {"LOOKUP", "GROUP", "ROW", "INDEX", "UNIQUE", "NEXT", "PAGE", "HASH", "REGISTRY", "OBJECT"}
)


def is_secret_name(name: str) -> bool:
    """Whether a field or variable of this name holds a secret."""
    if len(name) > 64:
        return False
    plain = name.replace("_", "").replace("-", "").lower()
    if plain in _NAMES:
        return True
    return bool(_SPOKEN.fullmatch(name)) and not _HARMLESS & set(name.split("_"))


_TAIL = re.compile(r"(?<![A-Za-z0-9_-])[A-Za-z0-9_-]++\Z")


def _assigns(match: re.Match[str]) -> bool:
    """Whether the whole name before the sign is a secret's, and the value one."""
    before = _TAIL.search(match.string[max(0, match.start() - 64) : match.start()])
    name = (before[0] if before else "").lstrip("-") + match["name"]
    least = 6 if "pass" in name.lower() or "pwd" in name.lower() else 8
    return is_secret_name(name) and _is_secret(match["secret"], least)


def _is_password(match: re.Match[str]) -> bool:
    value = match["secret"]
    return value[0] not in "$<{%[(*" and not _PLACEHOLDER.search(value)


def _is_credential(match: re.Match[str]) -> bool:
    value = match["secret"]
    sure = _is_mixed(value) or value.endswith("=") or len(value) >= 24
    return sure and not _PLACEHOLDER.search(value)


def _shape(
    kind: str,
    needles: str | tuple[str, ...],
    pattern: str,
    accepts: Callable[[re.Match[str]], bool] | None = None,
) -> _Shape:
    held = (needles,) if isinstance(needles, str) else needles
    return _Shape(kind, held, re.compile(pattern), accepts)


# Not inside a longer word: neither base64 nor a name that only ends like this.
_START = r"(?<![A-Za-z0-9_-])"
_STOP = r"(?![A-Za-z0-9_-])"

_SHAPES = (
    _shape("anthropic-key", "sk-ant-", _START + r"sk-ant-[A-Za-z0-9_-]{20,}+"),
    _shape(
        "openai-key",
        ("sk-proj-", "sk-svcacct-", "sk-admin-", "sk-None-", "sk-or-v1-"),
        _START + r"sk-(?:proj|svcacct|admin|None|or-v1)-[A-Za-z0-9_-]{20,}+",
    ),
    _shape("openai-key", "sk-", _START + r"sk-[A-Za-z0-9]{20,}+" + _STOP, _mixed_match),
    _shape("aws-key-id", ("AKIA", "ASIA"), _START + r"(?:AKIA|ASIA)[A-Z0-9]{16}" + _STOP),
    _shape(
        "github-token",
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"),
        _START + r"gh[pousr]_[A-Za-z0-9]{36,255}+" + _STOP,
    ),
    _shape("github-token", "github_pat_", _START + r"github_pat_[A-Za-z0-9_]{50,255}+"),
    _shape("gitlab-token", "glpat-", _START + r"glpat-[A-Za-z0-9_-]{20,}+"),
    _shape("slack-token", "xox", _START + r"xox[abeoprs]-[A-Za-z0-9-]{10,}+", _mixed_match),
    _shape("slack-token", "xapp-", _START + r"xapp-[0-9]-[A-Za-z0-9-]{20,}+"),
    _shape(
        "slack-webhook",
        "hooks.slack.com/services/",
        r"hooks\.slack\.com/services/(?P<secret>T[A-Z0-9]{5,20}/B[A-Z0-9]{5,20}/[A-Za-z0-9]{16,64})",
    ),
    _shape("google-key", "AIza", _START + r"AIza[A-Za-z0-9_-]{35}" + _STOP),
    _shape("google-secret", "GOCSPX-", _START + r"GOCSPX-[A-Za-z0-9_-]{28}" + _STOP),
    _shape("google-token", "ya29.", _START + r"ya29\.[A-Za-z0-9_-]{30,}+"),
    _shape(
        "stripe-key",
        ("sk_live_", "rk_live_", "sk_test_", "rk_test_"),
        _START + r"[sr]k_(?:live|test)_[A-Za-z0-9]{16,}+",
    ),
    _shape("npm-token", "npm_", _START + r"npm_[A-Za-z0-9]{36}" + _STOP),
    _shape("pypi-token", "pypi-AgE", _START + r"pypi-AgE[A-Za-z0-9_-]{50,}+"),
    _shape("huggingface-token", "hf_", _START + r"hf_[A-Za-z0-9]{34,40}+" + _STOP),
    _shape("digitalocean-token", "dop_v1_", _START + r"dop_v1_[a-f0-9]{64}" + _STOP),
    _shape("sendgrid-key", "SG.", _START + r"SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}" + _STOP),
    _shape("vault-token", "hvs.", _START + r"hvs\.[A-Za-z0-9_-]{24,}+"),
    _shape("age-key", "AGE-SECRET-KEY-1", r"AGE-SECRET-KEY-1[A-Z0-9]{50,60}+"),
    _shape("azure-key", "AccountKey=", r"AccountKey=(?P<secret>[A-Za-z0-9+/]{40,100}+={0,2})"),
    _shape(
        "jwt",
        "eyJ",
        _START + r"eyJ[A-Za-z0-9_-]{10,}+\.eyJ[A-Za-z0-9_-]{10,}+\.[A-Za-z0-9_-]{10,}+",
    ),
    _shape(
        "password-in-url",
        "://",
        r"://[^\s:@/\\\"'`<>]{0,128}+:(?P<secret>[^\s:@/\\\"'`<>]{3,256}+)@(?=[A-Za-z0-9\[$])",
        _is_password,
    ),
)
"""Shapes whose letters are as they are."""

_SIGN = r"(?:\\?[\"'`])?[ \t]{0,4}[=:][ \t]{0,4}(?:\\?[\"'`])?"

_NAMED = (
    _shape(
        "credential",
        ("authorization",),
        r"(?i)\bauthorization" + _SIGN + r"(?:bearer|basic|token)[ \t]{1,4}"
        r"(?P<secret>[A-Za-z0-9._~+/=-]{8,4096}+)",
        _is_credential,
    ),
    _shape(
        "credential",
        ("bearer ",),
        r"(?i)\bbearer (?P<secret>[A-Za-z0-9._~+/=-]{20,4096}+)",
        lambda match: _is_mixed(match["secret"]) and not _PLACEHOLDER.search(match["secret"]),
    ),
    _shape(
        "aws-secret",
        ("secret_access_key", "secretaccesskey", "aws_secret"),
        r"(?i)(?:secret_?access_?key|aws_secret(?:_key)?)"
        + _SIGN
        + r"(?P<secret>[A-Za-z0-9/+]{40})"
        r"(?![A-Za-z0-9/+=])",
    ),
    _shape(
        "secret",
        ("key", "secret", "token", "pass", "pwd", "credential"),
        r"(?i)(?P<name>key|secret|token|password|passwd|passphrase|pass|pwd|credentials?)"
        + _SIGN
        + r"(?P<secret>[A-Za-z0-9_+/!@#%^*~?-]{6,512}+={0,2}+)(?![.(\[=A-Za-z0-9])",
        _assigns,
    ),
)
"""Shapes known by a name, whose needles are sought in lower case."""
