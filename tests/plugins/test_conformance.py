"""Every installed technique holds the contract of `tamiz.testing`."""

import pytest

from kit.conformance import cases
from tamiz.testing import Case, TechniqueTests

pytestmark = pytest.mark.slow


class TestConformance(TechniqueTests):
    @pytest.fixture(params=cases(), ids=lambda case: case.technique)
    def case(self, request: pytest.FixtureRequest) -> Case:
        return request.param
