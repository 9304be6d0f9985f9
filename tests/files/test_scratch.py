"""What a killed process leaves is removed by the next one that writes to the same place."""

import subprocess
import sys
from pathlib import Path

import pytest

from tamiz.files.bundle import Source, write_manifest, writing
from tamiz.files.errors import UnwritableError
from tamiz.files.scratch import held_folder

WRITER = """
import sys
from tamiz.files.bundle import writing
with writing(sys.argv[1]) as folder:
    (folder / "model.onnx").write_bytes(b"half")
    print("ready", flush=True)
    sys.stdin.read()
"""


def writer(target: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(target)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def write(target: Path) -> None:
    with writing(target) as folder:
        (folder / "model.onnx").write_bytes(b"")
        write_manifest(folder, "dense", Source("x"))


@pytest.mark.parametrize("name", ["out", "o[u]t", "*"])
def test_a_killed_process_leaves_nothing_for_long(tmp_path: Path, name: str) -> None:
    killed, alive = writer(tmp_path / name), writer(tmp_path / name)
    killed.kill()
    killed.communicate()
    assert len(list(tmp_path.iterdir())) == 2
    write(tmp_path / name)
    assert len(list(tmp_path.iterdir())) == 2, "the bundle and the folder of the live process"
    alive.kill()
    alive.communicate()
    write(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_the_folders_of_others_stay(tmp_path: Path) -> None:
    (tmp_path / ".out.tamiz-set").mkdir()
    (tmp_path / ".out.tamiz-mysetups").mkdir()
    (tmp_path / ".out.tamiz-mysetups" / "file").write_text("mine")
    (tmp_path / ".out.tamiz-12345678").symlink_to(tmp_path / ".out.tamiz-mysetups")
    (tmp_path / ".other.tamiz-12345678").mkdir()
    before = {path.name for path in tmp_path.iterdir()}
    write(tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == before | {"out"}


def test_a_scratch_folder_that_holds_an_older_bundle_gives_it_back(tmp_path: Path) -> None:
    write(tmp_path / "out")
    scratch = tmp_path / ".out.work" / "bundle"
    scratch.mkdir(parents=True)
    (tmp_path / "out").rename(scratch / "old")
    with pytest.raises(RuntimeError), writing(tmp_path / "out", scratch):
        raise RuntimeError
    assert (tmp_path / "out" / "tamiz.json").is_file()


def test_an_older_bundle_that_was_moved_aside_returns(tmp_path: Path) -> None:
    write(tmp_path / "out")
    scratch = tmp_path / ".out.tamiz-12345678" / "bundle"
    scratch.mkdir(parents=True)
    (tmp_path / "out").rename(scratch / "old")
    with pytest.raises(RuntimeError), writing(tmp_path / "out"):
        raise RuntimeError
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "tamiz.json").is_file()


def test_a_place_where_nothing_can_be_written_is_named(tmp_path: Path) -> None:
    gone = tmp_path / "none" / "out"
    with (
        pytest.raises(UnwritableError, match=f"{gone}: cannot be written: No such file"),
        held_folder(gone),
    ):
        pass
