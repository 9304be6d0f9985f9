import json
import shutil
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from tamiz.cli import main


@pytest.fixture
def tamiz() -> Callable[..., Any]:
    """Runs a command line; gives exit code, stdout and stderr."""

    def run(*arguments, stdin=None) -> tuple[int, str, str]:
        result = CliRunner().invoke(main, [str(argument) for argument in arguments], input=stdin)
        return result.exit_code, result.stdout, result.stderr

    return run


def test_run_prints_the_answer(tamiz, dense_dir) -> None:
    code, out, _ = tamiz("run", dense_dir, "--prompt", "hello", "--max-new-tokens", 5)
    assert code == 0
    assert out.endswith("\n")
    code, again, _ = tamiz("run", dense_dir, "--prompt", "-", "--max-new-tokens", 5, stdin="hello")
    assert (code, again) == (0, out)


def test_run_prints_json(tamiz, dense_dir) -> None:
    arguments = ["run", dense_dir, "--prompt", "hello", "--raw", "--max-new-tokens", 4, "--json"]
    code, out, _ = tamiz(*arguments, "--temperature", 1, "--seed", 1)
    assert code == 0
    report = json.loads(out)
    speed = ["tokens", "prompt_seconds", "decode_seconds", "decode_tok_s", "seconds"]
    assert list(report) == ["text", "prompt_tokens", *speed, "speculation"]
    counts = ["mode", "runs", "drafted", "accepted", "self_drafted", "self_accepted"]
    assert report["speculation"] == dict.fromkeys(counts, 0) | {"mode": "off"}
    assert report["prompt_tokens"] == 1
    assert report["tokens"] == 4
    assert report["decode_tok_s"] > 0
    spent = report["prompt_seconds"] + report["decode_seconds"]
    assert 0 < spent <= report["seconds"] + 0.001
    code, out, _ = tamiz(*arguments[:-3], "--max-new-tokens", 1, "--json")
    assert json.loads(out)["decode_tok_s"] is None


def test_run_takes_the_prompt_as_an_argument(tamiz, dense_dir) -> None:
    expected = tamiz("run", dense_dir, "--prompt", "hello", "--max-new-tokens", 5)
    assert expected[0] == 0
    assert tamiz("run", dense_dir, "hello", "--max-new-tokens", 5) == expected
    assert tamiz("run", dense_dir, "-", "--max-new-tokens", 5, stdin="hello") == expected
    code, out, err = tamiz("run", dense_dir)
    assert (code, out) == (2, "")
    assert "Missing argument 'PROMPT'" in err
    code, _, err = tamiz("run", dense_dir, "hello", "--prompt", "hello")
    assert code == 2
    assert "exclude each other" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--temperature", "-1"],
        ["--top-p", "0"],
        ["--top-k", "-2"],
        ["--max-new-tokens", "0"],
        ["--temperature", "nan"],
        ["--raw", "--system", "x"],
    ],
)
def test_run_refuses_bad_values(tamiz, dense_dir, arguments) -> None:
    code, out, err = tamiz("run", dense_dir, "--prompt", "hello", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_run_refuses_what_is_no_model(tamiz, tmp_path) -> None:
    code, _, err = tamiz("run", tmp_path, "--prompt", "hello")
    assert code == 2
    assert "no exporter reads it" in err


@pytest.mark.parametrize("command", [["run", "--prompt", "-"], ["chat"]])
def test_stdin_that_is_not_utf8_is_refused(tamiz, dense_dir, command) -> None:
    code, out, err = tamiz(*command, dense_dir, stdin=b"a\xff\n")
    assert (code, out) == (2, "")
    assert err.startswith("error: the text holds '\\udcff' at character")


def test_chat_answers_every_line(tamiz, dense_dir) -> None:
    code, out, _ = tamiz("chat", dense_dir, "--max-new-tokens", 3, stdin="hello\n\nhello\n")
    assert code == 0
    assert out.endswith("\n")


def test_a_forged_kv_cache_is_told(tamiz, dense_dir, tmp_path) -> None:
    bundle = shutil.copytree(dense_dir, tmp_path / "forged")
    manifest = json.loads((bundle / "tamiz.json").read_text())
    manifest["kv_cache"] = "shared"
    (bundle / "tamiz.json").write_text(json.dumps(manifest))
    code, out, err = tamiz("run", bundle, "--prompt", "hello")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {bundle}: does not run with the shared KV cache that its")
    assert err.count("\n") == 1


def test_eval_prints_the_contracted_keys(
    tamiz, dense_dir, shared_dir, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("tamiz.evaluation.windows.cut", lambda ids, n, _: [ids[:100]] * n)
    text = tmp_path / "text.txt"
    text.write_text("hello world, " * 100, "utf-8")
    code, out, _ = tamiz("eval", dense_dir, "--text", text, "--windows", 1, "--json")
    assert code == 0
    assert set(json.loads(out)) == {"ppl", "ppl_from_16", "windows"}
    arguments = ["eval", shared_dir, "--text", text, "--windows", 1]
    code, out, _ = tamiz(*arguments, "--against", dense_dir, "--json")
    assert code == 0
    report = json.loads(out)
    assert {"ppl", "ppl_from_16", "ppl_dense", "dppl", "kl_mean", "top1_agreement"} <= set(report)
    assert report["dppl"] == pytest.approx(0, abs=1e-5)
    assert report["kl_mean"] == pytest.approx(0, abs=1e-6)
    assert "ppl_decode" not in report
    code, out, _ = tamiz(*arguments, "--against", dense_dir, "--decode", "--json")
    report = json.loads(out)
    assert report["ppl_decode"] == pytest.approx(report["ppl_from_16"], rel=1e-5)
    assert report["kl_decode"] == pytest.approx(0, abs=1e-6)


def test_eval_scores_windows_of_a_length_and_their_last_tokens(tamiz, shared_dir, tmp_path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("hello world, " * 100, "utf-8")
    arguments = ["eval", shared_dir, "--text", text, "--windows", 2, "--json"]

    def scored(*options) -> dict[str, Any]:
        code, out, _ = tamiz(*arguments, *options)
        assert code == 0
        return json.loads(out)

    short = scored("--window", 64)
    assert short["ppl"] != scored("--window", 96)["ppl"]
    assert "ppl_decode" not in short
    whole = scored("--window", 64, "--decode")
    assert whole["ppl_decode"] == pytest.approx(short["ppl_from_16"], rel=1e-5)
    assert scored("--window", 64, "--last", 48)["ppl_decode"] == whole["ppl_decode"]
    assert scored("--window", 64, "--last", 8)["ppl_decode"] != whole["ppl_decode"]


def test_eval_decodes_what_it_does_not_know(tamiz, shared_dir, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tamiz.evaluation.windows.cut", lambda ids, n, _: [ids[:100]] * n)
    text = tmp_path / "text.txt"
    text.write_text("hello world, " * 100, "utf-8")
    bundle = shutil.copytree(shared_dir, tmp_path / "other")
    manifest = json.loads((bundle / "tamiz.json").read_text())
    manifest["techniques"] = {"somebody-elses": {"version": "1", "config": {}}}
    (bundle / "tamiz.json").write_text(json.dumps(manifest))
    code, out, _ = tamiz("eval", bundle, "--text", text, "--windows", 1, "--json")
    assert code == 0
    assert "ppl_decode" in json.loads(out)


def test_eval_refuses_unreadable_text(tamiz, dense_dir, tmp_path) -> None:
    code, _, err = tamiz("eval", dense_dir, "--text", tmp_path / "missing.txt")
    assert code == 2
    assert "missing.txt: cannot be read: No such file" in err
    (tmp_path / "latin.txt").write_bytes(b"\xff\xfe\xfa")
    code, _, err = tamiz("eval", dense_dir, "--text", tmp_path / "latin.txt")
    assert code == 2
    assert "cannot be read as UTF-8 text" in err


@pytest.mark.parametrize("contexts", ["", "a", "1,,2", "0", "-5", "1.5"])
def test_bench_refuses_bad_contexts(tamiz, dense_dir, contexts) -> None:
    code, _, err = tamiz("bench", dense_dir, "--context", contexts)
    assert code == 2
    assert "is not a list of whole numbers" in err


def test_bench_prints_a_table(tamiz, dense_dir, monkeypatch) -> None:
    monkeypatch.setattr("tamiz.evaluation.bench.ROUNDS", 1)
    monkeypatch.setattr("tamiz.evaluation.bench.PAUSE", 0.0)
    monkeypatch.setattr("tamiz.evaluation.bench.read_bandwidth", lambda threads: 1.0)
    arguments = ["bench", dense_dir, "--against", dense_dir, "--context", "16", "--threads", 1]
    code, out, _ = tamiz(*arguments)
    assert code == 0
    assert "decode at 16, tok/s" in out
    code, out, _ = tamiz(*arguments, "--json")
    assert code == 0
    assert json.loads(out)["ratio"]["decode_tok_s"]["16"] > 0
