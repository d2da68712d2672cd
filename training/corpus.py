"""The training text: documents in reading order, a fixed share of them held out.

The default text is the King James Bible as Debian packages it (``bible-kjv`` prints it,
``bible-kjv-text`` holds it); a document is a chapter: its heading, then one verse a line. Any other
UTF-8 text file serves as well; its documents are runs of paragraphs.

Source: https://packages.debian.org/bible-kjv-text. The text of 1611/1769 is in the public domain.
"""

import random
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from fuel_core.errors import RequestError

_BIBLE = ("bible", "-l1000000", "Genesis1:1-Revelation22:21")
_VERSE = re.compile(r" +\d+ +(?P<text>\S.*)")
_BIBLE_CHAPTERS = 1189
_DOCUMENT_CHARACTERS = 3000


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Documents to learn from and documents to measure on.

    Attributes:
        title: what the text is, for the model card.
        licence: under which terms it may be used, for the model card.
        training: the documents to learn from, in reading order.
        held_out: whole documents that neither the model nor its tokenizer sees.
    """

    title: str
    licence: str
    training: tuple[str, ...]
    held_out: tuple[str, ...]


def read_corpus(text_file: Path | None, *, held_out_share: float, seed: int) -> Corpus:
    """Read the King James Bible, or ``text_file`` where one is given, and hold out a share of it.

    Raises:
        RequestError: the text is not there, not UTF-8, or too short to hold a document out.
    """
    documents = read_bible() if text_file is None else read_text(text_file)
    held_out_count = max(1, round(held_out_share * len(documents)))
    if held_out_count >= len(documents):
        raise RequestError(
            f"{held_out_share:.0%} of {len(documents)} documents cannot be held out: give a longer text "
            f"(a document has about {_DOCUMENT_CHARACTERS} characters) or a smaller share"
        )
    held_out = set(random.Random(seed).sample(range(len(documents)), held_out_count))
    return Corpus(
        title="King James Bible (Debian package bible-kjv-text)" if text_file is None else text_file.name,
        licence="public domain" if text_file is None else "that of the text file",
        training=tuple(text for index, text in enumerate(documents) if index not in held_out),
        held_out=tuple(text for index, text in enumerate(documents) if index in held_out),
    )


def read_bible() -> list[str]:
    """Return the 1,189 chapters of the King James Bible, each as a heading and one verse a line.

    Raises:
        RequestError: Debian's ``bible`` program is not installed or prints something else.
    """
    if shutil.which(_BIBLE[0]) is None:
        raise RequestError(
            "the training text needs the program 'bible', which is not on PATH: "
            "'apt-get install bible-kjv' brings it and the text (Debian, Ubuntu), "
            "or give another UTF-8 text with --text FILE"
        )
    # -l1000000 keeps every verse on one line; the program knows headings only in this layout.
    printed = subprocess.run(_BIBLE, capture_output=True, check=False, encoding="utf-8", errors="strict")
    chapters: list[list[str]] = []
    for line in printed.stdout.splitlines():
        if verse := _VERSE.fullmatch(line):
            chapters[-1].append(re.sub(" +", " ", verse["text"].rstrip()))
        elif line.strip():
            chapters.append([line.strip()])
    if len(chapters) != _BIBLE_CHAPTERS:
        raise RequestError(
            f"'{' '.join(_BIBLE)}' printed {len(chapters)} chapters, expected {_BIBLE_CHAPTERS} "
            f"(exit status {printed.returncode}, stderr {printed.stderr.strip()!r}): "
            "reinstall bible-kjv and bible-kjv-text, or give another text with --text FILE"
        )
    return ["\n".join(lines) + "\n" for lines in chapters]


def read_text(text_file: Path) -> list[str]:
    """Return the documents of a UTF-8 text file: runs of paragraphs of some 3,000 characters each.

    Raises:
        RequestError: the file cannot be read or is not UTF-8.
    """
    try:
        paragraphs = re.split(r"\n\s*\n", text_file.read_text(encoding="utf-8").strip())
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"cannot read {text_file} as UTF-8 text: {error}") from error
    documents = [""]
    for paragraph in paragraphs:
        if len(documents[-1]) >= _DOCUMENT_CHARACTERS:
            documents.append("")
        documents[-1] += paragraph + "\n\n"
    return documents
