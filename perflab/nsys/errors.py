"""The error of reading what Nsight Systems has written; a module of its own, since commands load without SQLite."""

from __future__ import annotations

from perflab.base.errors import PerflabError
from perflab.tables.escaping import one_line


class ExportError(PerflabError):
    """An export of Nsight Systems that cannot be read. The error's text is one line, whatever names it quotes."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(one_line(problem), one_line(remedy))
