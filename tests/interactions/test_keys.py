"""Who narrows the keys of one attention: window, filters, and techniques that need all keys."""

from typing import Any

import pytest

from tamiz.api.site import Site, SiteKind
from tamiz.api.technique import Claim, Fit, Mode, Resource, Technique, TechniqueConfig
from tamiz.planning.choice import Choice
from tamiz.planning.plan import ConflictError, choose, make_plan
from tamiz.plugins import Plugins

pytestmark = pytest.mark.slow

ATTENTION = Site("layers.0.attention", SiteKind.ATTENTION, "attention", 0)


def plan(plugins: Plugins, *names: str, others: tuple[Technique, ...] = ()) -> list[str]:
    choices = choose(plugins.techniques(), {name: {} for name in names})
    choices += [Choice(technique, TechniqueConfig()) for technique in others]
    return [c.technique.name for c in make_plan([ATTENTION], choices).sites[0].choices]


def test_a_window_comes_before_the_filter(plugins: Plugins) -> None:
    assert plan(plugins, "state-pack", "window-attention") == ["window-attention", "state-pack"]
    assert plan(plugins, "key-filter", "window-attention") == ["window-attention", "key-filter"]


def test_keys_have_one_sketch(plugins: Plugins) -> None:
    with pytest.raises(ConflictError, match=r"both claim the sketch of layers\.0\.attention"):
        plan(plugins, "state-pack", "key-filter")


def stub(name: str, **declared: Any) -> Technique:
    return Technique(
        name=name,
        version="1",
        summary="",
        config=TechniqueConfig,
        site_kinds=frozenset({SiteKind.ATTENTION}),
        fit=lambda *_: Fit({}, {}, {}, 0.0),
        rewrite=lambda *_: [],
        **declared,
    )


@pytest.mark.parametrize("narrowing", ["state-pack", "window-attention", "key-filter"])
def test_who_needs_all_keys_conflicts_with_who_narrows_them(
    plugins: Plugins, narrowing: str
) -> None:
    whole = stub("whole-scores", claims=(Claim(Resource.KEYS, Mode.EXCLUSIVE),))
    with pytest.raises(ConflictError, match="both claim the keys"):
        plan(plugins, narrowing, others=(whole,))


def test_who_works_on_windows_needs_the_window(plugins: Plugins) -> None:
    windows = stub("on-windows", claims=(), requires=frozenset({"windows", "refine"}))
    assert "on-windows" in plan(plugins, "window-attention", "state-pack", others=(windows,))
    with pytest.raises(ConflictError, match="requires windows"):
        plan(plugins, "state-pack", others=(windows,))
