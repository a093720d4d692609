"""Plain-text book -> paragraphs of running text.

Removes Project Gutenberg's header, licence and notes, joins hard-wrapped lines, and
drops everything but running text: headings, contents, illustrations, page numbers,
tables.
"""

import operator
import re
from collections import Counter

from bert_keras.pipelines import words


def parse_book(
    text: str,
    *,
    name: str,
    is_later_part: bool = False,
    counts: Counter[str] | None = None,
) -> tuple[str, list[str]]:
    """Returns the title (`name` if the text has none), and the paragraphs of running
    text in order, each on one line.

    Line ends are `\\n`; a later part has no front matter. `counts` is incremented for
    each rule that drops something: `notes`, `page marks` and `line notes`; all others
    are blocks between blank lines, a licence one.
    """
    counts = Counter() if counts is None else counts
    # 1. Project Gutenberg's header and licence.
    header, body = split_header(text)
    counts["licences"] += len(header) + len(body) < len(text)
    # 2. Marks inside of paragraphs, before anything is judged by its letters.
    body, num_notes = _NOTE.subn("", body)
    body, num_page_marks = _PAGE_MARK.subn("", body)
    counts.update({"notes": num_notes, "page marks": num_page_marks})
    # 3. Sections, between three or more blank lines, of blocks between fewer.
    sections = [
        [block.split("\n") for block in _BLANK_LINES.split(section) if block.strip()]
        for section in _SECTION_BREAK.split(body)
    ]
    del text, body  # Each of them may be 16 MB.
    # 4. Blocks by others than the author, then tables of contents.
    blocks = _drop_notices(sections, has_front=not is_later_part, counts=counts)
    del sections
    kept = _drop_contents(blocks)
    counts["contents"] += len(blocks) - len(kept)
    # 5. Running text, each paragraph on one line; verse without the notes to its lines.
    paragraphs = []
    for block in kept:
        lines = [line.strip() for line in block if line.strip()]
        reason = _reason_to_drop(lines)
        if reason == "tables" and (verse := _without_line_notes(lines)):
            counts["line notes"] += sum(map(operator.ne, verse, lines))
            lines, reason = verse, _reason_to_drop(verse)
        if reason is not None:
            counts[reason] += 1
            continue
        text = "\n".join(line.strip() for line in lines).replace("\xad", "")
        if "-\n" in text or "—\n" in text:
            text = _BROKEN_WORD.sub(r"\1", text)
        if "_" in text or "=" in text or "~" in text:
            text = _EMPHASIS.sub(r"\1", text).replace("_", "")
        paragraphs.append(" ".join(text.split()))
    return title_of(header) or name, list(filter(None, paragraphs))


# 1. Project Gutenberg's own text.

# `*** START OF THIS PROJECT GUTENBERG EBOOK TITLE ***`, the title on several lines.
_START = re.compile(
    r"^[ \t]*\*{3} ?START OF (?:THE|THIS) PROJECT GUTENBERG E(?:BOOK|TEXT)"
    r"(?:[^*]{0,400}\*{3})?[^\n]*\n",
    re.IGNORECASE | re.MULTILINE,
)
# `*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*`, before 2003.
_END_OF_SMALL_PRINT = re.compile(r"^\*END\*? ?THE SMALL PRINT[^\n]*\n", re.MULTILINE)
# `*** END OF THE PROJECT GUTENBERG EBOOK`, `End of Project Gutenberg's Title`, or the
# small print of a file that has it last.
_END = re.compile(
    r"^[ \t]*(?:\*{3} ?)?END OF (?:THE |THIS )?PROJECT GUTENBERG"
    r"|^\*{3}START\*\*THE SMALL PRINT",
    re.IGNORECASE | re.MULTILINE,
)
# Notices at the end of a file begin with the name of the book.
_LATE_NOTICES = re.compile(r"^The Project Gutenberg E(?:text|Book) of ", re.MULTILINE)


def split_header(text: str) -> tuple[str, str]:
    """Splits a file into Project Gutenberg's header and the book itself. Text after the
    book, such as the licence, is dropped. Without a header, the whole file is the
    book."""
    header = ""
    start = _START.search(text) or _END_OF_SMALL_PRINT.search(text)
    if start:
        header, text = text[: start.start()], text[start.end() :]
    ends = [_END.search(text)]
    if start:
        ends.append(_LATE_NOTICES.search(text, len(text) // 2))
    return header, text[: min((end.start() for end in ends if end), default=len(text))]


# `Title: Moby Dick;`, continued by indented lines.
_TITLE = re.compile(r"^Title: *(.+(?:\n[ \t]+\S.*)*)", re.MULTILINE)
# `The Project Gutenberg Etext of Dracula, by Bram Stoker`, where no title is named.
_TITLE_LINE = re.compile(
    r"Project Gutenberg(?:['’]s| E(?:book|text) of) (.+?)(?:,? by .*)?$",
    re.IGNORECASE | re.MULTILINE,
)


def title_of(header: str) -> str | None:
    match = _TITLE.search(header) or _TITLE_LINE.search(header)
    return " ".join(match[1].split()) if match else None


# 2. and 3. Marks inside of paragraphs; blocks of lines between blank lines.

_SECTION_BREAK = re.compile(r"\n(?:[ \t]*\n){3,}")
_BLANK_LINES = re.compile(r"\n(?:[ \t]*\n)+")
# `[Illustration: A caption]`, `[Footnote 3: Text [with brackets].]`.
_NOTE = re.compile(
    r"\[ ?_?(?:Illustrations?|Footnotes?|Sidenotes?|Transcriber|Project Gutenberg"
    r"|Editor['’]s Note|Decoration|Frontispiece|Image|Picture|Map|Music|Note)\b"
    r"[^\[\]]{0,4000}(?:\[[^\[\]]{0,500}\][^\[\]]{0,4000}){0,20}\]",
    re.IGNORECASE,
)
# `[12]`, `[B]`, `[*]`, `[FN#7]`, `[Pg iv]`, `{p. 12}`: pages and marks of footnotes.
_PAGE_MARK = re.compile(
    r"\[(?:\d{1,4}|[A-Z]|\*+|FN#\d+|[Pp](?:g|age|\.)? ?\.?(?:\d+|[ivxlc]+))\]"
    r"|\{(?:p\. ?)?\d{1,4}[a-z]?\}"
)

# 4. Text by others than the author.

# `Produced by David Widger`, `This eBook was ...`, or the address of a site.
_CREDITS = re.compile(
    r"[\[(]?(?:This )?(?:E-?text |E-?book |HTML )?(?:was )?"
    r"(?:Produced|prepared|transcribed|scanned|proofed|created)\s+(?:by|from|for)\b"
    r"|This (?:Project Gutenberg )?e-?(?:text|book) was |E-?text prepared by"
    r"|(?:HTML|Text) version by|\(This (?:file|book) was produced from"
    r"|.{0,200}(?:www\.|https?://)",
    re.IGNORECASE | re.DOTALL,
)
# `[Transcriber's Note: ...`, `TN:`, or a first line that names the transcriber.
_TRANSCRIBER = re.compile(
    r"[\[*{_= ]*(?:Transcriber|Transcription|TN:)|[^\n]{0,70}\btranscriber\b",
    re.IGNORECASE,
)
# `COPYRIGHT, 1898`, `ILLUSTRATED BY`, `NEW YORK: HARPER & BROTHERS`.
_TITLE_PAGE = re.compile(
    r"\W*(?:ALL RIGHTS|COPYRIGHT|ENTERED ACCORDING|ILLUSTRAT(?:ED|IONS?)\b|TRANSLATED"
    r"|EDITED BY|WITH (?:NOTES|ILLUSTRATIONS|AN INTRODUCTION|MORE THAN)|AUTHOR OF"
    r"|BY THE |PRINTE[DR]|PUBLISHE|NEW YORK|LONDON\b|BOSTON\b|PHILADELPHIA\b|PARIS\b)",
    re.IGNORECASE,
)
# `THE END`, `FINIS.`, `END OF VOL. I`: a block of its own.
_THE_END = re.compile(r"\W*(?:THE END|END OF|FINIS|FIN)\b.{0,60}", re.IGNORECASE)
# `CONTENTS`, `LIST OF ILLUSTRATIONS`, `TABLE DES MATIÈRES`: a heading of a table.
_CONTENTS = re.compile(
    r"\W*(?:TABLE OF )?(?:CONTENTS|ILLUSTRATIONS|LIST OF (?:ILLUSTRATIONS|PLATES)"
    r"|TABLE DES MATI[EÈ]RES|[IÍ]NDICE|INDEX)\W*(?:OF .{0,40})?",
    re.IGNORECASE,
)
# A book on one line is no notice, whatever it holds.
_MAX_NOTICE = 5_000
# The end of prose, with closing quotation marks and brackets.
_FULL_STOP = re.compile(r"[.!?:;][\"'”’»)\]_*]*$")
_GUTENBERG = re.compile(r"project\s+gutenberg", re.IGNORECASE)
_ETEXT = re.compile(r"\be-?texts?\b", re.IGNORECASE)
# The end of a sentence, or of a line of speech or verse, in any script.
_SENTENCE_END = re.compile(
    r"[.!?:;,…—\-。！？：；，、｡؟؛۔।။៕።][\"'”’»)\]_*」』）]*$|[\"”’»」』]$"
)
_DIVISIONS = (
    r"CHAPTER|CHAP\.|BOOK|PART|VOLUME|VOL\.|SECTION|LETTER|CANTO|STAVE|ACT|SCENE"
    r"|CHAPITRE|CAP[IÍ]TULO|LIVRE|APPENDIX"
)
# An entry of a table of contents: `CHAPTER IV`, `XII.`, `12.`
_ENTRY = re.compile(
    rf"\s*(?:(?:{_DIVISIONS})\s+[\dIVXLCivxlc]+\b|[IVXLC]{{1,7}}\.|\d{{1,3}}\.)",
    re.IGNORECASE,
)
# `CHAPTER THE FIRST`, `ACT II`, `IV.`, `12`: the heading of a chapter.
_HEADING = re.compile(
    rf"(?:{_DIVISIONS}|SECT\.|NO\.)\s+"
    r"(?:[\dIVXLC]+|THE|ONE|TWO|THREE|FOUR|FIVE|SIX|SEVEN|EIGHT|NINE|TEN|ELEVEN"
    r"|TWELVE|FIRST|SECOND|THIRD|LAST|PREMI[EÈ]R)\b|[IVXLC]+\.?$|\d+\.?$",
    re.IGNORECASE,
)
# `The Whale ........ 27`, `Whales, 3-5, 12`: an entry with its pages.
_PAGE_AT_END = re.compile(r"(?:\.{3,}|\s{2,}|, )\d+(?:[-–, ]+\d+)*[.,;]?$")
# Between verse and a note or number beside it.
_GAP = re.compile(r" {3,}|\t+")
# Four words, as hardly a first column has in all of its rows.
_LINE_OF_VERSE = re.compile(r"[\W_]*[^\W\d_]\S*(?: {1,2}\S+){3}")
_NO_LETTERS = re.compile(r"[\W\d_]+")
_MAX_ROW = 200
# A gap between columns, a bar of a table, leaders of points before a number.
_COLUMNS = re.compile(
    r"\S {3,}\S|\S\t+\S|(?:^|\s)\||\|(?:\s|$)|\S\s*\.{5,}|\S\s*\.{4}\s*[\d$£]"
)


def _drop_notices(
    sections: list[list[list[str]]], *, has_front: bool, counts: Counter[str]
) -> list[list[str]]:
    """Drops text by others than the author: credits, notes on the transcription."""
    num_blocks = sum(map(len, sections))
    # A tenth of a book, but no more than its title pages.
    near = max(min(num_blocks // 10, 40), 8)
    front = near if has_front else 0
    kept: list[list[str]] = []
    index = 0
    for section in sections:
        for position, block in enumerate(section):
            index += 1
            text = "\n".join(block).strip()
            is_notice = len(text) < _MAX_NOTICE
            if is_notice and _TRANSCRIBER.match(text):
                if index > near and index > num_blocks * 0.9:
                    # Notes at the end of a book are followed by nothing else.
                    counts["transcriber's notes"] += num_blocks - index + 1
                    return kept
                num_left = len(section) - position
                # Elsewhere they end with their section, unless that is the book.
                if num_left < 12:
                    counts["transcriber's notes"] += num_left
                    index += num_left - 1
                    break
                counts["transcriber's notes"] += 1
            elif is_notice and "gutenberg" in text.lower() and _GUTENBERG.search(text):
                counts["notices"] += 1
            elif is_notice and index <= front and _is_front_matter(text):
                counts["front matter"] += 1
            else:
                kept.append(block)
    return kept


def _is_front_matter(text: str) -> bool:
    is_title_page = len(text) < 300 and _TITLE_PAGE.match(text)
    return bool(is_title_page or _CREDITS.match(text) or _ETEXT.search(text))


def _drop_contents(blocks: list[list[str]]) -> list[list[str]]:
    """Drops tables of contents. They extend from their heading to the first block of
    prose, or to the point where one of their entries returns as the heading of its
    chapter."""
    kept = []
    entries: set[str] | None = None
    for block in blocks:
        # Entries without their pages.
        lines = [" ".join(line.lower().split()) for line in block]
        lines = [line.rstrip("0123456789 .") for line in lines]
        if len(block) < 3 and _CONTENTS.fullmatch(block[0].strip()):
            entries = set()
        elif entries is not None:
            text = " ".join(line.strip() for line in block)
            num_entries = sum(
                bool(_ENTRY.match(line) or _PAGE_AT_END.search(line)) for line in block
            )
            is_prose = len(text) >= 120 and num_entries * 3 < len(block)
            is_prose = is_prose and _FULL_STOP.search(text) and not _HEADING.match(text)
            if is_prose or (len(lines) < 4 and lines[0] in entries):
                entries = None
            else:
                entries.update(lines)
        if entries is None:
            kept.append(block)
    # Half of a book is no table of contents.
    return kept if len(kept) * 2 > len(blocks) else blocks


def _reason_to_drop(lines: list[str]) -> str | None:
    """Returns why lines are no running text; `None`: they are."""
    text = " ".join(lines)
    start = text[:400]
    num_letters = len(_NO_LETTERS.sub("", start))
    num_marks = len(start) - start.count(" ") - num_letters
    is_short = len(text) < _MAX_NOTICE
    if is_short and (num_letters == 0 or num_marks > max(num_letters, 10)):
        return "ornaments"
    if _is_heading(lines, text):
        return "headings"
    columns = entries = 0
    if any(mark in text for mark in ("   ", "\t", "|", "....")):
        # A paragraph on one line may have a mark, which makes it no row of a table.
        columns = sum(len(_COLUMNS.findall(x)) * _MAX_ROW > len(x) for x in lines)
    if any(line[-2:-1].isdigit() or line[-1].isdigit() for line in lines):
        short = [line for line in lines if len(line) < _MAX_ROW]
        entries = sum(bool(_PAGE_AT_END.search(line)) for line in short)
    return "tables" if max(columns, entries) * 2 >= len(lines) else None


def _without_line_notes(lines: list[str]) -> list[str] | None:
    """Returns verse without the column of notes and numbers; `None`: no verse."""
    rows = [_GAP.split(line) for line in lines]
    notes = [row[1] for row in rows if len(row) == 2]
    is_verse = all(
        len(row) < 3 and _LINE_OF_VERSE.match(row[0]) and "|" not in row[0]
        for row in rows
    )
    num_numbers = sum(note.strip("[]().").isdigit() for note in notes)
    if len(lines) < 2 or not is_verse or num_numbers * 2 >= len(lines):
        return None
    return [row[0] for row in rows]


def _is_heading(lines: list[str], text: str) -> bool:
    if _HEADING.match(text) and len(text) < 120 and len(lines) < 4:
        return True
    if text.upper() == text != text.lower() and len(lines) < 8 and len(text) < 400:
        # Capitals, as on a title page; but not a cry: "NO!"
        return not text.endswith(("!", "?", "”", '"', "’", "'"))
    if _THE_END.fullmatch(text):
        return True
    if _SENTENCE_END.search(text):
        return False
    if _ENTRY.match(text) and len(text) < 160:
        return True
    if len(lines) > 3 or max(map(len, lines)) > 59 or len(text) > 119:
        return False
    # In scripts without spaces, 119 characters may be 60 words.
    return not words.has_unspaced(text) or words.count_words(text) < 20


# 5. Lines -> one paragraph.

# `_emphasis_`, `=bold=`, `~gesperrt~`.
_EMPHASIS = re.compile(r"(?<![^\W_])[_=~]{1,2}(?=\S)([^_=~]{1,2000}?)(?<=\S)[_=~]{1,2}")
# A word or dash cut at the end of a line: `to-\nday`, `so--\nhe`.
_BROKEN_WORD = re.compile(r"([^\W\d_]-|--|—)\n[ \t]*(?=[^\W\d_\"“‘'])")
