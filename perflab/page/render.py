"""Renders templates of ours: text is escaped wherever it stands, and a browser may run nothing but our own script.

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

_HERE = Path(__file__).parent / "templates"


def render(template: str, **values: Any) -> str:
    """A whole page.

    Args:
        template: a file of ``templates`` that extends ``base.html``.
        values: what it needs; one that is missing is an error.
    """
    return _environment().get_template(template).render(values) + "\n"


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
    made.globals["style"] = Markup(_source("style.css"))
    made.globals["script"] = Markup(_source("explore.js"))
    made.globals["policy"] = Markup(policy())
    return made


def _finalized(value: Any) -> Any:
    return one_line(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@functools.cache
def _source(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8").strip()


@functools.cache
def policy() -> str:
    """The page's Content-Security-Policy: nothing is loaded, our style and script alone count, by their hashes."""
    style, script = (_hash(_source(name)) for name in ("style.css", "explore.js"))
    return f"default-src 'none'; style-src '{style}'; script-src '{script}'; base-uri 'none'; form-action 'none'"


def _hash(source: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode("utf-8")).digest()).decode("ascii")
