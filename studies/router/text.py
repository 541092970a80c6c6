"""Text that a small grammar makes, character by character, for a language model to learn."""

import numpy as np
import torch
from torch import Tensor

ALPHABET = "abcdefghijklmnopqrstuvwxyz ."
DIALECTS = 8
LETTERS = 9  # of each dialect
WORDS = {"determiner": (3, 2), "noun": (12, 5), "verb": (8, 5), "adjective": (8, 4)}
"""By part of speech: how many words a dialect has, and how long the longest is."""
MOST_CLAUSES = 3


class Grammar:
    """Sentences of several dialects, each with words of its own.

    sentence → clause (" " joiner " " clause)* "."; clause → phrase verb phrase; phrase →
    determiner adjective? noun. The noun of a subject and its verb agree in their last letter.
    """

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.dialects = [self._dialect() for _ in range(DIALECTS)]

    def text(self, length: int) -> Tensor:
        """Return at least `length` characters as indices into ALPHABET, cut to `length`."""
        parts: list[str] = []
        written = 0
        while written < length:
            parts.append(self._sentence(self.dialects[self.rng.integers(DIALECTS)]))
            written += len(parts[-1])
        letters = "".join(parts)[:length]
        return torch.tensor([ALPHABET.index(letter) for letter in letters])

    def _dialect(self) -> dict[str, list[str]]:
        letters = self.rng.permutation(list(ALPHABET[:-2]))[:LETTERS]
        words = {
            kind: [self._word(letters, longest) for _ in range(count)]
            for kind, (count, longest) in WORDS.items()
        }
        return {**words, "joiner": [self._word(letters, 3)]}

    def _word(self, letters: np.ndarray, longest: int) -> str:
        size = int(self.rng.integers(2, longest + 1))
        return "".join(letters[self.rng.integers(len(letters), size=size)])

    def _sentence(self, words: dict[str, list[str]]) -> str:
        clauses = [self._clause(words) for _ in range(self.rng.integers(1, MOST_CLAUSES + 1))]
        return f" {words['joiner'][0]} ".join(clauses) + ". "

    def _clause(self, words: dict[str, list[str]]) -> str:
        subject = self._phrase(words)
        verb = self._one(words["verb"]) + subject[-1]
        return f"{subject} {verb} {self._phrase(words)}"

    def _phrase(self, words: dict[str, list[str]]) -> str:
        kinds = ("determiner", "adjective", "noun")
        some = kinds if self.rng.random() < 0.5 else (kinds[0], kinds[2])
        return " ".join(self._one(words[kind]) for kind in some)

    def _one(self, words: list[str]) -> str:
        return words[self.rng.integers(len(words))]
