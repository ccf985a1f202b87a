"""The ``perflab`` command, run in the tests' own process."""

from __future__ import annotations

import json
from typing import Any

import pytest


class Command:
    """Runs ``perflab`` and gives what it prints, errors last; its exit status has to be the expected one."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object, status: int = 0) -> str:
        found, text = self.answered(*arguments)
        assert found == status, text
        return text

    def answered(self, *arguments: object) -> tuple[int, str]:
        """The exit status too, whatever it is."""
        from perflab.cli import main

        self._capsys.readouterr()  # what was printed before is not the command's
        try:
            status = main([str(one) for one in arguments])
        except SystemExit as ended:  # argparse's
            status = int(ended.code or 0)
        printed = self._capsys.readouterr()
        return status, printed.out + printed.err

    def json(self, *arguments: object) -> Any:
        """What it prints with ``--format=json``."""
        return json.loads(self(*arguments, "--format=json"), parse_constant=pytest.fail)
