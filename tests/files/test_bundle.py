import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tamiz.files.bundle import (
    FORMAT,
    Bundle,
    Source,
    check_target,
    read_json,
    sha256,
    write_json,
    write_manifest,
    writing,
)
from tamiz.files.errors import TamizError, UnwritableError

EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def external(location: str, length: int = 7) -> bytes:
    """A protobuf ModelProto with one external initializer at `location`."""

    def message(field: int, content: bytes) -> bytes:
        return bytes([field << 3 | 2, len(content)]) + content

    def entry(key: str, value: str) -> bytes:
        return message(13, message(1, key.encode()) + message(2, value.encode()))

    return message(7, message(5, entry("location", location) + entry("length", str(length))))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "bundle"
    made.mkdir()
    (made / "model.onnx").write_bytes(external("model.onnx.data"))
    (made / "model.onnx.data").write_bytes(b"weights")
    (made / "config.json").write_text('{"vocab_size": 3}')
    write_manifest(made, "dense", Source("somewhere", None))
    return made


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    manifest = json.loads((folder / "tamiz.json").read_text())
    change(manifest)
    (folder / "tamiz.json").write_text(json.dumps(manifest))


def test_opens_what_was_written(folder: Path) -> None:
    bundle = Bundle.open(folder)
    assert bundle.manifest.kind == "dense"
    assert bundle.manifest.source == Source("somewhere", None)
    assert sorted(bundle.manifest.files) == ["config.json", "model.onnx", "model.onnx.data"]
    assert bundle.manifest.files["model.onnx.data"].size == 7
    assert bundle.size == sum(f.stat().st_size for f in folder.iterdir() if f.name != "tamiz.json")
    assert bundle.json("config.json") == {"vocab_size": 3}
    bundle.verify()


def test_opens_a_path_that_goes_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    Bundle.open(Path("../bundle")).verify()


def test_sha256_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert sha256(tmp_path / "empty") == EMPTY_SHA256


def test_verify_finds_changed_contents_of_the_same_size(folder: Path) -> None:
    (folder / "model.onnx.data").write_bytes(b"WEIGHTS")
    with pytest.raises(TamizError, match=r"model\.onnx\.data: its SHA-256 is not the manifest's"):
        Bundle.open(folder).verify()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m.update(format=99), "format is 99, this tamiz .* reads 1"),
        (lambda m: m.update(format=True), "format is True, this tamiz .* reads 1"),
        (lambda m: m.update(min_onnxruntime="new"), "min_onnxruntime is 'new', expected a version"),
        (lambda m: m.update(extra=1), "unknown key 'extra' in the manifest"),
        (lambda m: m.pop("source"), "the manifest lacks the key 'source'"),
        (lambda m: m.update(kind="odd"), "kind is 'odd', expected dense or built"),
        (lambda m: m.update(kv_cache="odd"), "kv_cache is 'odd', expected exact or shared"),
        (lambda m: m.update(policy=3), r"policy is 3, expected str \| None"),
        (lambda m: m.update(files=[]), r"files is \[\], expected an object"),
        (lambda m: m["files"].pop("model.onnx"), r"files lacks model\.onnx"),
        (lambda m: m["files"]["config.json"].update(size="1"), r"size is '1', expected int"),
        (lambda m: m["files"]["config.json"].update(size=-1), "is -1, expected ≥ 0"),
        (lambda m: m["files"]["config.json"].update(size=5), "has 17 bytes, the manifest says 5"),
        (lambda m: m["files"]["config.json"].pop("sha256"), "lacks the key 'sha256'"),
        (lambda m: m["files"].update(gone=m["files"]["config.json"]), "location 'gone' is missing"),
        (
            lambda m: m["files"].update({"../x": m["files"]["config.json"]}),
            r"names '\.\./x', expected a path inside the folder",
        ),
        (
            lambda m: m["techniques"].update(a={}),
            r"techniques\.a is {}, expected version and config",
        ),
        (lambda m: m["source"].update(url="x"), "unknown key 'url' in source"),
    ],
)
def test_refuses_a_manifest_that_is_not_right(
    folder: Path, change: Callable[[dict[str, Any]], object], reason: str
) -> None:
    edit(folder, change)
    with pytest.raises(TamizError, match=reason):
        Bundle.open(folder)


def test_a_missing_folder_and_one_that_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(TamizError, match="no such folder, expected a tamiz bundle"):
        Bundle.open(tmp_path / "none")
    (tmp_path / "model.gguf").touch()
    with pytest.raises(TamizError, match=r"model\.gguf: is a file, expected a tamiz bundle"):
        Bundle.open(tmp_path / "model.gguf")
    with pytest.raises(TamizError, match=r"not a tamiz bundle, try: tamiz export "):
        Bundle.open(tmp_path)


def test_a_bundle_of_a_newer_tamiz_names_it(folder: Path) -> None:
    edit(folder, lambda raw: raw.update(format=FORMAT + 1, tamiz="7.8.9"))
    with pytest.raises(
        TamizError, match=rf"reads {FORMAT}; try the tamiz that wrote it: '7\.8\.9'"
    ):
        Bundle.open(folder)


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "a/../../b", "C:\\x"])
def test_refuses_external_data_outside_of_the_folder(folder: Path, location: str) -> None:
    (folder / "model.onnx").write_bytes(external(location))
    write_manifest(folder, "dense", Source("somewhere"))
    with pytest.raises(TamizError, match="external data names"):
        Bundle.open(folder)


def test_refuses_external_data_that_the_manifest_does_not_list(folder: Path) -> None:
    (folder / "model.onnx").write_bytes(external("other.data"))
    write_manifest(folder, "dense", Source("somewhere"))
    with pytest.raises(TamizError, match=r"other\.data: not among the files"):
        Bundle.open(folder)


def test_refuses_external_data_that_is_too_short(folder: Path) -> None:
    (folder / "model.onnx").write_bytes(external("model.onnx.data", 8))
    write_manifest(folder, "dense", Source("somewhere"))
    with pytest.raises(TamizError, match=r"model\.onnx\.data: has 7 bytes, model\.onnx needs 8"):
        Bundle.open(folder)


def test_refuses_a_link_that_leads_out_of_the_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"weights")
    (folder / "model.onnx.data").unlink()
    (folder / "model.onnx.data").symlink_to(tmp_path / "outside")
    with pytest.raises(TamizError, match="is a link out of the folder"):
        Bundle.open(folder)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "not valid JSON"),
        ("[]", "expected a JSON object, found list"),
        ('{"a": 1, "a": 2}', "duplicate key 'a'"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": -Infinity}', "-Infinity is not JSON"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_reads_json_strictly(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "file.json").write_text(content)
    with pytest.raises(TamizError, match=reason):
        read_json(tmp_path / "file.json")


def test_infinity_is_read_as_transformers_writes_it(tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text('{"limit": [0.0, Infinity]}')
    assert read_json(tmp_path / "file.json") == {"limit": [0.0, {"__float__": "Infinity"}]}


def test_refuses_huge_json(tmp_path: Path) -> None:
    with (tmp_path / "file.json").open("wb") as file:
        file.truncate(65 << 20)
    with pytest.raises(TamizError, match="larger than 64 MB"):
        read_json(tmp_path / "file.json")


def test_refuses_a_model_that_is_no_protobuf(folder: Path) -> None:
    (folder / "model.onnx").write_bytes(b"\x3a\xff\xff\x03text")
    write_manifest(folder, "dense", Source("somewhere"))
    with pytest.raises(TamizError, match="not a well-formed ONNX model"):
        Bundle.open(folder)


def test_writing_puts_the_folder_in_place_at_the_end(tmp_path: Path) -> None:
    with writing(tmp_path / "deep" / "out") as folder:
        write_json(folder / "file.json", {"a": 1})
        assert not (tmp_path / "deep" / "out").exists()
    assert os.listdir(tmp_path / "deep") == ["out"]
    assert read_json(tmp_path / "deep" / "out" / "file.json") == {"a": 1}


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_writing_leaves_nothing_behind_on_failure(
    tmp_path: Path, error: type[BaseException]
) -> None:
    def write() -> None:
        with writing(tmp_path / "out") as folder:
            (folder / "half").touch()
            raise error

    with pytest.raises(error):
        write()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "error",
    [
        OSError("5 requested and 2 written"),  # as NumPy says it
        OSError(errno.ENOSPC, "no more", "new/model.onnx"),
        OSError(errno.EFBIG, "too large"),
    ],
)
def test_writing_without_space_names_the_bundle(tmp_path: Path, error: OSError) -> None:
    reason = f"out: cannot be written: .*{error.strerror or error}"
    with pytest.raises(UnwritableError, match=reason), writing(tmp_path / "out"):
        raise error


def test_what_cannot_be_read_while_writing_names_itself(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), writing(tmp_path / "out"):
        raise PermissionError(errno.EACCES, "Permission denied", "source")


def test_writing_replaces_a_bundle_only_when_all_went_well(folder: Path) -> None:
    with pytest.raises(RuntimeError), writing(folder):
        raise RuntimeError
    Bundle.open(folder)
    with writing(folder) as new:
        (new / "only").touch()
    assert os.listdir(folder) == ["only"]
    assert os.listdir(folder.parent) == ["bundle"]


def test_writing_refuses_other_peoples_files(tmp_path: Path) -> None:
    (tmp_path / "diary").touch()
    with pytest.raises(TamizError, match="holds files and is no tamiz bundle"):
        check_target(tmp_path)
    with pytest.raises(TamizError, match="exists and is no folder"):
        check_target(tmp_path / "diary")
    assert os.listdir(tmp_path) == ["diary"]


@pytest.mark.parametrize("name", ["NOTES.txt", "mine/model.gguf", "link"])
def test_writing_refuses_a_bundle_with_other_peoples_files(folder: Path, name: str) -> None:
    (folder / "mine").mkdir()
    (folder / name).symlink_to(folder / "mine") if name == "link" else (folder / name).touch()
    with pytest.raises(TamizError, match=f"is not overwritten, {name} is not of the bundle"):
        check_target(folder)


def test_writing_refuses_a_bundle_whose_files_it_cannot_tell(folder: Path) -> None:
    (folder / "tamiz.json").write_text("{")
    with pytest.raises(TamizError, match=r"tamiz\.json: not valid JSON"):
        check_target(folder)


def test_writing_refuses_what_holds_the_source_or_lies_in_it(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(TamizError, match=r"bundle lies inside of .*, expected them apart"):
        check_target(tmp_path, folder)
    with pytest.raises(TamizError, match=r"bundle/sub lies inside of .*, expected them apart"):
        check_target(folder / "sub", folder)
    with pytest.raises(TamizError, match="is the source itself"):
        check_target(tmp_path / "none" / ".." / "bundle", folder)


@pytest.mark.parametrize("target", [".", "..", "../bundle"])
def test_writing_refuses_the_current_folder(
    folder: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(TamizError, match="holds the current folder"):
        check_target(Path(target))


def test_writing_through_a_path_that_goes_back(folder: Path) -> None:
    (folder / "empty").mkdir()
    with writing(folder / "empty" / "..") as new:
        (new / "only").touch()
    assert os.listdir(folder) == ["only"]
    assert os.listdir(folder.parent) == ["bundle"]


def test_a_bundle_comes_back_where_the_new_one_cannot_take_its_place(folder: Path) -> None:
    with pytest.raises(FileNotFoundError), writing(folder) as new:
        new.rmdir()
    Bundle.open(folder)
    assert os.listdir(folder.parent) == ["bundle"]
