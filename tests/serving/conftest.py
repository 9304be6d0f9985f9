"""A tiny model that is served, and clients of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from kit.equal_runs import MODELS, build_model
from kit.served import served
from tamiz.plugins import Plugins
from tamiz.runtime.model import Model
from tamiz.serving.api.served import State
from tamiz.serving.app import make_app
from tamiz.serving.catalog import Catalog, ServedDecoder
from tamiz.serving.engine import Limits
from tamiz.serving.settings import Settings


@pytest.fixture(scope="session")
def tiny(plugins: Plugins, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of a tiny llama of 512 positions."""
    return build_model(tmp_path_factory.mktemp("served"), *MODELS["q4_1"], plugins)


@pytest.fixture(scope="session")
def model(tiny: Path) -> Model:
    """The model, loaded once."""
    return Model.load(tiny, 2)


@pytest.fixture(scope="session")
def client(tiny: Path) -> Iterator[TestClient]:
    """A client of a server that has the model under the name `tiny`."""
    catalog = Catalog()
    catalog.add(ServedDecoder.start("tiny", Model.load(tiny, 2), Limits(4096)))
    with TestClient(make_app(State(catalog, Settings()))) as client:
        yield client
    catalog.close(0)


@pytest.fixture(scope="session")
def url(tiny: Path) -> Iterator[str]:
    """Address of a server in a thread, for clients that speak HTTP."""
    with served({"tiny": tiny}) as address:
        yield address
