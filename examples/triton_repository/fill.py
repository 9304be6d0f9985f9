"""Writes a model repository of the Triton Inference Server for a bundle.

    python examples/triton_repository/fill.py BUNDLE REPOSITORY --name sieve --threads 4
    docker run --rm -p 8000:8000 -v $PWD/REPOSITORY:/models \\
        nvcr.io/nvidia/tritonserver:25.01-py3 tritonserver --model-repository=/models

    REPOSITORY/sieve/config.pbtxt       names the op library
    REPOSITORY/sieve/1/model.onnx       and model.onnx.data
    REPOSITORY/sieve/libtamiz_ops.so

The onnxruntime backend loads the library by `op_library_filename`, an absolute path as Triton sees
it. Inputs and outputs are completed from the model. Triton keeps no KV cache between requests: a
client sends every `present…` output back as `past…`.
"""

from __future__ import annotations

import argparse
import re
import shutil
import string
from pathlib import Path

import tamiz_ops

TEMPLATE = Path(__file__).with_name("config.pbtxt")


def fill(bundle: Path, repository: Path, name: str, mounted: str, threads: int) -> Path:
    """Writes the model's folder.

    Args:
        bundle: Folder with ``model.onnx`` and its data.
        repository: The model repository; made where it is not there.
        name: The model's name in Triton: letters, digits, ``_`` and ``-``.
        mounted: Where Triton sees the repository.
        threads: Threads of a run.

    Returns:
        The model's folder.

    Raises:
        ValueError: A name or a path that the configuration cannot hold.
        FileExistsError: The repository has a model of this name.
    """
    if not re.fullmatch(r"[\w-]+", name) or not re.fullmatch(r"/[\w./-]*", mounted):
        raise ValueError(f"found {name} in {mounted}, expected letters, digits, _, - and /")
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    for file in sorted(bundle.glob("model.onnx*")):
        shutil.copyfile(file, folder / "1" / file.name)
    library = shutil.copyfile(tamiz_ops.library_path(), folder / "libtamiz_ops.so")
    values = {
        "name": name,
        "library": f"{mounted.rstrip('/')}/{name}/{library.name}",
        "threads": str(threads),
    }
    template = string.Template(TEMPLATE.read_text("utf-8"))
    (folder / "config.pbtxt").write_text(template.substitute(values), "utf-8")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("repository", type=Path)
    parser.add_argument("--name", default="sieve")
    parser.add_argument("--mounted", default="/models", help="The repository as Triton sees it.")
    parser.add_argument("--threads", type=int, default=4)
    arguments = parser.parse_args()
    print(fill(**vars(arguments)))


if __name__ == "__main__":
    main()
