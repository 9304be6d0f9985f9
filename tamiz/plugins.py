"""Loads plugins: exporters, graph passes and techniques, built-in and third-party alike.

A plugin that cannot be loaded, or declares something wrong, is reported by name and skipped.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, cast

import pluggy

from tamiz.api import hookspecs
from tamiz.api.hookspecs import Exporter
from tamiz.api.technique import Technique
from tamiz.files.errors import TamizError, blaming

if TYPE_CHECKING:
    import onnx_ir as ir

    from tamiz.api.passes import GraphPass, Note, Phase
    from tamiz.api.site import Site

GROUP = "tamiz"
DISABLE = "TAMIZ_DISABLE_PLUGINS"


@dataclass
class Plugin:
    """One installed plugin.

    Attributes:
        name: Name of its entry point.
        target: Module or object that the entry point names.
        distribution: The installed distribution it comes from.
        version: The distribution's version.
        disabled: True if `TAMIZ_DISABLE_PLUGINS` names it.
        error: Why it was skipped, in one line; None if it works.
        techniques: What it declares.
        exporters: What it offers.
        passes: Graph passes it offers.
    """

    name: str
    target: str
    distribution: str
    version: str
    disabled: bool = False
    error: str | None = None
    techniques: list[Technique] = field(default_factory=list)
    exporters: list[Exporter] = field(default_factory=list)
    passes: list[type[GraphPass]] = field(default_factory=list)


@dataclass(frozen=True)
class Plugins:
    """The loaded plugins.

    Attributes:
        manager: Pluggy's manager with every working plugin registered.
        installed: All plugins by name, also the disabled and broken ones.
    """

    manager: pluggy.PluginManager
    installed: list[Plugin]

    def techniques(self) -> dict[str, Technique]:
        """All declared techniques by name, in order of name."""
        found = {t.name: t for plugin in self.installed for t in plugin.techniques}
        return dict(sorted(found.items()))

    def exporters(self) -> list[Exporter]:
        """All exporters in the order in which they are asked."""
        found = (exporter for plugin in self.installed for exporter in plugin.exporters)
        return sorted(found, key=lambda exporter: (exporter.order, exporter.name))

    def passes(self, phase: Phase) -> list[type[GraphPass]]:
        """The graph passes of one phase in the order in which they run."""
        found = (graph_pass for plugin in self.installed for graph_pass in plugin.passes)
        return sorted((p for p in found if p.phase == phase), key=lambda p: (p.order, p.name))

    def find_sites(self, model: ir.Model) -> tuple[list[Site], list[Note]] | None:
        """What the first plugin that knows the model says of it, the latest by name first.

        Raises:
            TamizError: A plugin's hook fails.
        """
        hook = self.manager.hook.tamiz_find_sites
        for implementation in reversed(hook.get_hookimpls()):
            with blaming(f"plugin {implementation.plugin_name}"):
                found = cast("tuple[list[Site], list[Note]] | None", implementation.function(model))
                if found is not None:
                    return found
        return None

    def broken(self) -> list[Plugin]:
        """Plugins that were skipped because something is wrong with them."""
        return [plugin for plugin in self.installed if plugin.error is not None]


def load(points: Iterable[EntryPoint] | None = None, own_flags: Collection[str] = ()) -> Plugins:
    """Loads every plugin of the entry-point group ``tamiz``.

    Args:
        points: Entry points to load instead of the installed ones.
        own_flags: Options that the commands have themselves; no technique's flag may be one.

    Returns:
        The plugins. Broken ones carry their error and contribute nothing.

    Raises:
        TamizError: `TAMIZ_DISABLE_PLUGINS` names a plugin that is not installed.
    """
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    found = sorted(entry_points(group=GROUP) if points is None else points, key=lambda p: p.name)
    disabled = _disabled({point.name for point in found})
    loaded = Plugins(manager, [])
    for point in found:
        plugin = Plugin(
            point.name,
            point.value,
            point.dist.name if point.dist else "",
            point.dist.version if point.dist else "",
            disabled=point.name in disabled,
        )
        if not plugin.disabled:
            try:
                _register(loaded, plugin, point, own_flags)
            except (Exception, SystemExit) as error:  # whatever a stranger's module raises
                plugin.error = " ".join(f"{type(error).__name__}: {error}".split())
        loaded.installed.append(plugin)
    return loaded


def _disabled(installed: set[str]) -> set[str]:
    names = {name.strip() for name in os.environ.get(DISABLE, "").split(",")} - {""}
    if unknown := sorted(names - installed):
        raise TamizError(
            f"{DISABLE} names {unknown[0]!r}, which is no installed plugin; "
            f"installed are {', '.join(sorted(installed))}"
        )
    return names


def _register(
    loaded: Plugins, plugin: Plugin, point: EntryPoint, own_flags: Collection[str]
) -> None:
    """Imports and registers one plugin, and collects and checks what it contributes."""
    manager = loaded.manager
    if manager.has_plugin(plugin.name):
        raise ValueError("another installed distribution has a plugin of this name")
    module = point.load()
    try:
        manager.register(module, plugin.name)
        manager.check_pending()
        techniques = _contributions(manager, plugin, "tamiz_techniques")
        exporters = _contributions(manager, plugin, "tamiz_exporters")
        passes = _contributions(manager, plugin, "tamiz_graph_passes")
        _check(techniques, Technique, set(loaded.techniques()))
        _check_flags(techniques, loaded.techniques().values(), own_flags)
        _check(exporters, Exporter, {exporter.name for exporter in loaded.exporters()})
        _check_passes(passes, {p.name for there in loaded.installed for p in there.passes})
    except (Exception, SystemExit):
        if manager.has_plugin(plugin.name):
            manager.unregister(name=plugin.name)
        raise
    plugin.techniques, plugin.exporters, plugin.passes = techniques, exporters, passes


def _contributions(manager: pluggy.PluginManager, plugin: Plugin, hook: str) -> list[Any]:
    """Calls one hook of one plugin, so that an error is blamed on the right one."""
    caller = getattr(manager.hook, hook)
    return [
        item
        for implementation in caller.get_hookimpls()
        if implementation.plugin_name == plugin.name
        for item in implementation.function()
    ]


def _check(items: list[Any], kind: type[Any], taken: set[str]) -> None:
    word = kind.__name__.lower()
    for item in items:
        if not isinstance(item, kind):
            raise TypeError(f"declares {item!r} as {word}")
        name: str = item.name
        if name in taken:
            raise ValueError(f"declares the {word} {name!r}, which another plugin declares")
        taken.add(name)


def _check_passes(passes: list[Any], taken: set[str]) -> None:
    if not passes:
        return
    from tamiz.api.passes import GraphPass

    for item in passes:
        if not (isinstance(item, type) and issubclass(item, GraphPass)):
            raise TypeError(f"declares {item!r} as graph pass")
        if item.name in taken:
            raise ValueError(
                f"declares the graph pass {item.name!r}, which another plugin declares"
            )
        taken.add(item.name)


def _check_flags(
    techniques: Iterable[Technique], others: Iterable[Technique], own_flags: Collection[str]
) -> None:
    """Holds every flag to one owner."""
    owners = dict.fromkeys(own_flags, "tamiz")
    owners |= {flag: other.name for other in others for flag in other.flags()}
    for technique in techniques:
        for flag in technique.flags():
            if flag in owners:
                raise ValueError(
                    f"declares the flag {flag} of {technique.name}, which {owners[flag]} has"
                )
            owners[flag] = technique.name
