"""The documentation site: ``python -m sphinx -W docs docs/_build/html``, with the extra ``docs``."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]  # public_names, and the packages of this checkout

project = "ringtape"
author = "the ringtape authors"
copyright = f"2026, {author}"
try:
    release = metadata.version("ringtape")
except metadata.PackageNotFoundError:  # a checkout that is not installed
    release = ""

extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc", "public_names"]
exclude_patterns = ["_build"]
default_role = "py:obj"  # a name in single backticks, as in NumPy's docstrings

myst_heading_anchors = 4
smartquotes = False  # code stands in tables and sentences, and is copied
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the sections of the docstrings state them
numpydoc_show_class_members = False  # autodoc lists them
python_maximum_signature_line_length = 100

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_title = "ringtape"
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
