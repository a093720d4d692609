"""Markup -> text: links, templates, tags, tables and comments.

One scan with a stack of open constructs. An opening or closing mark without its
counterpart is dropped, and the text around it stays.
"""

import re
from collections import Counter

from bert_keras.pipelines import words
from bert_keras.pipelines.wikitext import templates

# Far beyond MediaWiki's nesting; deeper openings are ignored, which bounds the work.
_MAX_DEPTH = 60

# Every alternative begins with a character of its own, so the engine skips from one
# such character to the next. Most links, templates and references contain no others,
# and are one token. Possessive repeats never backtrack, which keeps the scan linear.
_TOKEN = re.compile(
    r"\[\[(?!#)([^\[\]{}<|:\n]++)(?:\|([^\[\]{}<|\n]++))?+\]\](?!\])"
    r"|\{\{([^\[\]{}<]++)\}\}(?!\})"
    r"|<(ref)(?=[\s/>])[^<>]*+(?:(?<=/)>|>[^<]*+</ref>)"
    r"|</?([a-zA-Z][a-zA-Z0-9]*+)(?:[\s/][^<>]*+)?+>"
    r"|\[\[|\]\]*+|\{\{++|\}\}++"
    r"|\n[ \t:*#]*+(?:\{\||\|\}(?!\}))"
    r"|\[(?=(?:https?:|ftp:|mailto:|irc:|news:|//)[^\s\]])[^\s\]\[<>]*+"
    r"|<!--"
)
_TARGET, _LABEL, _TEMPLATE, _REFERENCE, _TAG = range(1, 6)

_RAW_TAGS, _DROPPED_TAGS = map(words.read_rules, ("raw_tags", "dropped_tags"))
_OTHER_TAGS = words.read_lists("tags")
_RAW_END = {
    tag: re.compile(rf"</{tag}\s*+>|<{tag}(?:[\s/][^<>]*+)?+(?<!/)>", re.IGNORECASE)
    for tag in _RAW_TAGS
}

_LINK_RULES = words.read_rules("links")
# Interwiki prefixes that only look like the code of a language.
_NOT_LANGUAGES = frozenset("doi rfc mw wmf osm irc cia".split())
_LANGUAGE = re.compile(r"[a-z]{2,3}(?:-[a-z]{2,8}){0,2}|simple")

# A placeholder for something dropped; later dropped itself.
_DROPPED_BLOCK = "\n|\n"
FORMULA = "\0"
"""A placeholder for a dropped formula; XML cannot hold it."""

# As entities, marks are text to all rules; `lines` decodes them in the end.
_NOWIKI = {ord(mark): f"&#{ord(mark)};" for mark in "[]{}|*#;:='<>&-!_"}

# Chinese and Serbian: -{zh-hans:...; zh-hant:...}-, -{flag|...}-. With these flags, it
# shows nothing, but defines the spelling of words elsewhere.
_HIDING_FLAGS = frozenset("HT-")
_VARIANTS = re.compile(r"-\{([^{}]*)\}-")


def resolve(wikitext: str, counts: Counter[str]) -> str:
    """Resolves or drops all markup but bold and italic, entities and line prefixes. A
    table or list leaves a line with a bar, and a formula a `FORMULA`."""
    # A table begins after a line end, so the first line needs one, too.
    scan = _Scan("\n" + wikitext, counts)
    position = 0
    while token := _TOKEN.search(scan.text, position):
        scan.kept.append(scan.text[position : token.start()])
        group, position = token.lastindex, token.end()
        if group is None:
            position = _take_mark(scan, token[0], position)
        elif group <= _LABEL:
            scan.kept.append(token[group])
        elif group == _TEMPLATE:
            scan.keep_template(token[_TEMPLATE])
        elif group == _REFERENCE:
            counts["references"] += 1
        else:
            position = _take_tag(scan, token[0], token[_TAG], position)
    text = "".join(scan.kept) + scan.text[position:]
    return _VARIANTS.sub(_first_variant, text) if "-{" in text else text


class _Scan:
    """The text kept so far, and its open constructs."""

    def __init__(self, text: str, counts: Counter[str]) -> None:
        self.text = text
        self.counts = counts
        # An opening behind it is never closed. To search from each of many such
        # openings would take quadratic time.
        self.last_comment_end = text.rfind("-->")
        self.kept: list[str] = []
        # Kind, place in `kept` and number of brackets of each, the innermost last.
        self._opened: list[list] = []

    def open(self, kind: str, size: int = 2) -> None:
        if len(self._opened) < _MAX_DEPTH:
            self._opened.append([kind, len(self.kept), size])

    def is_open(self, kind: str) -> bool:
        return any(opened[0] == kind for opened in self._opened)

    def close(self, kind: str) -> str:
        """Closes the innermost of a kind and takes its content out of the text."""
        opened, start = "", 0
        while opened != kind:
            opened, start, _ = self._opened.pop()
        content = "".join(self.kept[start:])
        del self.kept[start:]
        return content

    def close_braces(self, size: int) -> None:
        while size >= 2 and self.is_open("{{"):
            while self._opened[-1][0] != "{{":
                self._opened.pop()
            frame = self._opened[-1]
            # Two braces are a template's, three a parameter's; more of them nest.
            used = min(frame[2], size, 3)
            frame[2] -= used
            size -= used
            if frame[2] < 2:
                self.keep_template(self.close("{{"))

    def close_brackets(self, size: int) -> None:
        while size:
            innermost = self._opened[-1][0] if self._opened else None
            if innermost == "[":
                self.kept.append(self.close("[").strip())
                size -= 1
            elif innermost == "[[" and size >= 2:
                self.kept.append(_resolve_link(self.close("[["), self.counts))
                size -= 2
            elif size >= 2 and self.is_open("[["):
                # Something inside the link was never closed.
                size -= 2
                if not self.is_open("{{"):
                    self.kept.append(_resolve_link(self.close("[["), self.counts))
            else:
                # A single bracket may be text, as in "[sic]"; a double one is garbage.
                self.kept.append("]" * (size % 2))
                return

    def keep_template(self, content: str) -> None:
        """Keeps the words that a template stands for, or counts it as dropped."""
        if FORMULA in content:
            content = content.replace(FORMULA, "")
            self.kept.append(FORMULA)
        if words := templates.expand(content):
            self.kept.append(words)
        else:
            self.counts["templates"] += 1


def _take_mark(scan: _Scan, mark: str, end: int) -> int:
    """Handles a mark; returns the position to continue at."""
    first = mark[0]
    if mark == "[[":
        scan.open("[[")
    elif first == "]":
        scan.close_brackets(len(mark))
    elif first == "{":
        scan.open("{{", len(mark))
    elif first == "}":
        scan.close_braces(len(mark))
    elif mark.endswith("{|"):
        scan.kept.append("\n")
        scan.open("{|")
    elif first == "\n":
        if scan.is_open("{|"):
            scan.close("{|")
            scan.kept.append(_DROPPED_BLOCK)
            scan.counts["tables"] += 1
        else:
            scan.kept.append("\n")
    elif first == "[":
        scan.open("[")
    elif end <= scan.last_comment_end:
        scan.counts["comments"] += 1
        return scan.text.find("-->", end) + len("-->")
    return end


def _take_tag(scan: _Scan, mark: str, name: str, end: int) -> int:
    """Handles an HTML or extension tag; returns the position to continue at."""
    is_end = mark[1] == "/"
    name = name.lower()
    if name in _OTHER_TAGS["inline"]:
        return end
    if name in _OTHER_TAGS["breaking"]:
        scan.kept.append(" " if name == "br" else "\n\n")
        # A space at the beginning of a line would mean preformatted text.
        while scan.text.startswith(" ", end):
            end += 1
        return end
    if name in _RAW_TAGS:
        if not is_end and not mark.endswith("/>"):
            return _after_raw(scan, end, name)
    elif name not in _DROPPED_TAGS:
        # Not a tag: "<stdio.h>", "<name@host>".
        scan.kept.append(mark)
    elif is_end:
        if scan.is_open(name):
            scan.close(name)
            scan.kept.append(_DROPPED_BLOCK)
            scan.counts[_DROPPED_TAGS[name]] += 1
    elif not mark.endswith("/>"):
        scan.open(name)
    return end


def _after_raw(scan: _Scan, position: int, name: str) -> int:
    """Drops the content of a raw tag; returns the position to continue at."""
    end = _RAW_END[name].search(scan.text, position)
    if end is None or end[0][1] != "/":
        # Never closed, or opened again first: drop only this tag. As the search stops
        # at the next opening, all searches together pass over the text once.
        return position
    if name == "nowiki":
        content = scan.text[position : end.start()]
        scan.kept.append(content.translate(_NOWIKI))
    else:
        scan.counts[_RAW_TAGS[name]] += 1
        if _RAW_TAGS[name] == "formulas":
            scan.kept.append(FORMULA)
    return end.end()


def _resolve_link(content: str, counts: Counter[str]) -> str:
    target, bar, label = content.partition("|")
    prefix, colon, rest = target.partition(":")
    if colon:
        prefix = prefix.strip().lower()
        if rule := _LINK_RULES.get(prefix):
            counts[rule] += 1
            return ""
        if _LANGUAGE.fullmatch(prefix) and prefix not in _NOT_LANGUAGES:
            counts["language_links"] += 1
            return ""
        if not prefix:
            target = rest
    return label if bar and label.strip(" \0") else target.strip().removeprefix("#")


def _first_variant(match: re.Match[str]) -> str:
    flags, _, content = match[1].rpartition("|")
    if not _HIDING_FLAGS.isdisjoint(flags):
        return ""
    return content.partition(";")[0].rpartition(":")[2].strip()
