"""How many tokens the steps have that show what techniques lose."""

from typing import Any

import pytest

from tamiz.planning.choice import Choice, built_step_rows, step_rows
from tamiz.plugins import Plugins


def manifest(plugins: Plugins, **settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Techniques as a manifest has them."""
    known = plugins.techniques()
    return {
        name: {"config": Choice.of(known[name], fields).config.model_dump(mode="json")}
        for name, fields in ((key.replace("_", "-"), value) for key, value in settings.items())
    }


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        ({"block_quant": {"bits": 4}}, None),
        ({"head_shortlist": {"rows": 4}}, 4),
        ({"block_quant": {}, "head_shortlist": {}}, 8),
        ({"head_shortlist": {}, "state_pack": {}}, 1),
    ],
)
def test_steps_have_as_many_tokens_as_all_techniques_take(
    plugins: Plugins, settings: dict[str, Any], rows: int | None
) -> None:
    built = manifest(plugins, **settings)
    known = plugins.techniques()
    assert built_step_rows(known, built) == rows
    assert step_rows(Choice.of(known[name], about["config"]) for name, about in built.items()) == (
        rows
    )


def test_what_is_not_known_acts_on_steps_of_one_token(plugins: Plugins) -> None:
    known = plugins.techniques()
    assert built_step_rows(known, {"unheard-of": {"config": {}}}) == 1
    assert built_step_rows(known, {"head-shortlist": {"config": {"other": 1}}}) == 1
