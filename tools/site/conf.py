"""Sphinx builds the site from the Markdown of `docs/`: `tox -e docs`.

Pages are plain Markdown that also reads well in a repository browser. Links to files outside that
folder become downloads, and links to the README of a technique lead to its page of the site.
"""

import re
from typing import Any

from tamiz import __version__

project = "tamiz"
author = "the authors of tamiz"
copyright = f"{author}, Apache-2.0"
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinxcontrib.mermaid",
]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"tamiz {__version__}"
html_static_path = ["../../docs/_static"]
html_css_files = ["tamiz.css"]
html_theme_options = {"sidebar_hide_name": False}
html_copy_source = False
html_show_sphinx = False

copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_attr_annotations = False

#: Types of other packages, and of private modules, have no page to link to.
nitpick_ignore_regex = [(r"py:.*", r".*")]

_README = re.compile(r"\]\((?:\.\./)+plugins/tamiz_(\w+)/README\.md")
_LAB = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(lab/[^)#]+\.md)\)")


def _link_pages(app: Any, name: str, source: list[str]) -> None:
    """Links READMEs of techniques to their pages, and makes files of the notebook downloads."""
    source[0] = _README.sub(r"](/reference/plugins/\1.md", source[0])
    source[0] = _LAB.sub(r"{download}`\1 </../\2>`", source[0])


def _link_included(app: Any, path: Any, name: str, source: list[str]) -> None:
    """The same for files that a page includes."""
    _link_pages(app, name, source)


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _link_pages)
    app.connect("include-read", _link_included)
