"""Values that no option takes: the error names the option, whatever the value is."""

import json
from pathlib import Path

import click
import pytest

from kit import chain
from kit.command_line import refused
from tamiz.cli import main

LONG = "a" * 256


def options(name: str) -> list[str]:
    """A command's own options that take no path, the techniques' switches, and a few settings."""
    with click.Context(main) as outer:
        command = main.get_command(outer, name)
        assert command is not None
        params = command.get_params(click.Context(command, outer))
    found = [
        option
        for option in params
        if isinstance(option, click.Option)
        and not (option.is_flag or isinstance(option.type, click.Path))
        and option.opts[0].startswith("--")
    ]
    free = [option for option in found if option.hidden and option.type is click.STRING]
    return [option.opts[0] for option in found if option not in free] + [
        option.opts[0] for option in free[::8]
    ]


@pytest.mark.parametrize("option", options("plan"))
def test_a_value_longer_than_a_file_name_names_the_option(option: str, tiny_dense: Path) -> None:
    assert option in refused("plan", option, LONG, tiny_dense)


@pytest.mark.parametrize("value", ["nan", "inf", "1e308", "-1", "9" * 5000])
@pytest.mark.parametrize("option", ["--max-mb", "--max-kl", "--min-tok-s"])
def test_a_limit_is_a_finite_number(
    option: str, value: str, tiny_dense: Path, tmp_path: Path
) -> None:
    error = refused("build", tiny_dense, "-o", tmp_path / "out", f"{option}={value}")
    assert option in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("value", ["nan", "inf", "1e308"])
def test_a_budget_is_a_fraction(value: str, tiny_dense: Path, tmp_path: Path) -> None:
    for option in ("--max-dppl", "--min-cosine"):
        error = refused("build", tiny_dense, "-o", tmp_path / "out", f"{option}={value}")
        assert f"{option}={value}: expected a fraction from 0 " in error


@pytest.mark.parametrize("option", ["--points", "--measure"])
def test_a_frontier_has_a_largest_number_of_points(
    option: str, tiny_dense: Path, tmp_path: Path
) -> None:
    error = refused("frontier", tiny_dense, "-o", tmp_path / "out.json", option, 10**9)
    assert option in error
    assert "1000" in error


def test_a_context_beyond_any_memory_is_refused(tiny_dense: Path) -> None:
    config = json.loads((tiny_dense / "config.json").read_text("utf-8"))
    chain.change(tiny_dense, config=config | {"max_position_embeddings": 10**12})
    error = refused("run", tiny_dense, "hi", "--max-new-tokens", 10**9)
    assert "config.json: max_position_embeddings is 1000000000000, expected an int from 1" in error


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999", "9" * 5000])
@pytest.mark.parametrize("option", ["--kwta-strength", "--block-quant-bits"])
def test_a_setting_is_a_finite_number(option: str, value: str, tiny_dense: Path) -> None:
    assert option in refused("plan", tiny_dense, f"{option}={value}")


@pytest.mark.parametrize("option", ["--temperature", "--top-p"])
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_sampling_takes_finite_numbers(option: str, value: str, tiny_dense: Path) -> None:
    assert option in refused("run", tiny_dense, "hi", f"{option}={value}")
