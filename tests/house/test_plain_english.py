"""Plain English: idioms that a stranger stumbles over are in no text that users see, and rare in docstrings."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IN_DOCSTRINGS_MAX = 30
LONG_WORDS = 25
LONG_SHARE_MAX = 0.05

IDIOMS = """
of before; goes on; gone on; told; foretell; foretells; foretold; heard; lets go; let go; let it go; whoever;
whomever; anew; nobody's; nobody; somebody's; somebody; of whom; of one's own; trainer of one's; be said;
said so; say so; says so; for good; for ever; forever; costs nobody; stands for; stands beside; by itself;
all the same; mend; mends; mended; mending; thereby; therein; thereof; hereby; whence; thence; hence; wherein; whereof;
whereby; of old; by now; at leisure; as ever; has no word; no word of; its word; the word of; out of hand; in hand;
came to pass; and no more; has it that; as yet; to blame; speaks of; speak of; knows of; makes do; gives way; gave way;
took up; takes up; put aside; puts out; keeps to; held to; goes away; went away; gone away; in vain; save that;
save for; was to be; betimes; seldom; lest; ere long; naught; nought
"""
PHRASES = [" ".join(each.split()) for each in IDIOMS.split(";")]
PATTERN = re.compile(r"\b(?:" + "|".join(PHRASES) + r")\b", re.IGNORECASE)


def texts():
    """Yield the place of each text, whether it is a docstring, and the text; a string without a space is a key."""
    for path in sorted([*(ROOT / "training").rglob("*.html"), ROOT / "README.md"]):
        yield str(path.relative_to(ROOT)), False, path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "training").rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        docstrings = {ast.get_docstring(node, clean=False) for node in nodes if isinstance(node, documented)}
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node.value in docstrings, " ".join(node.value.split())


@cache
def all_texts():
    return list(texts())


def found(docstrings):
    looked_at = [(at, text) for at, is_docstring, text in all_texts() if is_docstring is docstrings]
    return [f"{at}: {hit[0]!r}" for at, text in looked_at for hit in PATTERN.finditer(text)]


def test_the_list_is_long_enough_and_finds_its_phrases():
    assert len(set(PHRASES)) >= 60
    assert PATTERN.findall("A job of before goes on on Nobody's host.") == ["of before", "goes on", "Nobody's"]


def test_no_text_that_users_see_has_an_idiom():
    hits = found(docstrings=False)
    assert not hits, "say who does what, in common words:\n" + "\n".join(hits)


def test_docstrings_have_few_idioms():
    hits = found(docstrings=True)
    assert len(hits) <= IN_DOCSTRINGS_MAX, f"{len(hits)} idioms, at most {IN_DOCSTRINGS_MAX}:\n" + "\n".join(hits)


def test_few_sentences_of_docstrings_are_long():
    sentences = [each for _, is_doc, text in all_texts() if is_doc for each in re.split(r"(?<=[.:;!?])\s+", text)]
    long = [each for each in sentences if len(each.split()) > LONG_WORDS]
    assert len(long) <= LONG_SHARE_MAX * len(sentences), f"{len(long)} of {len(sentences)}:\n" + "\n".join(long)


PAGES = sorted((ROOT / "docs").glob("*.md"))
WORDS_MAX, PARAGRAPH_WORDS, CELL_WORDS, LINE_CHARACTERS = 40_000, 120, 30, 100


def test_the_pages_are_short():
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in PAGES) <= WORDS_MAX


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_reads_well(page):
    left_out = re.compile(r"^```.*?^```|^<!--.*?-->|^!\[.*?$", re.DOTALL | re.MULTILINE)
    prose = left_out.sub("", page.read_text(encoding="utf-8"))
    rows = [line for line in prose.splitlines() if line.startswith("|")]
    lines = [line for line in prose.splitlines() if not line.startswith("|")]
    paragraphs = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", "\n".join(lines))
    assert [each for each in paragraphs if len(each.split()) > PARAGRAPH_WORDS] == []
    assert [each for row in rows for each in row.split("|") if len(each.split()) > CELL_WORDS] == []
    assert [line for line in lines if len(line) > LINE_CHARACTERS] == []
