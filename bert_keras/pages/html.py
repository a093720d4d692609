"""The one self-contained page: Markdown and its pictures as a single HTML file.

It works from a disk without a network. Texts of users stand on it, so nothing of the
Markdown can run, load or lead elsewhere: all tags but `<em>` and `<strong>` are shown
as text, links too, and the page's policy allows its own style, script and pictures.
"""

import base64
import hashlib
import html
import re
import string
from importlib import resources
from pathlib import Path
from typing import Any

import markdown_it
from markdown_it.token import Token


def from_markdown(text: str, directory: Path) -> bytes:
    """Returns the page in UTF-8; equal arguments give equal bytes.

    Args:
        text: the page in Markdown; its first heading is the title.
        directory: the local directory of its pictures, `![title](name.png)`. Of other
            pictures the title is shown.
    """
    template = resources.files("bert_keras.pages").joinpath("page.html")
    template = template.read_text(encoding="utf-8")

    # 1. What the Markdown may contain.
    parser = markdown_it.MarkdownIt("commonmark").enable("table")
    parser.disable(["link", "autolink", "reference"])

    def picture(_: Any, tokens: list[Token], place: int, *__: Any) -> str:
        title = html.escape(tokens[place].content)
        # A name, not a path or an address.
        name = str(tokens[place].attrs["src"])
        if not re.fullmatch(r"[\w-]+\.png", name) or not (directory / name).is_file():
            return f"<em>{title}</em>"
        data = base64.b64encode((directory / name).read_bytes()).decode()
        return f'<img alt="{title}" src="data:image/png;base64,{data}">'

    def tags(_: Any, tokens: list[Token], place: int, *__: Any) -> str:
        tag = tokens[place].content
        if tag.startswith("<!--"):
            return ""
        return tag if re.fullmatch("</?(em|strong)>", tag) else html.escape(tag)

    for rule, render in (
        ("image", picture),
        ("html_inline", tags),
        ("html_block", tags),
        # A wide table has a box of its own to scroll in, by keyboard, too.
        ("table_open", lambda *_: '<div class="scroll" tabindex="0">\n<table>\n'),
        ("table_close", lambda *_: "</table>\n</div>\n"),
    ):
        parser.add_render_rule(rule, render)

    # 2. The title, and links to the other headings.
    tokens = parser.parse(text)
    places = [p for p, token in enumerate(tokens) if token.type == "heading_open"]
    titles, links = [""], []
    for number, place in enumerate(places):
        parts = tokens[place + 1].children or ()
        texts = (p.content for p in parts if p.type in ("text", "code_inline"))
        titles.append(html.escape("".join(texts)))
        tokens[place].attrSet("id", f"part-{number}")
        if (tag := tokens[place].tag) in ("h2", "h3"):
            links.append(f'<a class="{tag}" href="#part-{number}">{titles[-1]}</a>')
    body = parser.renderer.render(tokens, parser.options, {})
    return fill(template, title=titles[:2][-1], links="\n".join(links), body=body)


def fill(template: str, **parts: str) -> bytes:
    """Returns a page in UTF-8, from a template and parts in HTML. Its policy makes
    browsers accept pictures within the page, and no style or script but the
    template's own."""
    sources = {"style": "'none'", "script": "'none'"}
    for tag in sources:
        for part in re.findall(f"<{tag}>(.*?)</{tag}>", template, re.DOTALL):
            digest = base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
            sources[tag] = f"'sha256-{digest}'"
    policy = (
        f"default-src 'none'; img-src data:; style-src {sources['style']}; "
        f"script-src {sources['script']}; base-uri 'none'; form-action 'none'"
    )
    page = string.Template(template).substitute(parts, policy=policy)
    return page.encode()
