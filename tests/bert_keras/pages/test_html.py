"""The page in HTML: what of the Markdown it shows, what it refuses, how it looks."""

import base64
import hashlib
import html.parser
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from bert_keras.pages import html as page
from bert_keras.pages import markdown, sections
from tests import browser

PNG = b"\x89PNG\r\n\x1a\n of a picture"

MARKDOWN = """\
<!-- Made by `bert-keras report` -->
# a *run* & `more`

Fine-tuning.

**accuracy 0.8** on 5 examples.

| label | share |
| --- | --- |
| a\\|b | 12.5 % |
| <em>empty</em> | – |

## Curves

![loss](loss.png)
![accuracy & more](accuracy.png)
"""

BODY = """\
<h1 id="part-0">a <em>run</em> &amp; <code>more</code></h1>
<p>Fine-tuning.</p>
<p><strong>accuracy 0.8</strong> on 5 examples.</p>
<div class="scroll" tabindex="0">
<table>
<thead>
<tr>
<th>label</th>
<th>share</th>
</tr>
</thead>
<tbody>
<tr>
<td>a|b</td>
<td>12.5 %</td>
</tr>
<tr>
<td><em>empty</em></td>
<td>–</td>
</tr>
</tbody>
</table>
</div>
<h2 id="part-1">Curves</h2>
<p><img alt="loss" src="data:image/png;base64,PICTURE">
<em>accuracy &amp; more</em></p>
"""


class Parsed(html.parser.HTMLParser):
    """Tags with their attributes, the text outside of style and script, and both."""

    def __init__(self, document: bytes) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.code, self.inside = "", {"style": "", "script": ""}, ""
        self.feed(document.decode())

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = tag

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside in self.code:
            self.code[self.inside] += data
        else:
            self.text += data


def body_of(document: bytes) -> str:
    return (
        document.decode().partition("<main>\n")[2].partition("</main>")[0].strip("\n")
    )


def test_the_body_and_the_pictures_inside(tmp_path):
    (tmp_path / "loss.png").write_bytes(PNG)
    document = page.from_markdown(MARKDOWN, tmp_path)
    data = base64.b64encode(PNG).decode()
    assert body_of(document) == BODY.replace("PICTURE", data).strip("\n")
    assert "<title>a run &amp; more</title>" in document.decode()
    assert '<a class="h2" href="#part-1">Curves</a>' in document.decode()
    assert page.from_markdown(MARKDOWN, tmp_path) == document


HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "</main></body><script src=//evil.example/x.js></script>",
    "<em onclick=alert(1)>a</em>",
    "<style>*{display:none}</style>",
    "<a href='javascript:alert(1)'>a</a>",
    "[a](javascript:alert(1))",
    "[a](https://evil.example)",
    "![a](https://evil.example/a.png)",
    "![a](../secret.png)",
    "![a](/etc/secret.png)",
    "<https://evil.example>",
    "[a]: https://evil.example\n\n[a]",
    "<!-- <script>alert(1)</script>",
    "<svg onload=alert(1)>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "<meta http-equiv=refresh content='0;url=https://evil.example'>",
    "<base href=https://evil.example>",
    "<form action=https://evil.example><button>a</button></form>",
    "$title $body $policy ${script}",
    '" onmouseover="alert(1)',
)


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize(
    "around",
    [
        "{}",
        "# {}",
        "## {}",
        "| a |\n| --- |\n| {} |",
        "![{}](loss.png)",
        "a **{}** `{}`",
    ],
)
def test_nothing_of_the_markdown_runs_loads_or_leads_elsewhere(tmp_path, text, around):
    """Not even if a page forgets to escape a text."""
    directory = tmp_path / "here"
    directory.mkdir()
    for path in (tmp_path / "secret.png", directory / "loss.png"):
        path.write_bytes(PNG)
    plain = Parsed(page.from_markdown("# a\n\n## b\n\n![a](loss.png)", directory))
    document = page.from_markdown(around.format(text, text), directory)
    parsed = Parsed(document)
    shown = (
        "h1",
        "h2",
        "p",
        "em",
        "strong",
        "code",
        "pre",
        "li",
        "ul",
        "ol",
        "hr",
        "br",
    )
    shown += ("div", "table", "thead", "tbody", "tr", "th", "td", "a", "img")
    known = [tag for tag in plain.tags if tag[0] not in shown]
    assert [(t, a | {"content": ""}) for t, a in parsed.tags if t not in shown] == [
        (t, a | {"content": ""}) for t, a in known
    ]
    for tag, attributes in parsed.tags:
        if tag in shown:
            assert attributes.keys() <= {
                "id",
                "class",
                "tabindex",
                "href",
                "alt",
                "src",
            }
            assert (attributes.get("href") or "#").startswith("#part-") or tag != "a"
            assert (attributes.get("src") or "data:image/png").startswith("data:image/")
    assert parsed.code == plain.code
    data = base64.b64encode(PNG).decode()
    assert document.decode().count(data) <= around.count("loss.png")


def test_the_text_of_hostile_strings_is_shown(tmp_path):
    """As the pages write them: escaped."""
    rows = [[markdown.literal(text, max_length=500)] for text in HOSTILE]
    parsed = Parsed(page.from_markdown(markdown.table(["text"], rows), tmp_path))
    for text in HOSTILE:
        assert " ".join(text.split()) in parsed.text


def test_the_policy_allows_the_page_and_nothing_else(tmp_path):
    parsed = Parsed(page.from_markdown("# a", tmp_path))
    (policy,) = (a["content"] for _, a in parsed.tags if "http-equiv" in a)
    hashes = {
        name: base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        for name, code in parsed.code.items()
    }
    assert policy == (
        f"default-src 'none'; img-src data:; style-src 'sha256-{hashes['style']}'; "
        f"script-src 'sha256-{hashes['script']}'; base-uri 'none'; form-action 'none'"
    )
    assert len(parsed.code["script"]) > 1000 < len(parsed.code["style"])
    for word in ("http:", "https:", "//", "url(", "@import", "fetch", "eval"):
        code = re.sub("^ *//.*$", "", parsed.code["script"], flags=re.MULTILINE)
        assert word not in code + parsed.code["style"]


# === Contrast ===

COLOURS = ("ground", "text", "quiet", "link", "panel", "line", "edge", "mark")
TEXTS = [(c, g) for c in ("text", "quiet", "link", "mark") for g in ("ground", "panel")]
"""Colours of texts with their grounds: 4.5 is the least (WCAG 2.2, 1.4.3, AA)."""
EDGES = [("edge", "panel"), ("edge", "ground"), ("link", "ground")]
"""Edges of fields and of what has the focus: 3 is the least (1.4.11)."""


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [
        p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts
    ]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)
    style = Parsed(page.from_markdown("# a", Path())).code["style"]
    light, dark = (
        dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", block))
        for block in re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    )
    assert {*light} == {*dark} == {*COLOURS}
    # No colour is written anywhere else, but the ground of pictures.
    assert len(re.findall("#[0-9a-f]{3,6}", style)) == 2 * len(COLOURS) + 1
    for colours in (light, dark):
        for pairs, least in ((TEXTS, 4.5), (EDGES, 3)):
            ratios = {
                pair: contrast(*(colours[name] for name in pair)) for pair in pairs
            }
            assert {p: r for p, r in ratios.items() if r < least} == {}


# === Large and driven pages ===


class Mistake(NamedTuple):
    line: int
    label: str
    prediction: str
    confidence: float
    text: str
    text_pair: None = None


COLUMNS = (
    *(sections.LINE, sections.LABEL, sections.PREDICTION, sections.CONFIDENCE),
    *(sections.TEXT, sections.TEXT_PAIR),
)


def mistakes(count: int) -> list[Mistake]:
    pairs = ("good", "bad"), ("bad", "good"), ("<b>bad</b>", "good")
    return [
        Mistake(n + 1, *pairs[n % 3], 1 - n / count, f"text {n} " + "word " * (n % 90))
        for n in range(count)
    ]


def test_a_page_of_many_mistakes_stays_small(tmp_path):
    options = {"summary": "10,000 of 20,000 answers are wrong", "order": "worst"}
    part = sections.mistakes_section(COLUMNS, mistakes(10_000), **options)
    assert "; the 20 worst:" in part.text and len(part.text.splitlines()) == 24
    assert "; the 500 worst:" in part.long_text
    document = page.from_markdown(part.long_text, tmp_path)
    assert len(document) < 300_000
    assert [t for t, _ in Parsed(document).tags].count("tr") == 501


ROWS = """
const table = document.querySelector("table");
return [...table.tBodies[0].rows].filter((row) => !row.hidden)
  .map((row) => row.cells[0].textContent);
"""


@pytest.mark.slow
def test_tables_sort_and_filter_in_a_browser(tmp_path):
    part = sections.mistakes_section(COLUMNS, mistakes(12), summary="12", order="worst")
    (tmp_path / "loss.png").write_bytes(PNG)
    text = f"# a\n\n## Mistakes\n\n{part.long_text}\n\n![loss](loss.png)\n"
    file = tmp_path / "page.html"
    file.write_bytes(page.from_markdown(text, tmp_path))
    with browser.opened(file.as_uri()) as opened:
        numbers = [str(n) for n in range(1, 13)]
        assert opened.run(ROWS) == numbers
        # 1. The heading of the probabilities, by a click, then by the keyboard.
        head = "const head = document.querySelectorAll('th')[arguments[0]]; "
        opened.run(head + "head.firstChild.focus(); head.firstChild.click()", 3)
        assert opened.run(ROWS) == numbers[::-1]
        assert opened.run(head + "return head.ariaSort", 3) == "ascending"
        opened.press("\ue007")
        assert opened.run(ROWS) == numbers
        assert opened.run(head + "return head.ariaSort", 3) == "descending"
        # 2. Filters: a label, a range of probabilities, a text.
        assert opened.run(
            "return [...document.querySelectorAll('.filter label')]"
            ".map((label) => label.firstChild.textContent.trim())"
        ) == ["right", "answered", "probability from", "to", "contains"]
        fill = (
            "const input = document.querySelectorAll('.filter input, .filter select')"
            "[arguments[0]]; input.value = arguments[1]; "
            "input.dispatchEvent(new Event('input', {bubbles: true}));"
            "return document.querySelector('.filter output').textContent"
        )
        assert opened.run(fill, 0, "=<b>bad</b>") == "4 of 12 rows"
        assert opened.run(ROWS) == ["3", "6", "9", "12"]
        assert opened.run(fill, 2, "30") == "3 of 12 rows"
        assert opened.run(fill, 3, "60") == "2 of 12 rows"
        assert opened.run(ROWS) == ["6", "9"]
        assert opened.run(fill, 4, "TEXT 8") == "1 of 12 rows"
        assert opened.run(fill, 0, "") == "1 of 12 rows"
        # 3. The browser took style, script and picture, and nothing complains.
        assert opened.run("return getComputedStyle(document.body).margin") != "8px"
        assert [m for m in opened.messages() if "favicon" not in m] == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [1200, 400])
@pytest.mark.parametrize("is_dark", [False, True])
def test_the_page_is_as_wide_as_the_window(tmp_path, width, is_dark):
    part = sections.mistakes_section(COLUMNS, mistakes(12), summary="12", order="worst")
    text = f"# {'long' * 40}\n\n{part.long_text}\n\n```\n{'wide ' * 90}\n```\n"
    file = tmp_path / "page.html"
    file.write_bytes(page.from_markdown(text, tmp_path))
    with browser.opened(file.as_uri(), width=width, is_dark=is_dark) as opened:
        size = "const page = document.documentElement; "
        size += "return [page.scrollWidth, page.clientWidth]"
        assert opened.run(size) == [width, width]
        ground = opened.run("return getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(17, 21, 26)" if is_dark else "rgb(255, 255, 255)")
