import os
import pickle
import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tamiz.files.errors import UnwritableError
from tamiz.files.tensor_file import write_tensors

TENSORS = {"weight": np.ones((64, 64), np.float32)}


@pytest.fixture
def no_space() -> Iterator[None]:
    """Files may not become longer than 4 kB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("no_space")
def test_without_space_the_file_is_named_and_nothing_left(tmp_path: Path) -> None:
    with pytest.raises(UnwritableError, match=r"fit\.safetensors: cannot be written: ") as caught:
        write_tensors(tmp_path / "fit.safetensors", TENSORS, "kind", {})
    assert os.listdir(tmp_path) == []
    # From a process that fits it has to come whole.
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_without_the_folder_the_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnwritableError, match=r"none/fit\.safetensors: cannot be written: "):
        write_tensors(tmp_path / "none" / "fit.safetensors", TENSORS, "kind", {})
