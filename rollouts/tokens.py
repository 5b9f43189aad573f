"""Token ids as the texts that they stand for. Needs a tokenizer's file; loads no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Tokens that make a text together: one of them, or those whose bytes are one character."""

    text: str
    count: int  # of its tokens
    is_control: bool = False  # one that no text can hold, such as a turn's end


class Decoder:
    """A tokenizer's way back. Takes a quarter of a second to make; keep it."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError where the folder has no tokenizer.json."""
        text = (folder / "tokenizer.json").read_text(encoding="utf-8")
        self._tokenizer = Tokenizer.from_str(text)
        added = self._tokenizer.get_added_tokens_decoder()
        self._controls = {number for number, token in added.items() if token.special}

    def pieces(self, ids: Sequence[int]) -> list[Piece]:
        """All of `ids`, in order; joined, their texts are what was said. Bytes that become no
        character are shown as the sign for that."""
        stream = DecodeStream(skip_special_tokens=False)
        pieces: list[Piece] = []
        waiting = 0
        for number in ids:
            waiting += 1
            text = stream.step(self._tokenizer, number)
            if text is not None:
                is_control = number in self._controls
                pieces.append(Piece(text=text, count=waiting, is_control=is_control))
                waiting = 0
        if waiting:
            pieces.append(Piece(text="\ufffd", count=waiting))
        return pieces
