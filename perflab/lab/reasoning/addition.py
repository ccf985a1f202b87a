"""Addition of two numbers of n digits, as text with a checkable answer: what the reasoning models learn and are asked.

One character is one token. For n = 3, 47 + 385:

    style     prompt           solution
    direct    047+385=         0432.                            the answer, highest digit first
    thought   047+385=         750=12,481=13,031=04:0432.       chain of thought: from the lowest digit the two digits
                                                                and the carry, and their sum; then the answer
    refined   047+385~????=    0432.                            as direct, with room for a draft: ???? is none yet
              047+385~0422=    0432.                            and with one, which may be wrong

Written-out steps are Wei et al. 2022 (chain-of-thought prompting), here trained as the scratchpads of Nye et al. 2021
(section 3, addition). All texts of one style have the same length, so batches have no padding.

A pair of numbers is held out or not by a hash of it: no problem of a test was ever trained on.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

ALPHABET = "0123456789+=,:.~?"
"""Token i is character i."""
NEXT, END, NONE = ",", ".", "?"
"""Tokens: the end of a step of thought that is not the last, the end of a solution, and a draft's missing digit."""
STYLES = ("direct", "thought", "refined")
_HELD_OUT_IN = 8  # one pair in so many is held out
_WITHOUT_DRAFT, _RIGHT_DRAFT = 0.75, 0.875  # of the texts of "refined": three quarters have none, an eighth a right one

Problem = tuple[int, int]


def encode(text: str) -> list[int]:
    """Token ids of a text. ValueError for a character that is not in `ALPHABET`."""
    return [ALPHABET.index(character) for character in text]


def decode(tokens: list[int]) -> str:
    """The text of token ids."""
    return "".join(ALPHABET[token] for token in tokens)


def is_held_out(problem: Problem) -> bool:
    """Whether a pair of numbers is for tests alone; the same in every process."""
    return hashlib.sha256(f"{problem[0]}+{problem[1]}".encode()).digest()[0] % _HELD_OUT_IN == 0


@dataclass(frozen=True)
class Addition:
    """Problems of n digits in one style. ValueError for no digit, or an unknown style."""

    digits: int = 3
    style: str = "direct"

    def __post_init__(self) -> None:
        if self.digits < 1:
            raise ValueError(f"digits={self.digits}: wanted numbers of 1 digit or more")
        if self.style not in STYLES:
            raise ValueError(f"style={self.style!r}: wanted one of {', '.join(STYLES)}")

    def prompt(self, problem: Problem, draft: str | None = None) -> str:
        """The text that a model goes on from; `draft`, of "refined" alone, is an answer to improve.

        Raises:
            ValueError: a number that has not so many digits, or a draft that does not fit the style.
        """
        a, b = problem
        if not (0 <= a < 10**self.digits and 0 <= b < 10**self.digits):
            raise ValueError(
                f"{a} + {b}: wanted numbers of 0 to {10**self.digits - 1}, which have {self.digits} digits"
            )
        if self.style != "refined":
            if draft is not None:
                raise ValueError(f"a draft for style={self.style!r}: style='refined' alone has room for one")
            return f"{a:0{self.digits}}+{b:0{self.digits}}="
        draft = NONE * (self.digits + 1) if draft is None else draft
        if len(draft) != self.digits + 1:
            raise ValueError(f"draft={draft!r}: wanted {self.digits + 1} characters, the length of an answer")
        return f"{a:0{self.digits}}+{b:0{self.digits}}~{draft}="

    def solution(self, problem: Problem) -> str:
        """The text that should follow the prompt."""
        answer = f"{sum(problem):0{self.digits + 1}}{END}"
        if self.style != "thought":
            return answer
        steps, carry = [], 0
        for place in range(self.digits):
            x, y = (number // 10**place % 10 for number in problem)
            steps.append(f"{x}{y}{carry}={x + y + carry:02}")
            carry = (x + y + carry) // 10
        return f"{NEXT.join(steps)}:{answer}"

    def answer(self, solution: str) -> str | None:
        """The digits of the answer that a generated solution ends with; None: it has none that is whole."""
        if not solution.endswith(END):
            return None
        answer = solution.removesuffix(END).rpartition(":")[2]
        return answer if len(answer) == self.digits + 1 and answer.isdecimal() else None

    def is_right(self, problem: Problem, answer: str | None) -> bool:
        """Whether an answer is the sum; thoughts do not count."""
        return answer is not None and int(answer) == sum(problem)

    @property
    def solution_length(self) -> int:
        """Tokens of a solution."""
        return len(self.solution((0, 0)))

    @property
    def length(self) -> int:
        """Tokens of a whole text, prompt and solution."""
        return len(self.prompt((0, 0))) + self.solution_length

    def problems(self, count: int, *, seed: int = 0, held_out: bool = True) -> list[Problem]:
        """Draw so many problems uniformly, held out or not."""
        return _drawn(random.Random(f"problems {seed}"), count, self.digits, held_out)

    def batches(self, batch_size: int, *, seed: int = 0, device: torch.device | str = "cpu") -> Iterator[Tensor]:
        """Endless batches (B, T) int64 of whole texts to train on, none of a problem that is held out."""
        draw = random.Random(f"batches {seed}")
        while True:
            texts = [self._text(problem, draw) for problem in _drawn(draw, batch_size, self.digits, False)]
            yield torch.tensor([encode(text) for text in texts], device=device)

    def _text(self, problem: Problem, draw: random.Random) -> str:
        draft = None
        if self.style == "refined" and (kind := draw.random()) >= _WITHOUT_DRAFT:
            right = f"{sum(problem):0{self.digits + 1}}"
            draft = right if kind < _RIGHT_DRAFT else _spoilt(right, draw)
        return self.prompt(problem, draft) + self.solution(problem)


def _spoilt(answer: str, draw: random.Random) -> str:
    """An answer with one digit off by one, as a forgotten carry or one too many leaves it."""
    place, step = draw.randrange(len(answer)), draw.choice((1, 9))
    return f"{answer[:place]}{(int(answer[place]) + step) % 10}{answer[place + 1 :]}"


def _drawn(draw: random.Random, count: int, digits: int, held_out: bool) -> list[Problem]:
    problems: list[Problem] = []
    while len(problems) < count:
        problem = draw.randrange(10**digits), draw.randrange(10**digits)
        if is_held_out(problem) == held_out:
            problems.append(problem)
    return problems
