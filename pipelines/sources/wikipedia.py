"""MediaWiki dumps -> articles: namespace 0, no redirects, running text only."""

import logging
from collections import Counter
from typing import ClassVar

from bert_keras.pipelines.sources import source

logger = logging.getLogger(__name__)

# A larger file that only one worker can read is worth a warning: it takes about a
# minute.
_LONG_BYTES = 1 << 29


class Wikipedia(source.Source):
    name: ClassVar[str] = "wikipedia"
    description: ClassVar[str] = "MediaWiki dumps (.xml, .xml.bz2, .xml.gz)"

    def check(self, path: str, *, allow_cut_dumps: bool) -> None:
        from bert_keras.pipelines.sources import dump_pages

        dump_pages.check_dump(path, allow_cut=allow_cut_dumps)

    def split(self, item: source.Input, max_bytes: int) -> list[source.Range]:
        """Divides plain dumps and many bzip2 streams; warns of other long dumps."""
        from bert_keras.pipelines.sources import dump_pages

        if dump_pages.is_splittable(item.path):
            return source.even_ranges(item, max_bytes)
        if item.num_bytes > _LONG_BYTES:
            logger.warning(
                f"{item.path}: {item.num_bytes / 1e9:.1f} GB that cannot be divided, "
                "so one worker must read all of it; several can share the dump whose "
                "name ends in -pages-articles-multistream.xml.bz2, from "
                "dumps.wikimedia.org, or this one repacked with pbzip2"
            )
        return []

    def read(self, part: source.Range, context: source.Context) -> source.Items:
        from bert_keras.pipelines import filters, wikitext
        from bert_keras.pipelines.sources import dump_pages

        counts, cleaned = context.counts, Counter()
        for page in dump_pages.read_pages(
            part.item.path,
            start=part.start,
            stop=part.stop,
            allow_cut=context.allow_cut_dumps,
            reach=context.reach,
        ):
            counts["items_read"] += 1
            if isinstance(page, source.Reject):
                yield page
                continue
            reason = None
            if page.namespace != 0:
                reason = "other namespace"
            elif page.is_redirect:
                reason = "redirect"
            elif page.model != "wikitext":
                reason = "not wikitext"
            elif context.drop_lists:
                reason = filters.page_reason(page.title, page.text)
            if reason:
                counts[f"dropped/{reason}"] += 1
            elif paragraphs := wikitext.clean(page.text, cleaned):
                yield source.SourceDocument(
                    id=f"{page.wiki}:{page.page_id}:{page.title}",
                    rank=page.timestamp,
                    source=self.name,
                    title=page.title,
                    paragraphs=paragraphs,
                )
            else:
                counts["dropped/no running text"] += 1
        counts.update({f"cleaned/{rule}": n for rule, n in cleaned.items()})
