"""What is masked, what is not, and that no text takes long."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import string
import uuid

import pytest

from backtrail.events import Json
from backtrail.formats.secrets import Masking, is_secret_name, mask, mask_json

ALNUM = string.ascii_letters + string.digits
RANDOM = random.Random(7)


def made(length: int, letters: str = ALNUM) -> str:
    """A random text that holds a letter and a digit."""
    return "a1" + "".join(RANDOM.choices(letters, k=length - 2))


PEM = (
    "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0A1B\n\n"
    + "\n".join(made(64) for _ in range(20))
    + "\n-----END RSA PRIVATE KEY-----"
)
JWT = f"eyJhbGciOiJIUzI1NiJ9.eyJ{made(60)}.{made(43)}"

KEYS = {
    "openai-key": [
        f"sk-{made(48)}",
        f"sk-proj-{made(80)}_-x",
        f"sk-or-v1-{made(64, '0123456789abcdef')}",
    ],
    "anthropic-key": [f"sk-ant-api03-{made(90)}-AA"],
    "aws-key-id": ["AKIAQ3EGXYZ2ABCD7EFG", "ASIAQ3EGXYZ2ABCD7EFG"],
    "github-token": [f"{kind}_{made(36)}" for kind in ("ghp", "gho", "ghu", "ghs", "ghr")]
    + [f"github_pat_{made(22)}_{made(59)}"],
    "gitlab-token": [f"glpat-{made(20)}"],
    "slack-token": [f"xoxb-123456789012-{made(24)}", f"xapp-1-{made(40)}"],
    "google-key": [f"AIza{made(35)}"],
    "stripe-key": [f"sk_live_{made(24)}", f"rk_test_{made(24)}"],
    "npm-token": [f"npm_{made(36)}"],
    "pypi-token": [f"pypi-AgEIcHlwaS5vcmc{made(80)}"],
    "huggingface-token": [f"hf_{made(34)}"],
    "sendgrid-key": [f"SG.{made(22)}.{made(43)}"],
    "jwt": [JWT],
    "private-key": [PEM, PEM.replace("\n", "\\n")],
}  # fmt: skip


@pytest.mark.parametrize(("kind", "key"), [(k, key) for k, keys in KEYS.items() for key in keys])
@pytest.mark.parametrize(
    "around",
    [
        *("{}", "use {} please", '{{"key": "{}"}}', "curl -H 'x: {}' host", "({})"),
        *("key,{},next", "\n{}\n"),
    ],
)
def test_keys_are_masked(kind: str, key: str, around: str) -> None:
    """Wherever they stand; the text around them stays."""
    text, count = mask(around.format(key))
    assert text == around.format(f"[REDACTED:{kind}]")
    assert count == 1


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("AWS_SECRET_ACCESS_KEY=" + "aB3/" * 10, "AWS_SECRET_ACCESS_KEY=[REDACTED:aws-secret]"),
        (
            '"SecretAccessKey": "' + "aB3/" * 10 + '"',
            '"SecretAccessKey": "[REDACTED:aws-secret]"',
        ),
        ("postgres://app:s3cr3t@db/x", "postgres://app:[REDACTED:password-in-url]@db/x"),
        ("redis://:p4ss@cache:6379", "redis://:[REDACTED:password-in-url]@cache:6379"),
        ("Authorization: Bearer abcDEF123", "Authorization: Bearer [REDACTED:credential]"),
        ("authorization: basic dXNlcjpwdw==", "authorization: basic [REDACTED:credential]"),
        ("bearer abcdefghij0123456789", "bearer [REDACTED:credential]"),
        ("DB_PASSWORD=hunter22", "DB_PASSWORD=[REDACTED:secret]"),
        ("export API_TOKEN='abc123def456'", "export API_TOKEN='[REDACTED:secret]'"),
        ("DEPLOY_KEY: abc123def456", "DEPLOY_KEY: [REDACTED:secret]"),
        ("password=hunter22", "password=[REDACTED:secret]"),
        ('client_secret = "q8w7e6r5t4"', 'client_secret = "[REDACTED:secret]"'),
        ("mysql --password=hunter22 db", "mysql --password=[REDACTED:secret] db"),
        ("?api_key=abc123def456&page=2", "?api_key=[REDACTED:secret]&page=2"),
        (r"{\"password\": \"hunter22\"}", r"{\"password\": \"[REDACTED:secret]\"}"),
        ("AccountKey=" + "aB3/" * 21 + "==;x", "AccountKey=[REDACTED:azure-key];x"),
    ],
)
def test_values_are_masked_by_their_names(text: str, masked: str) -> None:
    """The name stays, and the sign and the quotes around the value."""
    assert mask(text) == (masked, 1)


def test_several_in_one_text() -> None:
    """Each is counted."""
    key = KEYS["github-token"][0]
    text = f"a {key} b {PEM} c {key} d https://u:pw99@h"
    assert mask(text)[1] == 4
    assert "PRIVATE" not in mask(text)[0]


@pytest.mark.parametrize(
    "text",
    [
        hashlib.sha256(b"x").hexdigest(),
        hashlib.sha1(b"x").hexdigest(),
        hashlib.md5(b"x").hexdigest(),
        f"commit {hashlib.sha1(b'y').hexdigest()} (HEAD -> main)",
        str(uuid.UUID(int=2**127 + 12345)),
        base64.b64encode(RANDOM.randbytes(60_000)).decode(),
        "data:image/png;base64," + base64.b64encode(RANDOM.randbytes(60_000)).decode(),
        "sha512-" + base64.b64encode(RANDOM.randbytes(64)).decode(),
        "task-force-of-many-people risk-averse disk-usage desk-lamp1234567890123456",
        "sk-circle-bounce-animation sk-fading-circle sk-learn",
        "max_tokens=4096 total_tokens: 123456 input_tokens=12",
        "token = get_token2(user)",
        "password: str = Field(min_length=8)",
        "password = request.form['password1']",
        "SECRET_KEY = os.environ['SECRET_KEY2']",
        "api_key=$API_KEY1 password=${DB_PASSWORD_2} token=<your-token-1>",
        "PASSWORD=changeme1 API_KEY=your_api_key_123 TOKEN=xxxxxxxx1 SECRET=example123",
        "PRIMARY_KEY=user_id_12 CACHE_KEY=deps-1a2b3c4d PUBLIC_KEY=abc123def456",
        "SSH_KEY=/home/me/.ssh/id_rsa2 SIGNING_KEY=~/keys/a1b2c3",
        "next_page_token=CAEQ1234567 csrf token: abc",
        "keyboard=qwerty12 monkey=banana123 passenger=smith123",
        "https://example.com:8080/path@2x http://host:80/a@b git@github.com:me/x.git",
        "https://user:password@example.com https://user:$PASS@h https://u:<pw>@h",
        "Authorization: Bearer $TOKEN and Authorization: Bearer YOUR_TOKEN",
        "the bearer authentication-scheme-is-described-there",
        "-----BEGIN PRIVATE KEY----- and -----END PRIVATE KEY----- mark a key",
        "-----BEGIN CERTIFICATE-----\n" + "A" * 64 + "\n-----END CERTIFICATE-----",
        "-----BEGIN PUBLIC KEY-----\n" + "A" * 64 + "\n-----END PUBLIC KEY-----",
        "eyJhbGciOiJIUzI1NiJ9 alone, and eyJhbGciOiJIUzI1NiJ9.not-json.x",
        "xoxo-love-and-kisses hf_transfer npm_config_registry glpat- AKIA",
        "ghp_short AIzaShort pypi-package sk_live_",
        "",
        "naïve façade 日本語 🦀",
    ],
    ids=lambda text: text[:24],
)  # fmt: skip
def test_look_alikes_stay(text: str) -> None:
    """Hashes, ids, pictures, words, code, variables, examples: too eager is a fault too."""
    assert mask(text) == (text, 0)


def test_masking_twice_is_the_same_as_once() -> None:
    """What is masked is no secret."""
    keys = " ".join(key for keys in KEYS.values() for key in keys)
    once, count = mask(f"{keys} password=hunter22 https://u:pw99@h Authorization: Basic abc123==")
    assert count >= 20
    assert mask(once) == (once, 0)


def test_a_key_that_was_cut_off() -> None:
    """`head -3 key.pem` shows enough of it."""
    text = "\n".join(
        PEM.replace("Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0A1B\n\n", "").split("\n")[:4]
    )
    assert mask(f"$ head -4 key\n{text}\n$ ") == ("$ head -4 key\n[REDACTED:private-key]\n$ ", 1)
    spoken_of = "-----BEGIN PRIVATE KEY----- is the mark. Here:\n"
    assert mask(f"{spoken_of}{PEM}\nend") == (f"{spoken_of}[REDACTED:private-key]\nend", 1)


# --- JSON --------------------------------------------------------------------------------


def test_json_within_text_stays_json() -> None:
    """Arguments of a call are JSON in a text; masking them keeps them readable."""
    inner = {"command": f'export API_KEY="{KEYS["openai-key"][0]}" && psql "postgres://a:b99@h"'}
    deeper = json.dumps({"arguments": json.dumps(inner), "pem": PEM})
    masked, count = mask(deeper)
    assert count == 3
    again = json.loads(json.loads(masked)["arguments"])
    assert again == {
        "command": 'export API_KEY="[REDACTED:openai-key]" && '
        'psql "postgres://a:[REDACTED:password-in-url]@h"'
    }


def test_json_values() -> None:
    """Everywhere in it, by shape and by name; nothing else changes, nor what was given."""
    key = KEYS["google-key"][0]
    value = {
        "list": [key, 1, None, True, 1.5, {"deep": f"x {key}"}],
        "password": "hunter22",
        "api_key": "$API_KEY",
        "Authorization": "Bearer abc123def",
        "max_tokens": 4096,
        "password_hint": "the dog",
        "schema": {"password": {"type": "string"}},
        key: "as a name",
    }
    before = json.dumps(value)
    masked, count = mask_json(value)
    assert json.dumps(value) == before
    assert count == 5
    tag = "[REDACTED:google-key]"
    assert masked == {
        "list": [tag, 1, None, True, 1.5, {"deep": f"x {tag}"}],
        "password": "[REDACTED:password]",
        "api_key": "$API_KEY",
        "Authorization": "Bearer [REDACTED:credential]",
        "max_tokens": 4096,
        "password_hint": "the dog",
        "schema": {"password": {"type": "string"}},
        tag: "as a name",
    }


@pytest.mark.parametrize(
    "value",
    [
        {"type": "thinking", "thinking": "hm", "signature": KEYS["openai-key"][0]},
        {"type": "redacted_thinking", "data": KEYS["openai-key"][0]},
        {"type": "reasoning", "encrypted_content": JWT},
        {"functionCall": {"name": "x"}, "thoughtSignature": JWT},
        {"type": "base64", "media_type": "image/png", "data": KEYS["google-key"][0]},
        {"tree": hashlib.sha256(b"t").hexdigest(), "files": {"before": "0" * 64}},
    ],
)
def test_what_is_signed_or_encrypted_stays(value: Json) -> None:
    """A provider refuses a conversation in which that was changed; pictures are bytes."""
    assert mask_json(value) == (value, 0)


def test_names_that_become_one_do_not_lose_a_value() -> None:
    """Two keys as names are two names afterwards."""
    first, second = KEYS["github-token"][:2]
    masked, count = mask_json({first: 1, second: 2})
    assert (sorted(masked.values()), count) == ([1, 2], 2)


def test_masking_can_be_off() -> None:
    """Then it only passes on."""
    off = Masking(on=False)
    key = KEYS["jwt"][0]
    assert (off.text(key), off.json({"a": key}), off.count) == (key, {"a": key}, 0)


def test_names_of_secrets() -> None:
    """Neither too few nor too many."""
    for name in ("password", "API_KEY", "apiKey", "client-secret", "GITHUB_TOKEN", "DB_PASS"):
        assert is_secret_name(name), name
    for name in ("tokens", "key", "primary_key", "passenger", "CACHE_KEY", "max_tokens", "a" * 99):
        assert not is_secret_name(name), name


# --- time --------------------------------------------------------------------------------

SIZE = 1_500_000
HOSTILE = [
    *("sk-", "eyJ", "://a:", "key=", "password", "KEY=xxxxxxx1", "A", "=:", "bearer ", "ghp_"),
    *("xoxb-", "authorization: bearer ", "eyJaaaaaaaaaaaaa.", "key    ", "A_KEY=", "AKIA"),
    *("-----BEGIN PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----A", "-----BEGIN ", "[REDACTED:"),
    *("-----END RSA PRIVATE KEY-----", "\\", '"', "token:\t", "password=a1b2c3d4 ", "://u:p1@h "),
]


@pytest.mark.parametrize("unit", HOSTILE)
def test_no_text_takes_long(unit: str) -> None:
    """Text made to slow patterns down: quadratic time would not end within the limit of a test."""
    text = unit * (SIZE // len(unit))
    masked, count = mask(text)
    assert (count == 0) == (masked == text)


@pytest.mark.parametrize(
    "start", ["sk-ant-", "://", "://u:", "eyJ", "-----BEGIN PRIVATE KEY-----", "key="]
)
@pytest.mark.parametrize("rest", ["a", "a1", "-", "\n", "."])
def test_no_long_run_takes_long(start: str, rest: str) -> None:
    """One beginning, and no end."""
    masked, count = mask(start + rest * (SIZE // len(rest)))
    assert count <= 1
    assert len(masked) <= SIZE + len(start) + 40


def test_ten_megabytes_of_all_of_it() -> None:
    """As one line, as a tool may print it."""
    piece = "".join(unit * 40 for unit in HOSTILE)
    masked, count = mask(piece * (10_000_000 // len(piece)))
    assert count > 1000
    assert "password=a1b2" not in masked
