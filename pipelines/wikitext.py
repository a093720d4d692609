"""Wikitext -> paragraphs of running text, in time linear in the page.

Lists, tables, headings, references, files, categories and most templates are dropped,
as section 3.1 of the BERT paper has it. One scan over the markup with a stack of open
constructs, then one pass over the lines. Whatever is not closed, or closed without
having been opened, is dropped and the text around it stays.
"""

import html
import re
from collections.abc import Callable

# Far beyond what MediaWiki nests; deeper openings are ignored, which bounds the work.
_MAX_DEPTH = 60

# The lookahead is for speed alone: it lets the engine skip by a set of characters.
_TOKEN = re.compile(
    r"(?=[\[\]{}<\n])(?:\[\[|\]+|\{\{+|\}\}+"
    r"|\n[ \t:*#]*\{\||\n[ \t:*#]*\|\}(?!\})"
    r"|\[(?=(?:https?:|ftp:|mailto:|irc:|news:|//)[^\s\]])"
    r"|<!--|</?[a-zA-Z][a-zA-Z0-9]*(?:[\s/][^<>]*)?>)"
)
_URL = re.compile(r"[^\s\]\[<>]*")

# What stands between these tags is not wikitext, or no running text, or both.
_RAW_TAGS = frozenset(
    "ref math chem ce pre syntaxhighlight source gallery imagemap timeline score "
    "hiero graph mapframe maplink templatedata templatestyles inputbox categorytree "
    "dynamicpagelist poll rss style script nowiki".split()
)
# Blocks that may contain each other and any other wikitext.
_DROPPED_TAGS = frozenset(
    "table ul ol dl li dt dd h1 h2 h3 h4 h5 h6 includeonly references".split()
)
_BREAKING_TAGS = frozenset("p div blockquote center br hr poem".split())
_INLINE_TAGS = frozenset(
    "b i u s em strong small big sub sup span code tt kbd samp var dfn cite q abbr "
    "acronym font strike del ins mark bdi bdo ruby rb rt rp rtc time data wbr nobr "
    "noinclude onlyinclude section tr td th tbody thead tfoot caption translate "
    "tvar languages img a label input form button".split()
)
_RAW_END = {
    tag: re.compile(rf"</{tag}\s*>|<{tag}(?:\s[^<>]*)?(?<!/)>", re.IGNORECASE)
    for tag in _RAW_TAGS
}

_FILE_PREFIXES = frozenset(
    "file image media datei bild fichier archivo imagen ficheiro imagem immagine "
    "bestand afbeelding файл изображение картинка ファイル 画像 ملف صورة وسائط 文件 "
    "檔案 档案 图像 圖像 图片 plik grafika fil soubor attēls vaizdas fails attels "
    "зображення 파일 그림 tệp hình berkas dosya resim پرونده קובץ चित्र tiedosto "
    "fájl kép εικόνα αρχείο fitxer imatge fișier slika датотека слика hulagay "
    "paypay".split()
)
_CATEGORY_PREFIXES = frozenset(
    "category kategorie catégorie categoría categoria categorie категория 分類 分类 "
    "カテゴリ تصنيف kategoria kategori kategorija kategoreja категорія 분류 thể_loại "
    "رده קטגוריה श्रेणी luokka kategória κατηγορία categorie kaarangay".split()
)
# Interwiki prefixes that look like the code of a language and are none.
_NOT_LANGUAGES = frozenset("doi rfc mw wmf osm irc cia".split())
_LANGUAGE = re.compile(r"[a-z]{2,3}(?:-[a-z]{2,8}){0,2}|simple")

_Template = Callable[[list[str]], str]


def _argument(number: int) -> _Template:
    return lambda arguments: arguments[number] if len(arguments) > number else ""


def _last(arguments: list[str]) -> str:
    return arguments[-1] if arguments else ""


def _constant(text: str) -> _Template:
    return lambda arguments: text


def _prefixed(prefix: str) -> _Template:
    return lambda arguments: f"{prefix} {arguments[0]}" if arguments else ""


def _suffixed(suffix: str) -> _Template:
    return lambda arguments: f"{arguments[0]}{suffix}" if arguments else ""


def _paragraph(arguments: list[str]) -> str:
    return f"\n\n{arguments[0]}\n\n" if arguments else ""


def _convert(arguments: list[str]) -> str:
    # {{convert|10|to|20|km|mi}} or {{convert|10|km|mi}}: value, unit, other unit.
    count = 4 if len(arguments) > 3 and arguments[1] in _RANGE_WORDS else 2
    words = [_RANGE_WORDS.get(word, word) for word in arguments[:count]]
    return " ".join(words)


_RANGE_WORDS = {"to": "to", "and": "and", "or": "or", "-": "to", "–": "to", "by": "by"}

# Templates that stand for words inside a sentence: without them it would have a hole.
_INLINE_TEMPLATES: dict[str, _Template] = {
    "lang": _argument(1),
    "langue": _argument(1),
    "transl": _last,
    "transliteration": _last,
    "nowrap": _last,
    "nobr": _last,
    "nobold": _last,
    "small": _last,
    "smallcaps": _last,
    "big": _last,
    "abbr": _argument(0),
    "tooltip": _argument(0),
    "convert": _convert,
    "cvt": _convert,
    "unité": _convert,
    "unit": _convert,
    "circa": _prefixed("c."),
    "c.": _prefixed("c."),
    "ca": _prefixed("c."),
    "as of": _prefixed("As of"),
    "frac": "/".join,
    "fraction": "/".join,
    "ill": _argument(0),
    "interlanguage link": _argument(0),
    "仮リンク": _argument(0),
    "読み仮名": _argument(0),
    "ruby": _argument(0),
    "quote": _paragraph,
    "cquote": _paragraph,
    "blockquote": _paragraph,
    "s": _suffixed("e siècle"),
    "s-": _suffixed("e siècle"),
    "nbsp": _constant(" "),
    "space": _constant(" "),
    "ndash": _constant("–"),
    "endash": _constant("–"),
    "spnd": _constant(" – "),
    "snd": _constant(" – "),
    "spaced ndash": _constant(" – "),
    "mdash": _constant("—"),
    "'": _constant("'"),
    "!": _constant("|"),
    "=": _constant("="),
}


def clean(wikitext: str) -> list[str]:
    """Returns the running text of a page.

    Args:
        wikitext: the source of a page.

    Returns:
        Paragraphs in order, each on one line, without markup; none is empty.
    """
    text = _drop_markup("\n" + wikitext)
    if "-{" in text:
        text = _VARIANTS.sub(_first_variant, text)
    paragraphs = []
    for block in _blocks(text.split("\n")):
        if paragraph := _tidy(block):
            paragraphs.append(paragraph)
    return paragraphs


class _Scan:
    """The text kept so far, and the constructs that are open in it."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self._opened: list[list] = []
        self._num_open: dict[str, int] = {}

    def open(self, kind: str, size: int = 2) -> None:
        """Opens a construct whose content begins with the next text kept."""
        if len(self._opened) < _MAX_DEPTH:
            self._opened.append([kind, len(self.kept), size])
            self._num_open[kind] = self._num_open.get(kind, 0) + 1

    def innermost(self) -> str | None:
        """The kind of the construct that was opened last."""
        return self._opened[-1][0] if self._opened else None

    def is_open(self, kind: str) -> bool:
        """Whether such a construct is open, at whatever depth."""
        return self._num_open.get(kind, 0) > 0

    def close(self, kind: str) -> str:
        """Closes the innermost of a kind and takes its content out of the text."""
        while True:
            opened, start, _ = self._opened.pop()
            self._num_open[opened] -= 1
            if opened == kind:
                break
        content = "".join(self.kept[start:])
        del self.kept[start:]
        return content

    def close_braces(self, size: int) -> None:
        """Closes as many templates as `size` closing braces do."""
        while size >= 2 and self.is_open("{{"):
            while self._opened[-1][0] != "{{":
                self._num_open[self._opened.pop()[0]] -= 1
            frame = self._opened[-1]
            used = min(frame[2], size, 3)
            frame[2] -= used
            size -= used
            if frame[2] < 2:
                self.kept.append(_expand_template(self.close("{{")))


def _drop_markup(text: str) -> str:
    """Resolves or drops everything but quotes (bold, italic), entities and lines."""
    scan = _Scan()
    unclosed: set[str] = set()
    position = 0
    while token := _TOKEN.search(text, position):
        start, end = token.span()
        if start > position:
            scan.kept.append(text[position:start])
        position = end
        mark = token[0]
        first = mark[0]
        if mark == "[[":
            scan.open("[[")
        elif first == "]":
            _close_brackets(scan, len(mark))
        elif first == "{":
            scan.open("{{", len(mark))
        elif first == "}":
            scan.close_braces(len(mark))
        elif first == "\n":
            _table(scan, mark)
        elif first == "[":
            scan.open("[")
            position = _URL.match(text, end).end()
        elif mark == "<!--":
            position = _after_comment(text, end, unclosed)
        else:
            position = _tag(scan, text, token, unclosed)
    scan.kept.append(text[position:])
    return "".join(scan.kept)


def _close_brackets(scan: _Scan, size: int) -> None:
    while size:
        innermost = scan.innermost()
        if innermost == "[":
            scan.kept.append(scan.close("[").strip())
            size -= 1
        elif innermost == "[[" and size >= 2:
            scan.kept.append(_resolve_link(scan.close("[[")))
            size -= 2
        elif size >= 2 and scan.is_open("[["):
            # Something inside the link was never closed.
            size -= 2
            if not scan.is_open("{{"):
                scan.kept.append(_resolve_link(scan.close("[[")))
        else:
            # A single bracket may be text, as in "[sic]"; a double one is rubbish.
            scan.kept.append("]" * (size % 2))
            return


def _table(scan: _Scan, mark: str) -> None:
    if mark.endswith("{|"):
        scan.kept.append("\n")
        scan.open("{|")
    elif scan.is_open("{|"):
        scan.close("{|")
        # The bar lets the lines see that a table was here.
        scan.kept.append("\n|\n")
    else:
        scan.kept.append("\n")


def _after_comment(text: str, position: int, unclosed: set[str]) -> int:
    end = -1 if "<!--" in unclosed else text.find("-->", position)
    if end < 0:
        unclosed.add("<!--")
        return position
    return end + len("-->")


def _tag(scan: _Scan, text: str, token: re.Match[str], unclosed: set[str]) -> int:
    """Handles an HTML or extension tag; returns where to go on."""
    mark = token[0]
    is_end = mark[1] == "/"
    name = _TAG_NAME.match(mark)[1].lower()
    if name in _INLINE_TAGS:
        return token.end()
    if name in _BREAKING_TAGS:
        scan.kept.append(" " if name == "br" else "\n\n")
    elif name in _RAW_TAGS:
        if not is_end and not mark.endswith("/>"):
            return _after_raw(scan, text, token.end(), name, unclosed)
    elif name not in _DROPPED_TAGS:
        # Not a tag: "<stdio.h>", "<name@host>".
        scan.kept.append(mark)
    elif is_end:
        if scan.is_open(name):
            scan.close(name)
            scan.kept.append("\n")
    elif not mark.endswith("/>"):
        scan.open(name)
    return token.end()


_TAG_NAME = re.compile(r"</?([a-zA-Z0-9]+)")
_NOWIKI = {ord(mark): f"&#{ord(mark)};" for mark in "[]{}|*#;:='<>&-!_"}


def _after_raw(
    scan: _Scan, text: str, position: int, name: str, unclosed: set[str]
) -> int:
    if name in unclosed:
        return position
    end = _RAW_END[name].search(text, position)
    if end is None:
        unclosed.add(name)
        return position
    if end[0][1] != "/":
        # Opened again before it was closed: drop this tag alone.
        return position
    if name == "nowiki":
        scan.kept.append(text[position : end.start()].translate(_NOWIKI))
    return end.end()


def _resolve_link(content: str) -> str:
    """The text that `[[content]]` shows."""
    target, bar, label = content.partition("|")
    prefix, colon, rest = target.partition(":")
    if colon:
        prefix = prefix.strip().lower()
        if prefix in _FILE_PREFIXES or prefix in _CATEGORY_PREFIXES:
            return ""
        if _LANGUAGE.fullmatch(prefix) and prefix not in _NOT_LANGUAGES:
            return ""
        if not prefix:
            target = rest
    return label if bar and label.strip() else target.strip().removeprefix("#")


def _expand_template(content: str) -> str:
    """The words that a template stands for, where we know them; mostly none."""
    name, _, rest = content.partition("|")
    name = name.strip().lower()
    expand = _INLINE_TEMPLATES.get(name)
    if expand is None:
        if not name.startswith("lang-"):
            return ""
        expand = _argument(0)
    arguments = [argument.strip() for argument in rest.split("|")] if rest else []
    return expand(
        [
            _NUMBERED.sub("", argument)
            for argument in arguments
            if not _NAMED.match(argument)
        ]
    )


_NAMED = re.compile(r"(?!\d+\s*=)[\w -]{1,30}=")
_NUMBERED = re.compile(r"^(?:\d+|text)\s*=\s*")

# Chinese and Serbian: -{zh-hans:...; zh-hant:...}-
_VARIANTS = re.compile(r"-\{([^{}]*)\}-")


def _first_variant(match: re.Match[str]) -> str:
    content = match[1].rpartition("|")[2]
    return content.partition(";")[0].rpartition(":")[2].strip()


def _blocks(lines: list[str]) -> list[str]:
    """Joins the lines of each paragraph; drops lists, headings and table rows."""
    blocks: list[str] = []
    current: list[str] = []

    def flush() -> None:
        if current:
            blocks.append(" ".join(current))
            current.clear()

    for line in lines:
        kind = _line_kind(line)
        if kind == "text":
            current.append(_drop_quotes(line) if "''" in line else line)
            continue
        flush()
        if kind != "blank" and blocks and _is_lead(blocks[-1]):
            blocks.pop()
    flush()
    return blocks


def _line_kind(line: str) -> str:
    first = line[:1]
    if not first or line.isspace():
        return "blank"
    if first in "*#:;":
        return "list"
    if first in "|!=-":
        if first == "|" or (first == "!" and "!!" in line):
            return "table"
        is_rule = first == "-" and line.startswith("----")
        is_heading = first == "=" and line.rstrip().endswith("=")
        return "heading" if is_rule or is_heading else "text"
    if first in " \t":
        return "text" if _is_prose(line.strip()) else "preformatted"
    if line.startswith("'''") and _PSEUDO_HEADING.fullmatch(line):
        return "heading"
    return "text"


_PSEUDO_HEADING = re.compile(r"'''[^'.]{1,80}'''[:\s]*")


def _is_prose(line: str) -> bool:
    # A leading space means preformatted text, such as code; but it is also left where
    # a template or reference began the line of a paragraph.
    return len(line) > 60 and line[0] not in "*#:;|" and ". " in line + " "


def _is_lead(block: str) -> bool:
    """Whether this only announces what was dropped after it: "It may refer to:"."""
    return block.rstrip().endswith((":", "：")) and ". " not in block


_QUOTES = re.compile("'{2,}")


def _drop_quotes(line: str) -> str:
    """Drops the marks of bold and italic as MediaWiki reads them.

    "l'''Iliade''" is an apostrophe and italic: where neither bold nor italic comes
    out even, one mark of bold is an apostrophe and a mark of italic.
    """
    runs = list(_QUOTES.finditer(line))
    sizes = [len(run[0]) if len(run[0]) < 6 else 5 for run in runs]
    num_italic = sum(size in (2, 5) for size in sizes)
    num_bold = sum(size in (3, 4, 5) for size in sizes)
    apostrophe = -1
    if num_italic % 2 and num_bold % 2:
        bold = [run.start() for run in runs if len(run[0]) == 3]
        elided = [at for at in bold if at > 1 and line[at - 2] == " " != line[at - 1]]
        elided += [at for at in bold if at > 0 and line[at - 1] != " "]
        apostrophe = next(iter(elided + bold), -1)

    def shown(run: re.Match[str]) -> str:
        size = len(run[0])
        if run.start() == apostrophe or size == 4:
            return "'"
        return "'" * max(size - 5, 0)

    return _QUOTES.sub(shown, line)


_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,31});")
_MAGIC_WORD = re.compile(r"__[^\W\d_]{3,}__")
_EMPTY_BRACKETS = re.compile(r"\([\s,;:]{0,20}\)|（[\s、，；,;]{0,20}）|\[ ?\]")
_AFTER_BRACKET = re.compile(r"([(（])[\s,;:、，；]{1,20}")
_BEFORE_BRACKET = re.compile(r"[\s,;、，；]{1,20}([)）])")
_BEFORE_BRACKET_PAIRS = (" )", ",)", ";)", " ）", "、）", "，）", "；）")
_SPACE_BEFORE_POINT = re.compile(r" ([,.])(?=[ ,.]|$)")
_LETTER = re.compile(r"[^\W\d_]")


def _tidy(block: str) -> str:
    """Decodes entities and mends what dropped markup leaves behind."""
    text = block
    if "&" in text:
        text = _ENTITY.sub(lambda match: html.unescape(match[0]), text)
    if "__" in text:
        text = _MAGIC_WORD.sub("", text)
    if "(" in text or "（" in text or "[" in text:
        text = _EMPTY_BRACKETS.sub("", text)
        text = _AFTER_BRACKET.sub(r"\1", text)
    text = " ".join(text.replace('""', "").split())
    if any(pair in text for pair in _BEFORE_BRACKET_PAIRS):
        text = _BEFORE_BRACKET.sub(r"\1", text)
    if " ," in text or " ." in text:
        text = _SPACE_BEFORE_POINT.sub(r"\1", text)
    text = text.lstrip(" ,;:")
    return text if _LETTER.search(text) else ""
