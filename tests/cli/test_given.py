"""Options that would have no effect are refused, each with the option that leaves it none."""

from pathlib import Path

import pytest

from kit.command_line import ok, refused, tamiz


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (f"build dense -o out --from-report r {given}", "with --from-report, which repeats all")
        for given in (
            "--max-dppl=0.02",
            "--min-cosine=0.9",
            "--autotune=on",
            "--strip-dense=off",
            "--on-conflict=drop",
        )
    ]
    + [
        (f"build dense -o out {given} --autotune=on", f"with {given.partition('=')[0]}, which")
        for given in ("--max-kl=0.1", "--max-mb=1", "--min-tok-s=9", "--prefer=size")
    ]
    + [
        ("build dense -o out --context=9", "where no limit chooses formats; remove --context or"),
        ("build dense -o out --recipe=small --context=9", "where no limit chooses formats"),
        ("bench dense --sweep kwta.k=0.9 --text t -o out --against dense", "with --sweep"),
        ("bench dense --sweep kwta.k=0.9 --text t -o out --speculate=ngram", "with --sweep"),
        ("bench dense --sweep kwta.k=0.9 --text t -o out --without=kwta", "with --sweep"),
        ("bench dense --sweep kwta.k=0.9 --text t -o out --metrics-by-layer", "with --sweep"),
        ("eval dense --text t --last 8 --prompt-only", "with --prompt-only, which scores no"),
        ("eval dense --text t --tokens=8", "without --prompts; remove --tokens or add --prompts"),
        ("eval encoder --text t --against encoder --count=8", "without --prompts"),
        ("eval dense --prompts t --against dense --windows=8", "without --text"),
        ("eval dense --prompts t --against dense --window=64", "without --text"),
        ("eval dense --prompts t --against dense --decode", "without --text"),
        ("eval dense --prompts t --against dense --prompt-only", "without --text"),
        ("eval dense --prompts t --against dense --last=8", "without --text"),
        ("calibrate dense -o out --merge one --windows=8", "with --merge alone, which reads no"),
        ("calibrate dense -o out --merge one --samples=8", "with --merge alone"),
        ("calibrate dense -o out --merge one --memory=8", "with --merge alone"),
        ("calibrate dense -o out --merge one --threads=1", "with --merge alone"),
    ],
)
def test_an_option_without_effect_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    told = refused(*line.split())
    flag = told.partition(" ")[0]
    assert flag in line
    assert f"{flag} has no effect {reason}" in told
    assert f"; remove {flag} or " in told


def test_a_sweep_takes_one_context(tmp_path: Path) -> None:
    rest = ("--sweep", "kwta.k=0.9", "--text", "t", "-o", tmp_path / "out", "--context", "8,16")
    expected = "--context: found 2 lengths, expected one with --sweep; try --context 8"
    assert refused("bench", tmp_path, *rest) == expected


def test_what_has_an_effect_is_taken(tiny_dense: Path, tmp_path: Path) -> None:
    built = tmp_path / "built"
    ok("build", tiny_dense, "-o", built, "--max-dppl=0.5", "--autotune=on", "--block-quant-bits=8")
    again = ("build", tiny_dense, "-o", tmp_path / "again", "--from-report", built / "report.json")
    ok(*again, "--autotune=off")
    (tmp_path / "text").write_text("hello " * 2000)
    for name in ("one", "two"):
        given = ("--text", tmp_path / "text", "--windows", 1, "--samples", 8)
        ok("calibrate", tiny_dense, "-o", tmp_path / name, *given)
    joined = ("calibrate", tiny_dense, "-o", tmp_path / "both", "--merge", tmp_path / "one")
    ok(*joined, "--text", tmp_path / "text", "--windows", 1, "--samples", 8)
    assert tamiz(*joined, "--merge", tmp_path / "two").exit_code == 0
