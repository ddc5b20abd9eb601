"""Settings of the documentation; ``tox -e docs`` builds it with warnings as errors."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))

import generate

from gnsq_lite.version import __version__

HERE = Path(__file__).parent

project = "gnsq_lite"
author = "The gnsq_lite developers"
copyright = author
release = version = __version__
extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
default_role = "any"

html_theme = "furo"
html_title = "gnsq_lite"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/icon.svg"
html_show_copyright = False
html_theme_options = {
    "light_logo": "icon.svg",
    "dark_logo": "icon.svg",
    "sidebar_hide_name": False,
    "light_css_variables": {"color-brand-primary": "#0b6e4f", "color-brand-content": "#0b6e4f"},
    "dark_css_variables": {"color-brand-primary": "#4cc9a0", "color-brand-content": "#4cc9a0"},
}
pygments_style = "tango"
pygments_dark_style = "github-dark"

autodoc_member_order = "bysource"
autodoc_mock_imports = ["pyspark", "pyarrow", "obstore"]
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 78
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

generate.write(HERE / "generated")


def without_rules(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Leave out which requirement a docstring answers: that is for maintainers."""
    text = "\n".join(lines)
    lines[:] = generate.RULES.sub("", text).split("\n")


def inlined(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Put drawings into the page, where they take its colours; as images they would take the system's."""
    body = context.get("body")
    if body is not None:
        context["body"] = re.sub(r'<img\b[^>]*\bsrc="[^"]*_images/(drawn-[\w-]+\.svg)"[^>]*>', _drawing, body)


def _drawing(found: re.Match[str]) -> str:
    drawing = (HERE / "images" / found.group(1)).read_text(encoding="utf-8")
    return f'<span class="drawing-frame">{drawing}</span>'


def setup(app: Any) -> None:
    """Connect the two."""
    app.connect("autodoc-process-docstring", without_rules)
    app.connect("html-page-context", inlined)
