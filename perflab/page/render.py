"""Renders perflab's templates: all text is escaped, and a browser may run only one script of perflab's.

Every text first passes ``one_line``, so that no control character and no change of direction reaches a page, and then
HTML's escaping. Text that is Markup already (``svg``) is left unchanged.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from perflab.page.table import short
from perflab.tables.escaping import lines_of, one_line

EXPLORE = "explore.js"
"""The script that sorts, filters and searches tables."""
_HERE = Path(__file__).parent / "templates"
_COLUMNS = 60
"""The number of columns of a table that can be hidden; the table's class ``h3`` hides the third column."""


def render(template: str, script: str = EXPLORE, **values: Any) -> str:
    """Render a whole page.

    ``template`` extends ``base.html``; ``template`` and ``script`` are files of ``templates``. If the template needs a
    value that is not given, this is an error.
    """
    own = {"script": Markup(_source(script)), "policy": Markup(policy(script))}
    return _environment().get_template(template).render(own | values) + "\n"


def in_lines(text: str) -> Markup:
    """Escape text and keep its lines, for ``<pre>``."""
    return Markup(escape(lines_of(text)))


@functools.cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: one_line(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
    )
    made.filters["in_lines"] = in_lines
    made.filters["short"] = short
    made.globals["style"] = Markup(_style())
    return made


@functools.cache
def _source(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8").strip()


@functools.cache
def _style() -> str:
    hidden = ", ".join(f".h{at} tr > :nth-child({at})" for at in range(2, _COLUMNS + 1))
    return f"{_source('style.css')}\n{hidden} {{ display: none; }}"


@functools.cache
def policy(script: str = EXPLORE) -> str:
    """Return the page's Content-Security-Policy: nothing is loaded; only perflab's style and script apply, by hash."""
    style, code = _hash(_style()), _hash(_source(script))
    return f"default-src 'none'; style-src '{style}'; script-src '{code}'; base-uri 'none'; form-action 'none'"


def _hash(source: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode("utf-8")).digest()).decode("ascii")
