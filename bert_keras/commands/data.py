"""Verbs that make examples from raw text; none of them loads TensorFlow."""

import argparse
from typing import Any

from bert_keras.commands import parser as options
from bert_keras.commands.parser import choice, flag, required, value
from bert_keras.core.errors import InputError
from bert_keras.core.settings import choices, pipelines
from bert_keras.pipelines import sources

_INPUTS = {name: source.description for name, source in sources.SOURCES.items()}
_INPUTS["exclude_overlap_with"] = "evaluation files: drop documents they share"


@options.Verb(
    "raw dumps and books -> documents",
    {
        **{
            f"--{name}": value(
                f"{what}; paths or patterns", action="extend", nargs="+", default=[]
            )
            for name, what in _INPUTS.items()
        },
        "--output": required("directory to create"),
        "--max_bad_fraction": value(
            "fraction of pages that may be unreadable", default=0.01
        ),
        "--encoding": value(
            "encoding of the --books and --sentences that are not UTF-8 and do not "
            "state it, such as cp1251, 'tr/*=cp1254', or auto for the likeliest",
            action="append",
            default=[],
            metavar="[PATTERN=]NAME",
        ),
        "--allow_cut_dumps": flag("read dumps without </mediawiki> at the end"),
        **options.BEAM,
    },
    settings_of="corpus",
    dashes=options.TO_BEAM,
)
def corpus(args: argparse.Namespace) -> None:
    from bert_keras.pipelines import corpus

    if args.encoding and not (args.books or args.sentences):
        raise InputError(
            "--encoding is for the plain text of --books and --sentences: dumps and "
            "JSON lines are UTF-8, leave it out"
        )
    same = ("exclude_overlap_with", "max_bad_fraction", "allow_cut_dumps", "encoding")
    corpus.build_corpus(
        args.output,
        sources=options.named(args, *sources.SOURCES),
        config=options.load_settings(pipelines.CorpusConfig, args),
        engine=_engine(args),
        **options.named(args, *same),
    )


@options.Verb(
    "documents -> WordPiece vocabulary",
    {
        "--corpus": required("directory made by `corpus`"),
        "--output": required("file to write"),
        "--vocab_size": value("entries (paper: 30,000)", default=30522),
        "--cased": options.CASED,
        **options.BEAM,
    },
    dashes=options.TO_BEAM,
)
def vocab(args: argparse.Namespace) -> None:
    from bert_keras.pipelines import vocabulary

    form = options.named(args, "vocab_size", "do_lower_case")
    vocabulary.build_vocabulary(args.corpus, args.output, engine=_engine(args), **form)


@options.Verb(
    "your words into a trained vocabulary",
    {
        "--vocab": required("vocab.txt of the trained model"),
        "--words": required("text file with one word to add on each line"),
        "--output": required("vocab.txt to write"),
        "--cased": options.CASED,
        "--append": flag("put all words last (default: into [unusedN] first)"),
    },
)
def extend_vocab(args: argparse.Namespace) -> None:
    from bert_keras.data import vocabulary_extension

    form = {"do_lower_case": args.do_lower_case, "into_unused": not args.append}
    vocabulary_extension.write_extended(args.vocab, args.words, args.output, **form)


@options.Verb(
    "documents -> pairs of texts that belong together",
    {
        "--corpus": required("directory made by `corpus`"),
        "--output": required(
            "directory for the train.tsv and dev.tsv of `--task embedding`"
        ),
        "--of": choice(
            choices.PairKind,
            "a document's title and its paragraphs; a paragraph and the next one; or a "
            "sentence and the rest of its paragraph",
            default="titles",
        ),
        "--per_document": value("pairs of a document at most", default=4),
        "--dev_percent": value("percent of documents held out", default=5.0),
    },
)
def pairs(args: argparse.Namespace) -> None:
    from bert_keras.pipelines import pairs

    shares = options.named(args, "per_document", "dev_percent")
    pairs.write_pairs(args.corpus, args.output, kind=args.of, **shares)


@options.Verb(
    "documents -> masked TFRecords",
    {
        "--corpus": required("directory made by `corpus`"),
        "--vocab": required("vocab.txt to tokenize with"),
        "--output": required("directory to create"),
        "--cased": options.CASED,
        "--max_seq_length": value(
            "tokens of an example, special ones included "
            "(default: the configuration's, else 128)",
            type=int,
        ),
        "--num_shards": value(
            "number of files (default: one for each 500 documents, "
            "and at least 20 for 100 documents or more)",
            type=int,
        ),
        **options.BEAM,
    },
    settings_of="examples",
    dashes=options.TO_BEAM,
)
def examples(args: argparse.Namespace) -> None:
    from bert_keras.pipelines import examples

    length = args.max_seq_length
    overrides = [] if length is None else [f"max_seq_length={length}"]
    examples.build_examples(
        *(args.corpus, args.vocab, args.output),
        config=options.load_settings(pipelines.ExamplesConfig, args, *overrides),
        engine=_engine(args),
        **options.named(args, "do_lower_case", "num_shards"),
    )


@options.Verb(
    "third-party TFRecords -> examples",
    {
        "directory": "directory of *.tfrecord*; gets a manifest",
        "--vocab": required("vocab.txt that the records were made with"),
        "--cased": flag("the records keep case and accents"),
    },
)
def adopt(args: argparse.Namespace) -> None:
    from bert_keras.pipelines.inspection import adoption

    adoption.adopt_examples(args.directory, args.vocab, do_lower_case=not args.cased)


@options.Verb(
    "show decoded examples",
    {
        "examples": "directory made by `examples` or `adopt`",
        "--vocab": "vocab.txt (default: the directory's own)",
        "--limit": value("examples to print", default=5),
        "--stats": flag("read all examples and print a data card instead"),
        "--json": "JSON file to write the data card to",
    },
)
def inspect(args: argparse.Namespace) -> None:
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


def _engine(args: argparse.Namespace) -> Any:
    from bert_keras.pipelines.engine import engines

    if args.beam_arguments:
        from bert_keras.pipelines import dataflow

        dataflow.check_paths(vars(args))
    return engines.make_engine(
        args.beam_arguments,
        num_workers=args.workers,
        memory_limit=round(args.memory_limit * 1e9),
    )


VERBS = (corpus, vocab, extend_vocab, pairs, examples, adopt, inspect)
