"""Ids become the texts that they came from, whole characters at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from rollouts.tokens import Decoder
from training.tiny import write_tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("models") / "tiny")


def ids_of(folder: Path, text: str) -> list[int]:
    ids: list[int] = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    return ids


def test_a_character_of_several_tokens_is_one_piece(folder: Path) -> None:
    ids = ids_of(folder, "aé🦄b")  # one token a byte
    pieces = Decoder(folder).pieces(ids)
    assert [(piece.text, piece.count) for piece in pieces] == [
        ("a", 1), ("é", 2), ("🦄", 4), ("b", 1),
    ]  # fmt: skip
    assert sum(piece.count for piece in pieces) == len(ids)


def test_control_tokens_are_shown_and_marked(folder: Path) -> None:
    pieces = Decoder(folder).pieces(ids_of(folder, "hi<|im_end|>\n"))
    assert "".join(piece.text for piece in pieces) == "hi<|im_end|>\n"
    assert [piece.text for piece in pieces if piece.is_control] == ["<|im_end|>"]


def test_a_reply_that_was_cut_within_a_character_keeps_its_count(folder: Path) -> None:
    pieces = Decoder(folder).pieces(ids_of(folder, "a🦄")[:-1])
    assert [(piece.text, piece.count) for piece in pieces] == [("a", 1), ("\ufffd", 3)]


def test_a_folder_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"tokenizer\.json"):
        Decoder(tmp_path)
