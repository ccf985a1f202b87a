"""docs/api.md is what the docstrings say, and every public name has one."""

from __future__ import annotations

import pytest

from tests.harness.write_api import MODULES, PAGE, page, public, stub


def test_the_page_is_made_of_the_docstrings() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tests.harness.write_api"


@pytest.mark.parametrize(("module", "name"), [(module, name) for module in MODULES for name in public(module)])
def test_every_public_name_says_what_it_is(module: str, name: str) -> None:
    assert '"""' in stub(module, name)


def test_a_name_that_is_nowhere_is_an_error() -> None:
    with pytest.raises(LookupError, match="perflab has no Perv"):
        stub("perflab", "Perv")
