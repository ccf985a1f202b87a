"""The table of wrong kernels in docs/correctness.md, made of the data that they are tested by.

python -m tests.studies.write_table      # from the repository's root
"""

from pathlib import Path

from tests.correctness.wrong_kernels import WRONG_KERNELS

PAGE = Path(__file__).parents[2] / "docs" / "correctness.md"
BEGIN, END = "<!-- wrong kernels: python -m tests.studies.write_table -->", "<!-- end -->"


def table() -> str:
    """The table as Markdown."""
    head = ["| kernel | what is wrong | the suite says | `allclose(1e-2)` |", "|---|---|---|---|"]
    rows = [
        f"| `{wrong.name}` | {wrong.fault} | {wrong.clue} | {'passes it' if wrong.allclose else 'catches it'} |"
        for wrong in WRONG_KERNELS
    ]
    passed = sum(wrong.allclose for wrong in WRONG_KERNELS)
    tail = f"{len(WRONG_KERNELS)} kernels: the suite catches all of them, `torch.allclose` passes {passed}."
    return "\n".join([*head, *rows, "", tail])


def with_table(page: str) -> str:
    """The page with the table as it should be."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
