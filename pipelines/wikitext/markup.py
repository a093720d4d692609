"""Markup -> text: links, templates, tags, tables and comments.

One scan with a stack of open constructs. Whatever is not closed, or closed without
having been opened, is dropped and the text around it stays.
"""

import re

from pipelines.wikitext import templates

# Far beyond what MediaWiki nests; deeper openings are ignored, which bounds the work.
_MAX_DEPTH = 60

# The lookahead is for speed alone: it lets the engine skip by a set of characters. So
# are the groups: most links and templates hold no others, and are done in one step.
_TOKEN = re.compile(
    r"(?=[\[\]{}<\n])(?:"
    r"\[\[(?!#)([^\[\]{}<|:\n]+)(?:\|([^\[\]{}<|\n]+))?\]\](?!\])"
    r"|\{\{([^\[\]{}<]+)\}\}(?!\})"
    r"|\[\[|\]+|\{\{+|\}\}+"
    r"|\n[ \t:*#]*\{\||\n[ \t:*#]*\|\}(?!\})"
    r"|\[(?=(?:https?:|ftp:|mailto:|irc:|news:|//)[^\s\]])"
    r"|<!--|</?[a-zA-Z][a-zA-Z0-9]*(?:[\s/][^<>]*)?>)"
)
_TEMPLATE_GROUP = 3
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


# A line that is dropped in its turn, but shows that something stood here.
_DROPPED_BLOCK = "\n|\n"


def resolve(wikitext: str) -> str:
    """Resolves or drops all markup but bold and italic, entities and line prefixes.

    Returns:
        Lines of text. A table or list leaves a line with a bar.
    """
    text = _drop_markup("\n" + wikitext)
    return _VARIANTS.sub(_first_variant, text) if "-{" in text else text


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
                self.kept.append(templates.expand(self.close("{{")))


def _drop_markup(text: str) -> str:
    scan = _Scan()
    last_comment_end = text.rfind("-->")
    position = 0
    while token := _TOKEN.search(text, position):
        start, end = token.span()
        if start > position:
            scan.kept.append(text[position:start])
        position = end
        if group := token.lastindex:
            content = token[group]
            is_template = group == _TEMPLATE_GROUP
            scan.kept.append(templates.expand(content) if is_template else content)
            continue
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
            if end <= last_comment_end:
                position = text.find("-->", end) + len("-->")
        else:
            position = _tag(scan, text, token)
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
        scan.kept.append(_DROPPED_BLOCK)
    else:
        scan.kept.append("\n")


def _tag(scan: _Scan, text: str, token: re.Match[str]) -> int:
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
            return _after_raw(scan, text, token.end(), name)
    elif name not in _DROPPED_TAGS:
        # Not a tag: "<stdio.h>", "<name@host>".
        scan.kept.append(mark)
    elif is_end:
        if scan.is_open(name):
            scan.close(name)
            scan.kept.append(_DROPPED_BLOCK)
    elif not mark.endswith("/>"):
        scan.open(name)
    return token.end()


_TAG_NAME = re.compile(r"</?([a-zA-Z0-9]+)")
_NOWIKI = {ord(mark): f"&#{ord(mark)};" for mark in "[]{}|*#;:='<>&-!_"}


def _after_raw(scan: _Scan, text: str, position: int, name: str) -> int:
    end = _RAW_END[name].search(text, position)
    if end is None or end[0][1] != "/":
        # Never closed, or opened again before: drop this tag alone. As the search
        # stops at the next opening, all searches together pass over the text once.
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


# Chinese and Serbian: -{zh-hans:...; zh-hant:...}-
_VARIANTS = re.compile(r"-\{([^{}]*)\}-")


def _first_variant(match: re.Match[str]) -> str:
    content = match[1].rpartition("|")[2]
    return content.partition(";")[0].rpartition(":")[2].strip()
