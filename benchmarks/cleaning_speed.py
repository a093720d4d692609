"""Speed of cleaning pages and splitting sentences, for real and hostile pages.

    python benchmarks/cleaning_speed.py dump1.xml.bz2 dump2.xml

One thread. Rates are megabytes of UTF-8 per second of CPU time, of wikitext for the
cleaner and of the text that it leaves for sentences: medians of several runs. The
hostile pages are those that other cleaners need seconds to minutes for.
"""

import argparse
import platform
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable

from bert_keras.pipelines import sentences, wikitext
from bert_keras.pipelines.sources import wikipedia

NUM_RUNS = 7
DEPTH = 10_000
MARKS = (
    "[[ ]] [ ] {{ }} {{{ }}} | \n \n\n {| |} |- ! '' ''' = == <ref> </ref> <ref/> <!-- "
    "--> <math> </math> <br> <table> </table> &amp; ( ) , . : * # -{ }- File: a b é 漢"
).split(" ")


def hostile_pages() -> dict[str, str]:
    """Pages by kind."""
    rng = random.Random(0)
    return {
        "80 KB of [[a|": "[[a|" * 20_000,
        "5,000 open <ref>": "<ref>" * 5_000,
        "20,000 <ref/x>": "<ref/x>" * 20_000,
        "1 MB table": "{|\n" + "|-\n| a || b\n" * 84_000 + "|}",
        "10,000 deep {{": "{{a|" * DEPTH + "}}" * DEPTH,
        "10,000 deep [[": "[[a|" * DEPTH + "]]" * DEPTH,
        "10,000 deep {|": "{|\n" * DEPTH + "\n|}" * DEPTH,
        "10,000 deep <div>": "<div>" * DEPTH + "</div>" * DEPTH,
        "10,000 deep <!--": "<!--" * DEPTH + "-->" * DEPTH,
        "1 MB of open <!--": "<!--" * 250_000,
        "1 MB of mixed markup": "".join(rng.choices(MARKS, k=390_000)),
    }


def cpu_seconds(work: Callable[[], object]) -> float:
    """The median CPU time of several runs."""
    seconds = []
    for _ in range(NUM_RUNS):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return statistics.median(seconds)


def megabytes(texts: list[str]) -> float:
    """The size of texts as UTF-8."""
    return sum(len(text.encode(errors="replace")) for text in texts) / 1e6


def main() -> None:
    """Prints rates, what was dropped, and the seconds for each hostile page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("dumps", nargs="+", help="dumps of Wikipedia, .xml or .xml.bz2")
    args = parser.parse_args()
    pages = [
        page.text
        for path in args.dumps
        for page in wikipedia.read_pages(path)
        if isinstance(page, wikipedia.Page)
        and page.namespace == 0
        and not page.is_redirect
    ]
    counts: Counter[str] = Counter()
    paragraphs = [text for page in pages for text in wikitext.clean(page, counts)]
    print(
        f"Python {platform.python_version()}, {platform.machine()}; {len(pages)} pages"
    )
    cleaning = cpu_seconds(lambda: [wikitext.clean(page) for page in pages])
    splitting = cpu_seconds(lambda: list(map(sentences.split_sentences, paragraphs)))
    print(
        f"clean     {megabytes(pages) / cleaning:6.1f} MB/s of {megabytes(pages):.1f}"
    )
    size = megabytes(paragraphs)
    print(f"sentences {size / splitting:6.1f} MB/s of {size:.1f}")
    for rule, count in counts.most_common():
        print(f"dropped {count:8,} {rule}")
    for name, page in hostile_pages().items():
        seconds = cpu_seconds(lambda page=page: wikitext.clean(page))
        print(f"hostile {seconds:6.3f} s {name} ({len(page):,} characters)")


if __name__ == "__main__":
    main()
