"""Verbs that make examples from raw text; none of them loads TensorFlow."""

import argparse
import logging
from typing import Any

from bert_keras.commands import parser as options
from bert_keras.core.errors import InputError
from bert_keras.core.settings import config
from bert_keras.pipelines import sources


def add_corpus(verbs: Any) -> None:
    summary = "raw dumps and books -> documents"
    parser = options.add_verb(verbs, "corpus", summary, corpus)
    inputs = {name: source.description for name, source in sources.SOURCES.items()}
    inputs["exclude_overlap_with"] = "evaluation files: drop documents they share"
    for name, what in inputs.items():
        parser.add_argument(
            f"--{name}",
            action="extend",
            nargs="+",
            default=[],
            metavar="FILE",
            help=f"{what}; paths or patterns",
        )
    options.add(
        parser,
        {
            "--output OUTPUT!": "directory to create",
            "--max_bad_fraction FRACTION=0.01": "fraction of unreadable pages above "
            "which the job fails",
            "--encoding NAME": "encoding of books that are not UTF-8, as cp1251 "
            "(default: detect it)",
            "--allow_cut_dumps": "read plain dumps without </mediawiki> at the end",
        },
    )
    options.add_config(parser, "corpus")
    options.add_beam(parser)


def corpus(args: argparse.Namespace) -> None:
    quiet_beam()
    from bert_keras.pipelines import corpus

    corpus.build_corpus(
        args.output,
        sources={kind: getattr(args, kind) for kind in sources.SOURCES},
        config=options.load_settings(config.CorpusConfig, args),
        exclude_overlap_with=args.exclude_overlap_with,
        max_bad_fraction=args.max_bad_fraction,
        allow_cut_dumps=args.allow_cut_dumps,
        encoding=args.encoding,
        engine=_engine(args),
    )


def add_vocab(verbs: Any) -> None:
    summary = "documents -> WordPiece vocabulary"
    parser = options.add_verb(verbs, "vocab", summary, vocab)
    options.add(
        parser,
        {
            "--corpus CORPUS!": "directory made by `corpus`",
            "--output OUTPUT!": "file to write",
            "--vocab_size N=30522": "number of entries, special tokens included "
            "(paper: 30,000)",
            "--cased": options.CASED,
        },
    )
    options.add_beam(parser)


def vocab(args: argparse.Namespace) -> None:
    quiet_beam()
    from bert_keras.pipelines import vocabulary

    vocabulary.build_vocabulary(
        args.corpus,
        args.output,
        vocab_size=args.vocab_size,
        do_lower_case=not args.cased,
        engine=_engine(args),
    )


def add_extend_vocab(verbs: Any) -> None:
    summary = "your words into a trained vocabulary"
    parser = options.add_verb(verbs, "extend-vocab", summary, extend_vocab)
    options.add(
        parser,
        {
            "--vocab VOCAB!": "vocab.txt of the trained model",
            "--words WORDS!": "text file with one word to add on each line",
            "--output OUTPUT!": "vocab.txt to write",
            "--cased": options.CASED,
            "--append": "put all words after the last entry (default: into [unusedN] "
            "first)",
        },
    )


def extend_vocab(args: argparse.Namespace) -> None:
    from bert_keras.data import vocabulary_extension

    vocabulary_extension.write_extended(
        args.vocab,
        args.words,
        args.output,
        do_lower_case=not args.cased,
        into_unused=not args.append,
    )


def add_pairs(verbs: Any) -> None:
    summary = "documents -> pairs of texts that belong together"
    parser = options.add_verb(verbs, "pairs", summary, pairs)
    options.add(
        parser,
        {
            "--corpus CORPUS!": "directory made by `corpus`",
            "--output OUTPUT!": "directory to create, with train.tsv and dev.tsv for "
            "`finetune --task embedding`",
        },
    )
    options.add_choice(
        parser,
        "--of",
        config.PairKind,
        "a document's title and its paragraphs; a paragraph and the next one; or "
        "a sentence and the rest of its paragraph",
    )
    options.add(
        parser,
        {
            "--per_document N=4": "pairs of a document at most",
            "--dev_percent P=5.0": "documents whose pairs are held out, in percent",
        },
    )


def pairs(args: argparse.Namespace) -> None:
    from bert_keras.pipelines import pairs

    pairs.write_pairs(
        args.corpus,
        args.output,
        kind=args.of,
        per_document=args.per_document,
        dev_percent=args.dev_percent,
    )


def add_examples(verbs: Any) -> None:
    summary = "documents -> masked TFRecords"
    parser = options.add_verb(verbs, "examples", summary, examples)
    options.add(
        parser,
        {
            "--corpus CORPUS!": "directory made by `corpus`",
            "--vocab VOCAB!": "vocab.txt to tokenize with",
            "--output OUTPUT!": "directory to create",
            "--cased": options.CASED,
            "--max_seq_length N=int": "tokens of an example, special ones included "
            "(default: the configuration's, else 128)",
            "--num_shards N=int": "number of files (default: one for each 500 "
            "documents, and at least 20 for 100 documents or more)",
        },
    )
    options.add_config(parser, "examples")
    options.add_beam(parser)


def examples(args: argparse.Namespace) -> None:
    quiet_beam()
    from bert_keras.pipelines import examples

    length = args.max_seq_length
    overrides = [] if length is None else [f"max_seq_length={length}"]
    examples.build_examples(
        args.corpus,
        args.vocab,
        args.output,
        config=options.load_settings(config.ExamplesConfig, args, *overrides),
        do_lower_case=not args.cased,
        num_shards=args.num_shards,
        engine=_engine(args),
    )


def add_adopt(verbs: Any) -> None:
    summary = "third-party TFRecords -> examples"
    parser = options.add_verb(verbs, "adopt", summary, adopt)
    parser.add_argument("directory", help="directory of *.tfrecord*; gets a manifest")
    options.add(
        parser,
        {
            "--vocab VOCAB!": "vocab.txt that the records were made with",
            "--cased": "the records keep case and accents",
        },
    )


def adopt(args: argparse.Namespace) -> None:
    quiet_beam()
    from bert_keras.pipelines.inspection import adoption

    adoption.adopt_examples(args.directory, args.vocab, do_lower_case=not args.cased)


def add_inspect(verbs: Any) -> None:
    parser = options.add_verb(verbs, "inspect", "show decoded examples", inspect)
    parser.add_argument("examples", help="directory made by `examples` or `adopt`")
    options.add(
        parser,
        {
            "--vocab VOCAB": "vocab.txt (default: the directory's own)",
            "--limit N=5": "examples to print",
            "--stats": "read all examples and print a data card instead",
            "--json JSON": "JSON file to write the data card to",
        },
    )


def inspect(args: argparse.Namespace) -> None:
    quiet_beam()
    from bert_keras.pipelines.inspection import description

    if args.stats:
        lines = description.describe_all(
            args.examples, vocab_path=args.vocab, json_path=args.json
        )
    elif args.json:
        raise InputError("--json writes the card: give --stats too")
    else:
        lines = description.describe_examples(
            args.examples, vocab_path=args.vocab, limit=args.limit
        )
    options.print_lines(lines)


def quiet_beam() -> None:
    """Silences Beam, which reports on import that its cloud parts are missing."""
    logging.getLogger().setLevel(logging.ERROR)
    logging.getLogger("apache_beam").setLevel(logging.ERROR)


def _engine(args: argparse.Namespace) -> Any:
    from bert_keras.pipelines.engine import engines

    return engines.make_engine(
        args.beam_arguments,
        num_workers=args.workers,
        memory_limit=round(args.memory_limit * 1e9),
    )
