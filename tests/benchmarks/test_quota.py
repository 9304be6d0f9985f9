"""The benchmark of quotas, on folders instead of cgroups."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.engines import quota
from tamiz.evaluation import bench
from tamiz.files.errors import TamizError


@pytest.fixture(autouse=True)
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of groups, whose files go with them as those of Linux do."""
    monkeypatch.setattr(quota, "CGROUPS", tmp_path / "groups")
    monkeypatch.setattr(Path, "rmdir", shutil.rmtree)
    (tmp_path / "groups").mkdir()
    return tmp_path / "groups"


def test_a_group_of_version_1_has_its_quota_in_two_files(groups: Path) -> None:
    (groups / "cpu").mkdir()
    with quota.limited_group("a", 1.5) as folder:
        assert folder.parent == groups / "cpu"
        assert (folder / "cpu.cfs_quota_us").read_text() == "150000"
        assert (folder / "cpu.cfs_period_us").read_text() == "100000"
    assert list((groups / "cpu").iterdir()) == []


def test_a_group_of_version_2_has_its_quota_in_one_file(groups: Path) -> None:
    with quota.limited_group("a", 1.0) as folder:
        assert (folder / "cpu.max").read_text() == "100000 100000"
    assert list(groups.iterdir()) == []


def test_a_machine_whose_groups_cannot_be_written_is_named(groups: Path) -> None:
    groups.rmdir()
    with (
        pytest.raises(TamizError, match=r"groups/.*: no cgroup .* No such file .*; try as root"),
        quota.limited_group("a", 1.0),
    ):
        pass


@pytest.mark.slow
def test_engines_and_how_often_they_were_stopped(
    tiny_dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = quota.limited_group

    @contextmanager
    def with_counts(name: str, limit: float) -> Iterator[Path]:
        with made(name, limit) as folder:
            (folder / "cpu.stat").write_text("nr_periods 7\nnr_throttled 3\nthrottled_time 9\n")
            yield folder

    monkeypatch.setattr(quota, "limited_group", with_counts)
    monkeypatch.setattr(quota, "threads_chosen", lambda folder: 1)
    monkeypatch.setattr(bench, "ROUNDS", 1)
    monkeypatch.setattr(bench, "TOKENS", 3)
    monkeypatch.setattr(bench, "PAUSE", 0.0)
    report = tmp_path / "quota.json"
    arguments = [str(tiny_dense), "--context=16", "--threads=1", f"--json={report}"]
    result = CliRunner().invoke(quota.main, arguments)
    assert result.exit_code == 0, result.output
    results = json.loads(report.read_text())["results"]
    assert (results["quota"], results["threads_chosen"]) == (1.0, 1)
    base, *limited = results["engines"].values()
    assert base[f"times {quota.BASE}"]["decode_tok_s"]["16"] == 1
    assert [(row["periods"], row["stopped"]) for row in limited] == [(7, 3), (7, 3)]
