"""The bundle: a folder with the model, its tokenizer, its configuration and a manifest.

Imported where models run, so it needs nothing but the standard library.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from tamiz import __version__
from tamiz.files.errors import NO_SPACE, NoSpaceError, TamizError
from tamiz.files.external_data import External, external_tensors, inside, locations
from tamiz.files.onnx_versions import OLDEST_ONNXRUNTIME, onnx_versions
from tamiz.files.text_file import read_json, write_json

MANIFEST = "tamiz.json"
MODEL = "model.onnx"
DATA = "model.onnx.data"
VOCABULARY = "tokenizer.json"
REPORT = "report.json"
REPORT_PAGE = "report.html"

FORMAT = 1
KINDS = ("dense", "built")
WEIGHTS = ("float32", "stored")
KV_CACHES = ("exact", "shared")


@dataclass(frozen=True)
class File:
    """Size in bytes and SHA-256 (hexadecimal) of one file of a bundle."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Source:
    """What a bundle was exported from: a path or name, and the SHA-256 of the file if it is one."""

    name: str
    sha256: str | None = None


@dataclass(frozen=True)
class Manifest:
    """The contents of ``tamiz.json``.

    Attributes:
        kind: ``dense`` (the reference model) or ``built``.
        source: What the dense bundle was exported from.
        files: Every file of the bundle by name, except the manifest.
        techniques: Version and configuration of the techniques of a built bundle, by name.
        policy: SHA-256 of the choices that the build followed; None for a dense bundle.
        kv_cache: ``shared`` if every layer can append to one buffer of full capacity in place,
            ``exact`` if the past must have exactly the length that was seen.
        tamiz: Version of tamiz that wrote the bundle.
        min_onnxruntime: Oldest onnxruntime that runs it.
        format: Version of the manifest's format.
        weights: Of a dense bundle, ``float32`` or ``stored``: in the formats of the source, read by
            ops of the domain `tamiz`. Older manifests lack this one and those that follow.
        unsafe: Techniques that a gate of the build refused, by site, comma-separated.
        equal_runs: Whether a run of several tokens gives bit for bit the logits of single steps
            without `step_techniques`, so that one run can verify guessed tokens.
        step_techniques: Techniques that act on single steps only.
    """

    kind: str
    source: Source
    files: dict[str, File]
    techniques: dict[str, dict[str, Any]] = field(default_factory=dict)
    policy: str | None = None
    kv_cache: str = "exact"
    tamiz: str = __version__
    min_onnxruntime: str = OLDEST_ONNXRUNTIME
    format: int = FORMAT
    unsafe: dict[str, str] = field(default_factory=dict)
    weights: str = WEIGHTS[0]
    equal_runs: bool = False
    step_techniques: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Bundle:
    """An opened bundle: `open` has checked its manifest, its files' sizes and their places."""

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Bundle:
        """Opens and validates a bundle without reading its weights.

        Raises:
            TamizError: The folder is no bundle, the manifest is malformed or of another format, a
                file is missing, of another size or elsewhere, or the model points to such data.
        """
        folder = Path(path)
        if not folder.is_dir():
            found = "is a file" if folder.is_file() else "no such folder"
            raise TamizError(f"{folder}: {found}, expected a tamiz bundle of 'tamiz build'")
        if not (folder / MANIFEST).is_file():
            raise TamizError(f"{folder}: not a tamiz bundle, try: tamiz export {folder} -o NEW")
        bundle = cls(folder, _manifest(folder / MANIFEST))
        for name, expected in bundle.manifest.files.items():
            size = bundle.file(name).stat().st_size
            if size != expected.size:
                place = folder / name
                raise TamizError(f"{place}: has {size} bytes, the manifest says {expected.size}")
        for location, size in sorted(locations(bundle.external).items()):
            _check_name(bundle.model, "external data", location)
            actual, place = bundle.file(location).stat().st_size, folder / location
            if actual < size:
                raise TamizError(f"{place}: has {actual} bytes, {MODEL} needs {size}")
        return bundle

    @classmethod
    def open_dense(cls, path: str | os.PathLike[str]) -> Bundle:
        """Opens a dense bundle.

        Raises:
            TamizError: As `open`, and if the bundle is a built one.
        """
        bundle = cls.open(path)
        if bundle.manifest.kind != "dense":
            raise TamizError(f"{path}: is a built bundle, expected a dense one")
        return bundle

    @property
    def model(self) -> Path:
        """Path of the ONNX model."""
        return self.file(MODEL)

    @cached_property
    def external(self) -> tuple[External, ...]:
        """The tensors of the model that lie outside of its file."""
        return external_tensors(self.model)

    @property
    def size(self) -> int:
        """Bytes of all files that the manifest lists."""
        return sum(file.size for file in self.manifest.files.values())

    @property
    def has_tokenizer(self) -> bool:
        """Whether it can read text."""
        return VOCABULARY in self.manifest.files

    def file(self, name: str) -> Path:
        """Path of one file that the manifest lists.

        Raises:
            TamizError: The manifest does not list it, it is missing, or a link leads elsewhere.
        """
        path = self.path / name
        if name not in self.manifest.files:
            raise TamizError(f"{path}: not among the files of the bundle's {MANIFEST}")
        try:
            inside(self.path, name)
        except TamizError as error:
            raise TamizError(f"{path}: is listed in the bundle's {MANIFEST}: {error}") from error
        return path

    def json(self, name: str) -> dict[str, Any]:
        """Contents of one of the bundle's JSON files, ``config.json`` for one."""
        return read_json(self.file(name))

    def verify(self) -> None:
        """Compares the SHA-256 of every file with the manifest.

        Raises:
            TamizError: A file has other contents than when the bundle was written.
        """
        for name, expected in self.manifest.files.items():
            if sha256(self.file(name)) != expected.sha256:
                raise TamizError(f"{self.path / name}: its SHA-256 is not the manifest's")


def sha256(path: Path) -> str:
    """SHA-256 of a file in hexadecimal."""
    import hashlib  # brings OpenSSL, 4 MB, which a process that only runs a bundle does not need

    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()


@contextmanager
def writing(target: str | os.PathLike[str], scratch: Path | None = None) -> Iterator[Path]:
    """A folder to write a bundle into, which takes the place of `target` when all went well.

    `target` does not exist until the end, and a failure leaves nothing behind; what a killed
    process left is removed by the next one that writes there. An older bundle at `target` is
    replaced.

    Args:
        target: Where the bundle goes.
        scratch: Folder on the same file system to write in, which is emptied first and removed in
            the end; None for a new one beside `target`.

    Yields:
        A new empty folder.

    Raises:
        TamizError: `target` must not be written; see `check_target`.
        NoSpaceError: There was no space for it.
    """
    check_target(Path(target))
    place = Path(target).resolve()
    place.parent.mkdir(parents=True, exist_ok=True)
    import shutil  # not for reading: with tempfile 1 MB, where memory is measured

    from tamiz.files.scratch import OLD, WRITTEN, held_folder, restore

    if scratch is None:
        with held_folder(place) as held, writing(target, held / WRITTEN) as folder:
            yield folder
        return
    restore(scratch, place)
    shutil.rmtree(scratch, ignore_errors=True)
    folder = scratch / "new"
    try:
        folder.mkdir(parents=True)
        yield folder
        try:
            if place.exists():
                place.rename(scratch / OLD)
            folder.rename(place)
        except BaseException:
            restore(scratch, place)
            raise
    except OSError as error:
        if error.errno not in (None, *NO_SPACE):  # of a file that is read, maybe
            raise
        reason = error.strerror or f"no space left ({error})"  # NumPy's own has no number
        raise NoSpaceError(f"{target}: cannot be written: {reason}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def check_target(target: Path, source: Path | None = None) -> None:
    """Refuses a place where a bundle must not be written.

    Args:
        target: Where the bundle is to go.
        source: What it is made from.

    Raises:
        TamizError: `target` is a file, a link, the current folder or one around it, or a folder
            that holds what no bundle has written there; or one of `target` and `source` lies inside
            of the other.
    """
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise TamizError(f"{target}: exists and is no folder, expected a new one")
    if Path.cwd().is_relative_to(target.resolve()):
        raise TamizError(f"{target}: holds the current folder, expected another one")
    if source is not None and target.resolve() == source.resolve():
        raise TamizError(f"{target}: is the source itself, expected another folder")
    for inner, outer in ((source, target), (target, source)):
        if inner and outer and inner.resolve().is_relative_to(outer.resolve()):
            raise TamizError(f"{target}: {inner} lies inside of {outer}, expected them apart")
    if target.is_dir() and any(target.iterdir()):
        _check_only_a_bundle(target)


def _check_only_a_bundle(folder: Path) -> None:
    """Refuses a folder that is to be replaced unless all files in it are those of a bundle."""
    if not (folder / MANIFEST).is_file():
        raise TamizError(f"{folder}: holds files and is no tamiz bundle, so it is not overwritten")
    written = {MANIFEST, *_manifest(folder / MANIFEST).files}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name not in written and (path.is_symlink() or not path.is_dir()):
            raise TamizError(f"{folder}: is not overwritten, {name} is not of the bundle there")


def write_manifest(
    folder: Path,
    kind: str,
    source: Source,
    techniques: Mapping[str, Mapping[str, Any]] | None = None,
    policy: str | None = None,
    kv_cache: str = "exact",
    unsafe: Mapping[str, str] | None = None,
    weights: str = WEIGHTS[0],
    equal_runs: bool = False,
    step_techniques: Iterable[str] = (),
) -> Manifest:
    """Writes the manifest of a folder whose files are complete; the fields are `Manifest`'s."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    names = sorted(path.relative_to(folder).as_posix() for path in paths)
    files = {
        name: File((folder / name).stat().st_size, sha256(folder / name))
        for name in names
        if name != MANIFEST
    }
    manifest = Manifest(
        kind,
        source,
        files,
        {name: dict(entry) for name, entry in (techniques or {}).items()},
        policy,
        kv_cache,
        min_onnxruntime=onnx_versions(folder / MODEL).min_onnxruntime,
        unsafe=dict(unsafe or {}),
        weights=weights,
        equal_runs=equal_runs,
        step_techniques=sorted(step_techniques),
    )
    write_json(folder / MANIFEST, asdict(manifest))
    return manifest


def _manifest(path: Path) -> Manifest:
    """Reads a manifest; the format's version is checked before anything else."""
    raw = read_json(path)
    if type(raw.get("format")) is not int or raw["format"] != FORMAT:
        raise TamizError(
            f"{path}: format is {raw.get('format')!r}, this tamiz ({__version__}) reads {FORMAT}; "
            f"try the tamiz that wrote it: {raw.get('tamiz')!r:.20}"
        )
    later = {"unsafe": {}, "weights": WEIGHTS[0], "equal_runs": False, "step_techniques": []}
    raw = {**later, **raw}
    _check_fields(path, raw, Manifest, "the manifest")
    for key, values in (("kind", KINDS), ("kv_cache", KV_CACHES), ("weights", WEIGHTS)):
        if raw[key] not in values:
            raise TamizError(f"{path}: {key} is {raw[key]!r}, expected {' or '.join(values)}")
    source = _record(path, raw["source"], Source, "source")
    files: dict[str, File] = {}
    for name, entry in _object(path, raw["files"], "files").items():
        _check_name(path, "files", name)
        files[name] = _record(path, entry, File, f"files.{name}")
        if files[name].size < 0:
            raise TamizError(f"{path}: files.{name}.size is {files[name].size}, expected ≥ 0")
    if MODEL not in files:
        raise TamizError(f"{path}: files lacks {MODEL}")
    techniques = _object(path, raw["techniques"], "techniques")
    for name, entry in techniques.items():
        if set(_object(path, entry, f"techniques.{name}")) != {"version", "config"}:
            raise TamizError(f"{path}: techniques.{name} is {entry!r}, expected version and config")
        _object(path, entry["config"], f"techniques.{name}.config")
    for site, name in _object(path, raw["unsafe"], "unsafe").items():
        _check_type(path, f"unsafe.{site}", name, "str")
    kinds = {"tamiz": "str", "min_onnxruntime": "str", "policy": "str | None"}
    kinds |= {"equal_runs": "bool", "step_techniques": "list"}
    for key, kind in kinds.items():
        _check_type(path, key, raw[key], kind)
    for name in raw["step_techniques"]:
        _check_type(path, "step_techniques", name, "str")
    if not re.fullmatch(r"\d+\.\d+", raw["min_onnxruntime"], re.ASCII):
        raise TamizError(
            f"{path}: min_onnxruntime is {raw['min_onnxruntime']!r}, expected a version like 1.20"
        )
    return Manifest(**{**raw, "source": source, "files": files, "techniques": techniques})


def _record(path: Path, value: Any, kind: type[Any], where: str) -> Any:
    """A flat dataclass of strings and integers from a JSON object."""
    raw = _object(path, value, where)
    _check_fields(path, raw, kind, where)
    for f in fields(kind):
        _check_type(path, f"{where}.{f.name}", raw[f.name], str(f.type))
    return kind(**raw)


def _object(path: Path, value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TamizError(f"{path}: {where} is {value!r}, expected an object")
    return value


def _check_fields(path: Path, raw: Mapping[str, Any], kind: type[Any], where: str) -> None:
    names = {f.name for f in fields(kind)}
    if unknown := sorted(set(raw) - names):
        raise TamizError(f"{path}: unknown key {unknown[0]!r} in {where}")
    if missing := sorted(names - set(raw)):
        raise TamizError(f"{path}: {where} lacks the key {missing[0]!r}")


def _check_type(path: Path, where: str, value: Any, expected: str) -> None:
    if type(value).__name__.replace("NoneType", "None") not in expected.split(" | "):
        raise TamizError(f"{path}: {where} is {value!r}, expected {expected}")


def _check_name(path: Path, where: str, name: str) -> None:
    """Holds a file name to a plain relative path inside the folder."""
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or name.startswith("/") or "\\" in name or ":" in name:
        raise TamizError(f"{path}: {where} names {name!r}, expected a path inside the folder")
