import importlib
import json
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import onnx_ir as ir
import pytest
from pydantic import Field, create_model

from kit.command_line import ok
from tamiz.api.hookspecs import Exporter, hookimpl
from tamiz.api.passes import GraphPass, Phase
from tamiz.api.site import SiteKind
from tamiz.api.technique import Claim, Mode, Resource, Technique, TechniqueConfig
from tamiz.cli import build, plan
from tamiz.files.errors import TamizError
from tamiz.plugins import load
from tamiz.survey.survey import run_passes

Install = Callable[..., EntryPoint]
#: A model that the hooks of these tests do not look at.
MODEL = ir.Model(ir.Graph([], [], nodes=[]), ir_version=10)


@pytest.fixture
def install() -> Iterator[Install]:
    """Makes a module with the given hooks and returns an entry point that names it."""
    made = []

    def make(name: str, **hooks: Any) -> EntryPoint:
        module = ModuleType(f"fake_{name.replace('-', '_')}")
        for hook, value in hooks.items():
            marked = hasattr(value, "tamiz_impl") or not callable(value)
            setattr(module, hook, value if marked else hookimpl(value))
        sys.modules[module.__name__] = module
        made.append(module.__name__)
        return EntryPoint(name, module.__name__, "tamiz")

    yield make
    for name in made:
        del sys.modules[name]


def switched(flag: str) -> type[TechniqueConfig]:
    """A configuration whose one field has this flag."""
    extra = Field(0, ge=0, description="x", json_schema_extra={"flag": flag})
    return create_model("Config", __base__=TechniqueConfig, field=(int, extra))


def technique(name: str, config: type[TechniqueConfig] = TechniqueConfig) -> Technique:
    return Technique(
        name=name,
        version="1",
        summary=name,
        config=config,
        site_kinds=frozenset({SiteKind.LINEAR}),
        claims=(Claim(Resource.WEIGHTS, Mode.EXCLUSIVE),),
        fit=lambda *_: None,
        rewrite=lambda *_: [],
    )


def exporter(name: str) -> Exporter:
    return Exporter(name, name, lambda source: True, lambda source, folder: source)


def test_collects_what_plugins_offer(install: Install) -> None:
    loaded = load(
        [
            install("one", tamiz_techniques=lambda: [technique("zeta")]),
            install("two", tamiz_techniques=lambda: [technique("alpha")]),
            install("three", tamiz_exporters=lambda: [exporter("soon"), exporter("late")]),
        ]
    )
    assert list(loaded.techniques()) == ["alpha", "zeta"]
    assert [e.name for e in loaded.exporters()] == ["soon", "late"]
    assert loaded.broken() == []


def test_pluggy_orders_the_exporters_of_plugins(install: Install) -> None:
    first, last = hookimpl(tryfirst=True), hookimpl(trylast=True)
    loaded = load(
        [
            install("a", tamiz_exporters=first(lambda: [exporter("first")])),
            install("b", tamiz_exporters=lambda: [exporter("one"), exporter("two")]),
            install("c", tamiz_exporters=last(lambda: [exporter("last")])),
        ]
    )
    assert [e.name for e in loaded.exporters()] == ["first", "one", "two", "last"]


def raises() -> list[Technique]:
    raise RuntimeError("no luck\nsecond line")


@pytest.mark.parametrize(
    ("hooks", "reason"),
    [
        ({"tamiz_techniques": raises}, "RuntimeError: no luck second line"),
        ({"tamiz_techniques": lambda: ["text"]}, "declares 'text' as technique"),
        ({"tamiz_no_such_hook": lambda: []}, "tamiz_no_such_hook"),
        ({"tamiz_techniques": lambda model: []}, "are declared in the hookimpl but"),
        (
            {"tamiz_techniques": lambda: [technique("good")]},
            "'good', which another plugin declares",
        ),
        ({"tamiz_techniques": lambda: None}, "TypeError"),
        (
            {"tamiz_techniques": lambda: [technique("output")]},
            "flag --output of output, which tamiz has",
        ),
        (
            {"tamiz_techniques": lambda: [technique("other", switched("--good"))]},
            "flag --good of other, which good has",
        ),
        ({"tamiz_graph_passes": lambda: ["text"]}, "declares 'text' as graph pass"),
    ],
)
def test_a_broken_plugin_is_named_and_skipped(
    install: Install, hooks: dict[str, Any], reason: str
) -> None:
    good = install("a-good-one", tamiz_techniques=lambda: [technique("good")])
    loaded = load([install("broken", **hooks), good], own_flags={"--output"})
    assert list(loaded.techniques()) == ["good"]
    (broken,) = loaded.broken()
    assert broken.name == "broken"
    assert broken.error is not None
    assert reason in broken.error
    assert "\n" not in broken.error
    assert not loaded.manager.has_plugin("broken")


def test_a_module_that_is_not_there_is_reported() -> None:
    (broken,) = load([EntryPoint("gone", "no_such_module_anywhere", "tamiz")]).broken()
    assert broken.error == "ModuleNotFoundError: No module named 'no_such_module_anywhere'"


def test_two_plugins_of_one_name(install: Install) -> None:
    first = install("same", tamiz_techniques=lambda: [technique("first")])
    loaded = load([first, EntryPoint("same", "os", "tamiz")])
    assert list(loaded.techniques()) == ["first"]
    assert [p.error for p in loaded.broken()] == [
        "another installed distribution has a plugin of this name"
    ]


def test_disabled_plugins_are_not_imported(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAMIZ_DISABLE_PLUGINS", "gone, other")
    other = install("other", tamiz_techniques=lambda: [technique("other")])
    loaded = load([EntryPoint("gone", "no_such_module_anywhere", "tamiz"), other])
    assert loaded.techniques() == {}
    assert [(p.name, p.disabled, p.error) for p in loaded.installed] == [
        ("gone", True, None),
        ("other", True, None),
    ]


def test_disabling_what_is_not_installed_is_an_error(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAMIZ_DISABLE_PLUGINS", "typo")
    with pytest.raises(TamizError, match="names 'typo', which is no installed plugin"):
        load([install("other")])


def test_hooks_that_raise_later_are_blamed_on_their_plugin(install: Install) -> None:
    def broken(model: object) -> None:
        raise IndexError("no luck")

    loaded = load([install("sites", tamiz_find_sites=broken)])
    with pytest.raises(TamizError, match=r"^plugin sites is broken .* IndexError: no luck"):
        loaded.find_sites(MODEL)


def test_the_first_plugin_that_knows_a_model_finds_its_sites(install: Install) -> None:
    knows = install("knows", tamiz_find_sites=lambda model: ([], []))
    not_asked = install("asked-last", tamiz_find_sites=lambda model: 1 / 0)
    later = install("later", tamiz_find_sites=lambda model: None)
    assert load([knows, not_asked, later]).find_sites(MODEL) == ([], [])


def test_tryfirst_goes_first(install: Install) -> None:
    def knows(model: object) -> tuple[list[str], list[str]]:
        return ["first"], []

    first = hookimpl(tryfirst=True)(knows)
    plugins = load(
        [install("a", tamiz_find_sites=first), install("z", tamiz_find_sites=lambda model: 1 / 0)]
    )
    assert plugins.find_sites(MODEL) == (["first"], [])


def test_a_wrapper_changes_what_others_offer(install: Install) -> None:
    def off(*_: object) -> Generator[None, list[list[Technique]], list[list[Technique]]]:
        offered = yield
        return [[replace(one, default=False) for one in part] for part in offered]

    on = replace(technique("eager"), default=True)
    wrapping = install("wrapping", tamiz_techniques=hookimpl(wrapper=True)(off))
    loaded = load([install("offers", tamiz_techniques=lambda: [on]), wrapping])
    assert loaded.broken() == []
    assert not loaded.techniques()["eager"].default
    assert [t.name for t in loaded.installed[1].techniques] == ["eager"]  # it answers for its list


def test_a_wrapper_that_raises_is_the_one_to_blame(install: Install) -> None:
    def broken(model: object) -> Generator[None, object, object]:
        yield
        raise IndexError("no luck")

    wrapping = install("wrapping", tamiz_find_sites=hookimpl(wrapper=True)(broken))
    knows = install("knows", tamiz_find_sites=lambda model: ([], []))
    with pytest.raises(TamizError, match=r"^plugin wrapping is broken .* IndexError: no luck"):
        load([knows, wrapping]).find_sites(MODEL)


def a_pass(name: str, needs: str = "", provides: str = "") -> type[GraphPass]:
    """A pass of phase `recognise` that changes nothing."""

    def call(self: GraphPass, model: ir.Model) -> ir.passes.PassResult:
        return ir.passes.PassResult(model, modified=False)

    members: dict[str, Any] = {
        "needs": frozenset(needs.split()),
        "provides": frozenset(provides.split()),
    }
    return type(
        name, (GraphPass,), {"name": name, "phase": Phase.RECOGNISE, "call": call, **members}
    )


def test_passes_run_after_those_that_provide_what_they_need(install: Install) -> None:
    a, b, c, d = a_pass("a", "x y"), a_pass("b", "y", "x"), a_pass("c", "", "y"), a_pass("d")
    for name, offered in (("one", [a, b, c, d]), ("two", [d, c, b, a])):
        loaded = load([install(name, tamiz_graph_passes=lambda offered=offered: offered)])
        assert loaded.broken() == []
        assert [p.name for p in loaded.passes(Phase.RECOGNISE)] == ["c", "b", "a", "d"]


@pytest.mark.parametrize(
    ("offered", "reason"),
    [
        (a_pass("b", "x", "y"), "the graph passes a → b → a need each other"),
        (a_pass("b", "z"), "the graph pass 'b', which needs 'z', and no installed pass provides"),
        (a_pass("a"), "the graph pass 'a', which another plugin declares"),
    ],
)
def test_passes_that_cannot_be_ordered(
    install: Install, offered: type[GraphPass], reason: str
) -> None:
    first = [a_pass("a", "y", "x"), a_pass("c", "", "y")]
    one = install("one", tamiz_graph_passes=lambda: first)
    two = install("two", tamiz_graph_passes=lambda: [offered])
    (broken,) = load([one, two]).broken()
    assert broken.name == "two"
    assert broken.error is not None
    assert reason in broken.error


def test_a_pass_that_raises_is_blamed(install: Install) -> None:
    class Broken(GraphPass):
        name, phase = "broken-pass", Phase.FUSE

        def call(self, model: ir.Model) -> ir.passes.PassResult:
            raise ValueError("no luck")

    loaded = load([install("passes", tamiz_graph_passes=lambda: [Broken])])
    model = ir.Model(ir.Graph([], [], nodes=[]), ir_version=10)
    with pytest.raises(TamizError, match=r"^graph pass broken-pass is broken"):
        run_passes(model, loaded, Phase.FUSE)


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt:"),
        ("class Stop(BaseException): pass\nraise Stop('now')", "Stop: now"),
    ],
)
@pytest.mark.parametrize("where", ["import", "hook"])
def test_a_plugin_that_ends_the_program_is_skipped(
    tmp_path: Path,
    install: Install,
    monkeypatch: pytest.MonkeyPatch,
    statement: str,
    error: str,
    where: str,
) -> None:
    (tmp_path / "leaves_early.py").write_text(statement)
    monkeypatch.syspath_prepend(tmp_path)
    early = EntryPoint("early", "leaves_early", "tamiz")
    if where == "hook":
        early = install("early", tamiz_techniques=lambda: importlib.import_module("leaves_early"))
    other = install("other", tamiz_techniques=lambda: [technique("good")])
    loaded = load([early, other])
    assert [(plugin.name, plugin.error) for plugin in loaded.broken()] == [("early", error)]
    assert list(loaded.techniques()) == ["good"]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGALRM"])
def test_a_signal_waits_until_a_plugin_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It must not leave half a module behind, nor be taken for a broken plugin."""
    module = f"ended_by_{name.lower()}"
    text = f"import os, signal\nos.kill(os.getpid(), signal.{name})\nwhole = True\n"
    (tmp_path / f"{module}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    number = signal.Signals[name]
    before = signal.signal(number, lambda received, _: sys.exit(128 + received))
    try:
        with pytest.raises(SystemExit) as caught:
            load([EntryPoint(module, module, "tamiz")])
    finally:
        signal.signal(number, before)
    assert caught.value.code == 128 + number
    assert sys.modules[module].whole


def test_a_name_that_no_switch_can_carry_is_refused() -> None:
    with pytest.raises(ValueError, match="'Block Quant'"):
        technique("Block Quant")


def test_the_built_in_plugins_work() -> None:
    loaded = load()
    assert loaded.broken() == []
    assert "block-quant" in loaded.techniques()


def test_a_flag_of_the_commands_is_not_for_techniques(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every option of `plan` and `build`, as click has them."""
    taken = [flag for flag in own_flags() if flag.startswith("--")]
    assert {"--recipe", "--policy", "--strip-dense", "--help", "--help-technique"} <= set(taken)
    for flag in taken:
        name = flag.removeprefix("--")
        point = install(name, tamiz_techniques=lambda name=name: [technique(name)])
        monkeypatch.setattr("tamiz.plugins.entry_points", lambda group, point=point: [point])
        (plugin,) = json.loads(ok("plugins", "--json"))["plugins"]
        assert f"flag {flag} of {name}, which tamiz has" in plugin["error"]


def own_flags() -> set[str]:
    return {
        flag
        for command in (build.command, plan.command)
        for parameter in (*command.params, click.Option(["--help"]))
        for flag in (*parameter.opts, *parameter.secondary_opts)
    } | {"--help-technique"}
