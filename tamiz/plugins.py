"""Loads plugins: exporters, graph passes and techniques, built-in and third-party alike.

All hooks are called by pluggy, so that ``tryfirst``, ``firstresult`` and wrappers mean what pluggy
says. A plugin that cannot be loaded, or declares something wrong, is reported by name and skipped.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pluggy

from tamiz.api import hookspecs
from tamiz.api.hookspecs import Exporter
from tamiz.api.technique import Technique
from tamiz.files.errors import TamizError, blaming
from tamiz.system.signals import signals_held

if TYPE_CHECKING:
    import onnx_ir as ir

    from tamiz.api.passes import GraphPass, Note, Phase
    from tamiz.api.site import Site
    from tamiz.api.statistics import Imatrix

GROUP = "tamiz"
DISABLE = "TAMIZ_DISABLE_PLUGINS"
#: Hooks that return lists, of techniques, exporters and graph passes.
_LISTS = ("tamiz_techniques", "tamiz_exporters", "tamiz_graph_passes")


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
        by_name = {t.name: t for plugin in self.installed for t in plugin.techniques}
        return dict(sorted(by_name.items()))

    def exporters(self) -> list[Exporter]:
        """All exporters in the order in which they are tried, see `hookspecs.tamiz_exporters`."""
        offered = {plugin.name: plugin.exporters for plugin in self.installed}
        last_first = self.manager.hook.tamiz_exporters.get_hookimpls()
        return [e for hook in reversed(last_first) for e in offered[hook.plugin_name]]

    def passes(self, phase: Phase) -> list[type[GraphPass]]:
        """The graph passes of one phase in the order in which they run."""
        from tamiz.api.passes import in_order

        ordered = in_order([p for plugin in self.installed for p in plugin.passes])
        return [graph_pass for graph_pass in ordered if graph_pass.phase == phase]

    def find_sites(self, model: ir.Model) -> tuple[list[Site], list[Note]] | None:
        """What the first plugin that knows the model says of it; None where none does.

        Raises:
            TamizError: A plugin's hook fails.
        """
        sites_and_notes: tuple[list[Site], list[Note]] | None
        with _blaming_plugin():
            sites_and_notes = self.manager.hook.tamiz_find_sites(model=model)
        return sites_and_notes

    def read_imatrix(self, path: Path) -> Imatrix | None:
        """What the first plugin that knows a regular file says of it; None where none does.

        Raises:
            TamizError: The file is damaged, or a plugin's hook fails.
        """
        imatrix: Imatrix | None
        with _blaming_plugin():
            imatrix = self.manager.hook.tamiz_read_imatrix(path=path)
        return imatrix

    def working(self) -> list[Plugin]:
        """Plugins that are neither disabled nor broken."""
        return [p for p in self.installed if not p.disabled and p.error is None]

    def broken(self) -> list[Plugin]:
        """Plugins that were skipped because something is wrong with them."""
        return [plugin for plugin in self.installed if plugin.error is not None]


def load(
    points: Iterable[EntryPoint] | None = None,
    own_flags: Collection[str] = (),
    only_techniques: bool = False,
) -> Plugins:
    """Loads every plugin of the entry-point group ``tamiz``.

    Args:
        points: Entry points to load instead of the installed ones.
        own_flags: Options that the commands have themselves; no technique's flag may be one.
        only_techniques: Leave out exporters and graph passes, whose modules take most of the time.

    Returns:
        The plugins. Broken ones carry their error and contribute nothing.

    Raises:
        TamizError: `TAMIZ_DISABLE_PLUGINS` names a plugin that is not installed.
    """
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    offered = sorted(entry_points(group=GROUP) if points is None else points, key=lambda p: p.name)
    disabled = _disabled({point.name for point in offered})
    loaded = Plugins(manager, [])
    for point in offered:
        plugin = Plugin(
            point.name,
            point.value,
            point.dist.name if point.dist else "",
            point.dist.version if point.dist else "",
            disabled=point.name in disabled,
        )
        if not plugin.disabled:
            _register(manager, plugin, point)
        loaded.installed.append(plugin)
    # A plugin that is skipped contributes nothing, so the others are collected again without it.
    hooks = _LISTS[:1] if only_techniques else _LISTS
    while (error := _collect(loaded, own_flags, hooks)) is not None:
        _skip(manager, next(p for p in loaded.working() if p.name == error.plugin), error.reason)
    return loaded


@contextmanager
def _blaming_plugin() -> Iterator[None]:
    """Names the plugin whose hook raises; errors of its input stay as they are."""
    try:
        yield
    except HookError as error:
        with blaming(f"plugin {error.plugin}"):
            raise error.reason from error


def _disabled(installed: set[str]) -> set[str]:
    names = {name.strip() for name in os.environ.get(DISABLE, "").split(",")} - {""}
    if unknown := sorted(names - installed):
        raise TamizError(
            f"{DISABLE} names {unknown[0]!r}, which is no installed plugin; "
            f"installed are {', '.join(sorted(installed))}"
        )
    return names


class HookError(Exception):
    """What a plugin's hook raised, or what is wrong with what it declares.

    Attributes:
        plugin: The plugin's name.
        reason: The error.
    """

    def __init__(self, plugin: str, reason: BaseException) -> None:
        super().__init__(plugin, reason)
        self.plugin, self.reason = plugin, reason


def _register(manager: pluggy.PluginManager, plugin: Plugin, point: EntryPoint) -> None:
    """Imports and registers one plugin."""
    if manager.has_plugin(plugin.name):
        plugin.error = "another installed distribution has a plugin of this name"
        return
    with signals_held():
        try:
            module = point.load()
            manager.register(_hooks(module, plugin.name), plugin.name)
            manager.check_pending()
        except BaseException as error:  # the module's own: signals wait
            _skip(manager, plugin, error)


def _skip(manager: pluggy.PluginManager, plugin: Plugin, error: BaseException) -> None:
    plugin.error = " ".join(f"{type(error).__name__}: {error}".split())
    if manager.has_plugin(plugin.name):
        manager.unregister(name=plugin.name)


class _Declared(list[Any]):
    """What one plugin's hook returned."""

    def __init__(self, plugin: str, items: Iterable[Any]) -> None:
        super().__init__(items)
        self.plugin = plugin


def _hooks(module: object, plugin: str) -> SimpleNamespace:
    """A plugin's hooks, which raise `HookError` and return `_Declared` in place of lists."""
    mark = f"{hookspecs.PROJECT}_impl"
    members = {key: getattr(module, key, None) for key in dir(module)}
    return SimpleNamespace(
        **{
            key: _signed(hook, plugin, (getattr(hook, mark)["specname"] or key) in _LISTS)
            for key, hook in members.items()
            if hasattr(hook, mark)
        }
    )


def _signed(hook: Any, plugin: str, is_list: bool) -> Callable[..., Any]:
    """A hook that bears its plugin's name; a wrapper of other hooks stays a generator.

    Lists are made while signals are held, so an exit in one is the plugin's own.
    """
    caught = BaseException if is_list else Exception

    @contextmanager
    def blame() -> Iterator[None]:
        try:
            yield
        except HookError:  # of a hook inside of a wrapper
            raise
        except caught as error:
            raise HookError(plugin, error) from error

    @functools.wraps(hook)
    def wrapper(*args: Any) -> Generator[Any, Any, Any]:
        with blame():
            return (yield from hook(*args))

    @functools.wraps(hook)
    def plain(*args: Any) -> Any:
        with blame():
            return _Declared(plugin, hook(*args)) if is_list else hook(*args)

    return wrapper if inspect.isgeneratorfunction(hook) else plain


def _contributions(manager: pluggy.PluginManager, name: str) -> dict[str, list[Any]]:
    """What a hook returns, by plugin; a wrapper answers for lists that it has made itself."""
    hook = getattr(manager.hook, name)
    by_plugin: dict[str, list[Any]] = {}
    for part in hook():
        owner = part.plugin if isinstance(part, _Declared) else hook.get_hookimpls()[-1].plugin_name
        by_plugin.setdefault(owner, []).extend(part)
    return by_plugin


def _collect(
    loaded: Plugins, own_flags: Collection[str], hooks: Collection[str]
) -> HookError | None:
    """Sets what each plugin contributes through these hooks; returns the first error."""
    working = loaded.working()
    for plugin in loaded.installed:
        plugin.techniques, plugin.exporters, plugin.passes = [], [], []
    try:
        with signals_held():
            declared = {name: _contributions(loaded.manager, name) for name in hooks}
        for plugin in working:
            techniques, exporters, passes = (
                declared.get(name, {}).get(plugin.name, []) for name in _LISTS
            )
            with _answerable(plugin):
                _check(techniques, Technique, loaded.techniques())
                _check_flags(techniques, loaded.techniques().values(), own_flags)
                _check(exporters, Exporter, {exporter.name for exporter in loaded.exporters()})
                _check_passes(passes, [p for other in working for p in other.passes])
            plugin.techniques, plugin.exporters, plugin.passes = techniques, exporters, passes
        for plugin in working:
            with _answerable(plugin):
                _check_needs(plugin.passes, [p for other in working for p in other.passes])
    except HookError as error:
        return error
    return None


@contextmanager
def _answerable(plugin: Plugin) -> Iterator[None]:
    """Blames a plugin for what is wrong with its contributions."""
    try:
        yield
    except Exception as error:
        raise HookError(plugin.name, error) from error


def _check(items: Iterable[Any], kind: type[Any], others: Collection[str]) -> None:
    """Holds contributions to their type, and names to one owner."""
    word, taken = kind.__name__.lower(), set(others)
    for item in items:
        if not isinstance(item, kind):
            raise TypeError(f"declares {item!r} as {word}")
        _check_name(word, item.name, taken)


def _check_name(word: str, name: str, taken: set[str]) -> None:
    if name in taken:
        raise ValueError(f"declares the {word} {name!r}, which another plugin declares")
    taken.add(name)


def _check_passes(passes: Sequence[Any], others: Sequence[type[GraphPass]]) -> None:
    """Holds passes to their type, names to one owner, and the order of all to no circle."""
    if not passes:
        return
    from tamiz.api.passes import GraphPass, in_order

    taken = {other.name for other in others}
    for item in passes:
        if not (isinstance(item, type) and issubclass(item, GraphPass)):
            raise TypeError(f"declares {item!r} as graph pass")
        _check_name("graph pass", item.name, taken)
    in_order([*others, *passes])


def _check_needs(passes: Iterable[type[GraphPass]], everything: Iterable[type[GraphPass]]) -> None:
    """Refuses a pass that needs what no pass provides."""
    provided = {state for other in everything for state in other.provides}
    for graph_pass in passes:
        if lacking := sorted(graph_pass.needs - provided):
            raise ValueError(
                f"declares the graph pass {graph_pass.name!r}, which needs {lacking[0]!r}, "
                "and no installed pass provides it"
            )


def _check_flags(
    techniques: Iterable[Technique], others: Iterable[Technique], own_flags: Collection[str]
) -> None:
    """Holds every flag to one owner."""
    owners = dict.fromkeys(own_flags, "tamiz")
    owners |= {flag: other.name for other in others for flag in _accepted(other)}
    for technique in techniques:
        for flag in _accepted(technique):
            if flag in owners:
                raise ValueError(
                    f"declares the flag {flag} of {technique.name}, which {owners[flag]} has"
                )
            owners[flag] = technique.name


def _accepted(technique: Technique) -> list[str]:
    """All options that set something of a technique, also under names of earlier versions."""
    return [flag for flags in technique.accepted().values() for flag in flags]
