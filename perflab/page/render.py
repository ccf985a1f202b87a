"""Renders templates of ours: text is escaped wherever it stands, and a browser may run nothing but one script of ours.

Every text that is written passes ``one_line``, so that no control character and no change of direction reaches a page,
and then HTML's escaping. What is Markup already (``svg``) is left as it is.
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
from perflab.report.escaping import lines_of, one_line

EXPLORE = "explore.js"
"""Tables to sort, filter and search."""
_HERE = Path(__file__).parent / "templates"
_COLUMNS = 60
"""Columns of a table that can be hidden: the third by the table's class ``h3``."""


def render(template: str, script: str = EXPLORE, **values: Any) -> str:
    """A whole page.

    ``template`` extends ``base.html``; it and ``script`` are files of ``templates``. A value that it needs and does not
    get is an error.
    """
    own = {"script": Markup(_source(script)), "policy": Markup(policy(script))}
    return _environment().get_template(template).render(own | values) + "\n"


def in_lines(text: str) -> Markup:
    """Text that keeps its lines, for ``<pre>``."""
    return Markup(escape(lines_of(text)))


@functools.cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalized,
    )
    made.filters["in_lines"] = in_lines
    made.filters["short"] = short
    made.globals["style"] = Markup(_style())
    return made


def _finalized(value: Any) -> Any:
    return one_line(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@functools.cache
def _source(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8").strip()


@functools.cache
def _style() -> str:
    hidden = ", ".join(f".h{at} tr > :nth-child({at})" for at in range(2, _COLUMNS + 1))
    return f"{_source('style.css')}\n{hidden} {{ display: none; }}"


@functools.cache
def policy(script: str = EXPLORE) -> str:
    """The page's Content-Security-Policy: nothing is loaded, our style and script alone count, by their hashes."""
    style, code = _hash(_style()), _hash(_source(script))
    return f"default-src 'none'; style-src '{style}'; script-src '{code}'; base-uri 'none'; form-action 'none'"


def _hash(source: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode("utf-8")).digest()).decode("ascii")
