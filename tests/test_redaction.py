"""Secrets of a configuration go nowhere, and nothing else is taken for one."""

from __future__ import annotations

import http.server
import json
import sqlite3
import stat
import threading
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from probe.core import fs
from probe.errors import InputTypeError, ProbeError
from probe.exporting.tables import export_tables
from probe.redaction import REDACTED, Redaction, redaction, without_secrets
from probe.runs.layout import create_run
from probe.runs.reader import Run
from probe.session import start
from probe.tracking.backends import mlflow_client
from probe.tracking.media import Text
from probe.tracking.tracking import Tracking

SECRET = "s3cr3t-value-of-a-key"

SECRET_NAMES = [
    "api_key", "openai_api_key", "OPENAI_API_KEY", "apiKey", "x-api-key", "access_key", "aws_secret_access_key",
    "secret", "client_secret", "clientSecret", "password", "db_password", "passwd", "authorization", "Authorization",
    "credentials", "hf_token", "HF_TOKEN", "hfToken", "auth_token", "use_auth_token", "hub_token", "wandb_token",
    "api_keys", "passwords", "db-passwords", "secrets", "access_keys", "auth_tokens", "hfTokens", "SECRET_KEYS",
    "access_token", "github-token", "MLFLOW_TRACKING_TOKEN", "HUGGING_FACE_HUB_TOKEN", "secret_key", "private_key",
]  # fmt: skip

OTHER_NAMES = [
    "max_token_len", "prompt_key", "eos_token", "pad_token", "bos_token", "image_token", "token", "tokens", "tokenizer",
    "token_level_scores", "loss_agg_mode", "stop_token", "mask_token", "key", "keys", "secretary", "password_length",
    "non_tensor_batch_keys", "reward_keys", "secrets_file", "response_tokens", "input_tokens", "prompt_keys",
    "api_key_env", "num_tokens", "max_new_tokens", "special_tokens", "credentials_file", "first_token", "unk_token",
]  # fmt: skip

SECRET_TEXTS = [
    "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH", "hf_AbC123xyz", "hf_abcdefghijklmnop9SECRETSECRET12",
    "sk-proj-abcdefghijklmnopqrst", "sk-abc123DEF456",
    "ghp_abcdefghijklmnopqrstuvwxyz0123456789", "github_pat_11ABCDEFG0abcdef", "AKIAIOSFODNN7EXAMPLE",
    "glpat-abcdefghij0123456789", "xoxb-123456789012-abcdef", "AIzaSyA1234567890abcdefghijklmnopqrstuv",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abcdefgh", "Bearer abcdef123456", "npm_abcdefghijklmnop",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
]  # fmt: skip

OTHER_TEXTS = [
    "hf_model", "hf_rollout", "hf_transformers", "sk-learn", "token-mean", "seq-mean-token-sum", "</s>", "auto", "",
    "Qwen/Qwen2.5-0.5B-Instruct", "/models/hf_home/snapshots", "https://huggingface.co/a/b?revision=main", "AKIA",
    "tcp://10.0.0.1:29500", "flash_attention_2", "git@github.com:a/b.git", "s3://bucket/key", "a=b", "max_token=5",
    "me@example.org", "${oc.env:HF_TOKEN}", "EleutherAI/gpt-neox-20b", "risk-adjusted-advantage-2024",
]  # fmt: skip


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_b_texts_under_a_secret_s_name_are_left_out_and_nothing_else(name):
    for config in ({name: SECRET}, {"a": {"b": [{name: SECRET}]}}, {f"actor.{name}": SECRET}, {name: {"x": [SECRET]}}):
        assert SECRET not in json.dumps(Redaction()(config))
    for value in (7, 1.5, True, False, None, [1, None], "", "${oc.env:KEY}"):
        assert Redaction()({name: value}) == {name: value}


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_b_names_of_the_field_are_none(name):
    config = {name: "value", "a": {name: ["value", 3]}}
    assert Redaction()(config) == config


@pytest.mark.parametrize("text", SECRET_TEXTS)
def test_b_texts_that_are_secrets_by_their_form_are_left_out_wherever_they_are(text):
    assert Redaction()(text) == REDACTED
    assert Redaction()({"x": text, "y": [text]}) == {"x": REDACTED, "y": [REDACTED]}
    assert Redaction()({"x": ["a", {"y": f"--key {text}"}]}) == {"x": ["a", {"y": f"--key {REDACTED}"}]}


@pytest.mark.parametrize("text", SECRET_TEXTS)
def test_b_a_name_that_is_a_secret_by_its_form_is_left_out_too_and_none_gets_lost(text):
    found = Redaction()({"users": {text: 1, f"{text} ": 2, "eos_token": "</s>", 3: 4}, "b": [{text: 1}]})
    assert text.split()[-1] not in json.dumps(found)
    assert list(found["users"].values()) == [1, 2, "</s>", 4]
    assert [key for key in found["users"] if REDACTED not in str(key)] == ["eos_token", 3]


@pytest.mark.parametrize("text", OTHER_TEXTS)
def test_b_texts_that_begin_alike_are_none(text):
    assert Redaction()({"x": text}) == {"x": text}
    assert Redaction()({text: 1}) == {text: 1}


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("postgresql://me:pw@db.example.org/runs", f"postgresql://{REDACTED}@db.example.org/runs"),
        ("https://oauth2:abc@git.example.org/a.git", f"https://{REDACTED}@git.example.org/a.git"),
        ("https://x.org/a?token=abc&b=1", f"https://x.org/a?token={REDACTED}&b=1"),
        ("https://x.org/a?X-Amz-Signature=abc", f"https://x.org/a?X-Amz-Signature={REDACTED}"),
        ("https://me:p@ssw@rd@host/x", f"https://{REDACTED}@host/x"),
        ("postgresql://me:pa/ss#w?d@db/runs", f"postgresql://{REDACTED}@db/runs"),
        ("https://host:8080/a@v2 https://host/a@v2", "https://host:8080/a@v2 https://host/a@v2"),
        ("train --hf_token=abc --lr 1", f"train --hf_token={REDACTED} --lr 1"),
        ("train --api-key abc --lr 1", f"train --api-key {REDACTED} --lr 1"),
        ("export HF_TOKEN=abc; python train.py", f"export HF_TOKEN={REDACTED} python train.py"),
        ("user: me, api_key: abc", f"user: me, api_key: {REDACTED}"),
        ("Authorization: Bearer abcdef123456", f"Authorization: {REDACTED}"),
        ("run --hf-token=${oc.env:HF_TOKEN}", "run --hf-token=${oc.env:HF_TOKEN}"),
        ("--eos_token </s> --max_token_len=512", "--eos_token </s> --max_token_len=512"),
        ("trainer.hf_token=abc", f"trainer.hf_token={REDACTED}"),
        ("+wandb.api_key=abc", f"+wandb.api_key={REDACTED}"),
        ("Client(api_key='abc', url='x')", f"Client(api_key='{REDACTED}', url='x')"),
        ('{"password": "abc"}', f'{{"password": "{REDACTED}"}}'),
        (json.dumps(json.dumps({"password": "abc", "n": 1})), rf'"{{\"password\": \"{REDACTED}\", \"n\": 1}}"'),
        (
            "[default]\naws_secret_access_key = abc\nregion = x",
            f"[default]\naws_secret_access_key = {REDACTED}\nregion = x",
        ),
        ("if password == other", "if password == other"),
        ("Server=x;Password=abc", f"Server=x;Password={REDACTED}"),
        ("AccountName=me;AccountKey=abc==", f"AccountName=me;AccountKey={REDACTED}"),
        ("password2=abc", f"password2={REDACTED}"),
        ("ValueError('api_key=abc')", f"ValueError('api_key={REDACTED}')"),
        ("<Key.A: 'hf_abcDEF123'>", f"<Key.A: '{REDACTED}'>"),
        ("https:/me:pw@host/x", f"https:/{REDACTED}@host/x"),
        ("file:/home/me:v1@x c:/me@x s3:/a@b", "file:/home/me:v1@x c:/me@x s3:/a@b"),
    ],
)
def test_b_urls_overrides_and_objects_that_carry_one_keep_the_rest(url, told):
    assert Redaction()({"x": [url]}) == {"x": [told]}


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (["train.py", "--hf-token", "abc", "--lr", "1"], ["train.py", "--hf-token", REDACTED, "--lr", "1"]),
        (("-password", "abc", "x"), ("-password", REDACTED, "x")),
        (["--use_auth_token", "--lr", "1"], ["--use_auth_token", "--lr", "1"]),
        (["--eos_token", "</s>"], ["--eos_token", "</s>"]),
        ([["HF_TOKEN", "abc"], ("HOME", "/root")], [["HF_TOKEN", REDACTED], ("HOME", "/root")]),
        (["hf_token", "a", "b"], ["hf_token", "a", "b"]),  # names of columns, say
        ([{"name": "HF_TOKEN", "value": "abc"}], [{"name": "HF_TOKEN", "value": REDACTED}]),
        ({"key": "api_key", "value": ["abc"], "kind": "x"}, {"key": "api_key", "value": [REDACTED], "kind": "x"}),
        ({"name": "HOME", "value": "/root"}, {"name": "HOME", "value": "/root"}),
        ({"name": "HF_TOKEN", "value": 3}, {"name": "HF_TOKEN", "value": 3}),
        ({"password": "<your password>"}, {"password": "<your password>"}),
        ({"password": "$HF_TOKEN", "db_password": "$ecret123"}, {"password": "$HF_TOKEN", "db_password": REDACTED}),
        ({"password": "<Word.A: 'abc'>"}, {"password": REDACTED}),
        ({"password_2": "abc", "gpt2": "abc", "2": "abc"}, {"password_2": REDACTED, "gpt2": "abc", "2": "abc"}),
    ],
)
def test_b_what_stands_beside_a_secret_s_name_in_a_list_is_left_out(config, told):
    assert Redaction()({"x": config}) == {"x": told}
    assert Redaction(keep=frozenset({"hf_token", "password", "api_key", "password_2", "db_password"}))(
        {"x": config}
    ) == {"x": config}


def test_b_the_list_can_be_changed():
    config = {"licence": SECRET, "trainer_licence": SECRET, "password": SECRET, "hf_token": SECRET}
    assert set(without_secrets(config, ["licence"]).values()) == {REDACTED}
    assert without_secrets(config, Redaction(keep=frozenset({"password"})))["password"] == SECRET
    assert without_secrets(config, False) is config
    for wrong in ("licence", 3, [3], [""]):
        with pytest.raises(InputTypeError, match="redact"):
            redaction(wrong)


@dataclass
class Settings:
    hf_token: str = SECRET
    lr: float = 1e-6


CONFIGS = [
    {"hf_token": SECRET, "lr": 1e-6},
    {"a": [{"hf_token": SECRET, "lr": 1e-6}]},
    Settings(),
    SimpleNamespace(hf_token=SECRET, lr=1e-6),
    OmegaConf.create({"a": {"hf_token": SECRET, "lr": 1e-6, "b": "${a.hf_token}x"}, "c": [{"api_key": SECRET}]}),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """One of MLflow's for all of them: making its tables takes seconds."""
    return tmp_path_factory.mktemp("store") / "mlflow.db"


@pytest.mark.parametrize("config", CONFIGS, ids=lambda one: type(one).__name__)
def test_b_a_secret_is_in_no_file_of_a_run_and_its_backends(tmp_path, config, store, monkeypatch):
    if type(config).__name__ == "DictConfig":
        config.a.b = "x"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store}")
    # A publisher reads what the run's files hold, which no secret is in whatever the configuration was made of: a run
    # with one that is published is in tests/publishing/test_published_backends.py.
    options = {"track": ["file", "tensorboard", "mlflow"], "publish": False, "config": config}
    with start("p", run_dir=tmp_path / "run", **options) as session, session.step(0):
        pass
    export_tables(tmp_path / "run", tmp_path / "run" / "exported" / "tables")
    for path in [*tmp_path.rglob("*"), *store.parent.iterdir()]:
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path
    with Run(tmp_path / "run") as run:
        assert "1e-06" in repr(run.info.config)
        assert REDACTED in repr(run.info.config)
    assert REDACTED in (tmp_path / "run/tracking/notes.json").read_text()


def test_b_who_keeps_them_gets_files_for_its_owner_alone(tmp_path):
    config = {"hf_token": SECRET}
    for name, redact in (("kept", False), ("left", True), ("more", ["licence"])):
        track = ["file", "tensorboard"] if name == "kept" else ["file"]
        options = {"run_dir": tmp_path / name, "track": track, "config": config, "redact": redact, "recorders": []}
        with start("p", **options) as session, session.step(0):
            pass
        mode = stat.S_IMODE((tmp_path / name / "run.json").stat().st_mode)
        notes = tmp_path / name / "tracking" / "notes.json"
        assert (SECRET in (tmp_path / name / "run.json").read_text()) == (redact is False)
        assert (SECRET in notes.read_text()) == (redact is False)
        assert (mode == 0o600) == (redact is False)
        assert (stat.S_IMODE(notes.stat().st_mode) == 0o600) == (redact is False)
        for path in (tmp_path / name).rglob("*"):  # whatever holds the configuration, or what was said of the run
            if path.is_file() and SECRET.encode() in path.read_bytes():
                assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        assert (stat.S_IMODE((tmp_path / name / "metrics.jsonl").stat().st_mode) == 0o600) == (redact is False)
    export_tables(tmp_path / "kept", tmp_path / "tables")
    assert all(SECRET.encode() not in path.read_bytes() for path in (tmp_path / "tables").iterdir())


def test_b_what_was_private_stays_private_when_another_process_adds_to_it(tmp_path):
    (tmp_path / "metrics.jsonl").touch(0o644)
    for redact in (False, True):
        with Tracking(
            "p", "e", ["file", "tensorboard"], {"hf_token": SECRET}, directory=tmp_path, redact=redact
        ) as one:
            one.log({"answer": Text("words")}, 1)
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and "tracking" not in path.parts]
    assert len(kept) > 2
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept if path.suffix != ".end"} == {0o600}
    assert stat.S_IMODE((tmp_path / "tracking").stat().st_mode) == 0o700


def test_b_a_database_that_mlflow_finds_is_for_its_owner_alone(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for name, private in (("kept", True), ("left", False)):
        uri, _ = mlflow_client.stores(tmp_path / name, private=private)
        with sqlite3.connect(tmp_path / name / "mlflow.db") as database:
            database.execute("create table params (value)")
        database.close()
        assert uri.endswith(f"{name}/mlflow.db")
        assert (stat.S_IMODE((tmp_path / name / "mlflow.db").stat().st_mode) == 0o600) == private


def test_b_a_run_json_that_is_made_again_stays_private(tmp_path):
    from probe.records import Scalar

    with start("p", run_dir=tmp_path / "run", config={"hf_token": SECRET}, redact=False) as session:
        (tmp_path / "run/run.json").unlink()
        (tmp_path / "run/rank-00000.jsonl").unlink(missing_ok=True)
        for path in (tmp_path / "run").glob("*.jsonl"):
            path.unlink()
        session.log({"x": 1}, 0)
        session.recording.write_rows(Scalar(key="k", value=1.0), __import__("probe.hooks").hooks.current_scope(), 1)
        session.flush()
    assert stat.S_IMODE((tmp_path / "run/run.json").stat().st_mode) == 0o600


def test_b_a_tracking_of_one_s_own_leaves_them_out_too(tmp_path):
    for name, redact, kept in (("a", True, False), ("b", False, True), ("c", ["lr"], False)):
        with Tracking("p", "e", "file", CONFIGS[0], directory=tmp_path / name, redact=redact):
            pass
        text = "".join(path.read_text() for path in (tmp_path / name).rglob("*") if path.is_file())
        assert (SECRET in text) == kept
    with pytest.raises(InputTypeError, match="redact"):
        Tracking("p", "e", "file", directory=tmp_path / "d", redact="licence")
    with pytest.raises(InputTypeError, match="redact"):
        create_run("p", "e", root=tmp_path, redact=3)
    assert not (tmp_path / "p").exists()


#: Fields of TRL 1.16's GRPOConfig and of transformers' TrainingArguments with a text as default, or a name that looks
#: like a secret's. The real files are read in tests/frameworks/test_verl_secrets.py.
TRL = {
    "pad_to_multiple_of": "auto", "vllm_mode": "colocate", "vllm_model_impl": "vllm", "vllm_server_host": "0.0.0.0",
    "importance_sampling_level": "token", "multi_objective_aggregation": "sum_then_normalize", "loss_type": "dapo",
    "scale_rewards": "group", "vllm_importance_sampling_mode": "sequence_mask", "top_entropy_quantile": 1.0,
    "mask_truncated_completions": False, "use_transformers_paged": False, "log_completions": False, "hub_token": None,
    "optim": "adamw_torch", "lr_scheduler_type": "linear", "hub_strategy": "every_save", "report_to": "all",
    "eos_token": "<EOS_TOKEN>", "pad_token": None, "max_completion_length": 256, "push_to_hub_token": None,
}  # fmt: skip


def test_b_no_default_of_trl_is_redacted():
    assert Redaction()(TRL) == TRL
    assert Redaction()({**TRL, "hub_token": "mine"})["hub_token"] == REDACTED


def _answering(status):
    """A server that answers everything so."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_error(status)

        do_GET = do_HEAD = do_POST

        def log_message(self, *_):
            pass

    return http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)


def _tracks(backend, variable):
    def use(url, _, monkeypatch):
        monkeypatch.setenv(variable, url)
        Tracking("p", "e", [backend])

    return use


USES = {
    "copy_to_local": lambda url, folder, _: fs.copy_to_local(url, cache_dir=folder),
    "copy": lambda url, folder, _: fs.copy(url, folder / "here"),
    "copy, to it": lambda url, folder, _: fs.copy(Path(__file__), url),
    "exists": lambda url, *_: fs.exists(f"{url}\0"),
    "local_mkdir_safe": lambda url, *_: fs.local_mkdir_safe(url),
    "copy_to_shm": lambda url, *_: fs.copy_to_shm(url),
    "get_local_temp_path": lambda url, *_: fs.get_local_temp_path("s3://bucket/model", cache_dir=url),
    "no such protocol": lambda url, *_: fs.exists(url.replace("http", "nonesuch")),
    "otlp": _tracks("otlp", "OTEL_EXPORTER_OTLP_ENDPOINT"),
    "otlp, no http": lambda url, _, patch: _tracks("otlp", "OTEL_EXPORTER_OTLP_ENDPOINT")(url[1:], _, patch),
    "mlflow": _tracks("mlflow", "MLFLOW_TRACKING_URI"),
}


@pytest.mark.parametrize("status", [403, 404, 500])
@pytest.mark.parametrize("use", USES)
def test_no_error_nor_line_repeats_the_login_of_a_url(use, status, tmp_path, monkeypatch, capfd, caplog):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with caplog.at_level("INFO"), _answering(status) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        where = f"127.0.0.1:{server.server_port}"
        try:
            with pytest.raises((ProbeError, OSError)) as raised:
                USES[use](f"http://me:opensesame@{where}/data?sig=opensesame2", tmp_path, monkeypatch)
        finally:
            server.shutdown()
    assert where in str(raised.value)
    assert "opensesame" not in "".join([str(raised.value), caplog.text, *capfd.readouterr()])
