"""What every verb of the command line takes."""

import argparse
from typing import Any, NoReturn

from bert_keras import __version__, settings_reference
from bert_keras.errors import InputError, nearest

SOURCES = {
    "wikipedia": "MediaWiki dumps: .xml, .xml.bz2, .xml.gz",
    "wikiextractor": "output of WikiExtractor: <doc> or JSON lines",
    "books": "plain-text books, one a file",
    "jsonl": 'JSON lines of {"id": ..., "text": ...}',
}
"""The kinds of text that `corpus` reads, each an option."""

CHECKPOINT_FORMATS = ("google", "model_garden", "hugging_face", "keras_hub", "native")
"""What `convert` writes."""

EXPORT_FORMS = ("saved_model", "litert", "onnx")
"""What `export` writes."""

EMBEDDINGS = ("cls", "pooled", "mean", "tokens")
"""What vectors it can give."""

FEATURE_FORMATS = ("numpy", "tfrecord")
"""What `features` writes."""

POOLINGS = ("first", "mean", "none")
"""What its vectors are of."""

INPUT_FORMS = ("lines", "text", "tagging")
"""What it reads."""

_ANY_CHECKPOINT = "run directory, or anything that `convert` reads"


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="bert-keras",
        description="Your own BERT, from raw text to a served model.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    _add_data_verbs(verbs)
    _add_launch(verbs)
    _add_model_verbs(verbs)
    _add_tuned_verbs(verbs)
    _add_feature_verbs(verbs)
    _add_convert(verbs)
    _add_settings(verbs)
    demo = _verb(verbs, "demo", "all of the above on text from this machine")
    demo.add_argument("--output_dir", required=True, help="directory to make")
    return parser


def _add_data_verbs(verbs: Any) -> None:
    corpus = _verb(verbs, "corpus", "raw dumps and books -> documents")
    overlap = {"exclude_overlap_with": "evaluation files: drop documents they share"}
    for name, what in (SOURCES | overlap).items():
        corpus.add_argument(
            f"--{name}", action="extend", nargs="+", default=[], help=what
        )
    corpus.add_argument("--output", required=True, help="directory to make")
    corpus.add_argument(
        "--max_bad_fraction",
        type=float,
        default=0.01,
        help="fail if more of the pages cannot be read (default: %(default)s)",
    )
    _add_config(corpus, "corpus")
    _add_beam(corpus)

    vocab = _verb(verbs, "vocab", "documents -> WordPiece vocabulary")
    vocab.add_argument("--corpus", required=True, help="made by `corpus`")
    vocab.add_argument("--vocab_size", type=int, default=30522, help="entries")
    vocab.add_argument("--cased", action="store_true", help="keep case and accents")
    vocab.add_argument("--output", required=True, help="vocab.txt to write")
    _add_beam(vocab)

    extend = _verb(verbs, "extend-vocab", "your words into a trained vocabulary")
    extend.add_argument("--vocab", required=True, help="vocab.txt of the trained model")
    extend.add_argument("--words", required=True, help="text file, one a line")
    extend.add_argument("--cased", action="store_true", help="keep case and accents")
    extend.add_argument(
        "--append",
        action="store_true",
        help="put all of them after the last entry, none into [unusedN]",
    )
    extend.add_argument("--output", required=True, help="vocab.txt to write")

    examples = _verb(verbs, "examples", "documents -> masked TFRecords")
    examples.add_argument("--corpus", required=True, help="made by `corpus`")
    examples.add_argument("--vocab", required=True, help="vocab.txt")
    examples.add_argument("--cased", action="store_true", help="keep case and accents")
    examples.add_argument("--max_seq_length", type=int, default=128, help="tokens")
    examples.add_argument(
        "--num_shards", type=int, help="files (default: one in 500 documents)"
    )
    examples.add_argument("--output", required=True, help="directory to make")
    _add_config(examples, "examples")
    _add_beam(examples)

    adopt = _verb(verbs, "adopt", "records of other programs -> examples")
    adopt.add_argument("directory", help="holds *.tfrecord* files; gets a manifest")
    adopt.add_argument("--vocab", required=True, help="that they were made with")
    adopt.add_argument("--cased", action="store_true", help="case was kept")

    inspect = _verb(verbs, "inspect", "show decoded examples")
    inspect.add_argument("examples", help="made by `examples` or `adopt`")
    inspect.add_argument("--vocab", help="vocab.txt (default: the one kept with them)")
    inspect.add_argument("--limit", type=int, default=5, help="how many")
    inspect.add_argument(
        "--stats", action="store_true", help="read all and show a data card instead"
    )
    inspect.add_argument("--json", help="file to write the card to")
    inspect.add_argument("--tensorboard", help="directory to write its histograms to")


def _add_model_verbs(verbs: Any) -> None:
    pretrain = _verb(verbs, "pretrain", "masked LM + next sentence")
    pretrain.add_argument(
        "--examples",
        nargs="+",
        required=True,
        help="made by `examples`; two, of 128 and of 512 tokens, for the two phases",
    )
    pretrain.add_argument("--vocab", help="vocab.txt (default: the examples')")
    pretrain.add_argument("--init", help=f"train this model further: {_ANY_CHECKPOINT}")
    pretrain.add_argument(
        "--workers",
        type=lambda text: text.split(","),
        default=(),
        help="HOST:PORT,HOST:PORT,... of all processes that train together",
    )
    pretrain.add_argument(
        "--worker_index", type=int, help="place of this process among them, from 0"
    )
    _add_config(pretrain, "pretrain")
    _add_run(pretrain)

    report = _verb(verbs, "report", "what a run did, as pictures and a page")
    report.add_argument("run_dir", metavar="RUN", help="run directory")
    report.add_argument("--output", help="directory to make (default: RUN/report)")

    fill = _verb(verbs, "fill-mask", "guess the [MASK] in sentences")
    fill.add_argument("text", nargs="*", help="with [MASK]; none: lines from stdin")
    fill.add_argument(
        "--model", required=True, help=f"with a masked-LM head: {_ANY_CHECKPOINT}"
    )
    fill.add_argument("--top_k", type=int, default=5, help="guesses for each")

    finetune = _verb(verbs, "finetune", "train on labelled data")
    _add_task(finetune)
    _add_config(finetune, "finetune")
    _add_run(finetune)
    _add_sweep(verbs)


def _add_task(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--task",
        help="what the data is: your own in the form text, tagging, span or choice, or "
        "a data set such as MRPC, SQuAD2.0, SWAG, CoNLL-2003 (default: the "
        "configuration's, else text)",
    )
    parser.add_argument("--train", help="file to train on")
    parser.add_argument(
        "--dev", nargs="+", help="files to evaluate on, the main one first"
    )
    parser.add_argument(
        "--data", help="instead of both: the data set's folder, as it is unpacked"
    )
    parser.add_argument(
        "--init", required=True, help=f"encoder to start from: {_ANY_CHECKPOINT}"
    )
    parser.add_argument(
        "--from_scratch",
        action="store_true",
        help="take size and vocabulary from --init but random weights: a baseline",
    )


def _add_sweep(verbs: Any) -> None:
    sweep = _verb(verbs, "sweep", "many `finetune`, the best on dev")
    sweep.add_argument(
        "--sweep",
        required=True,
        help="a YAML file with a grid, or a recipe: sweep_paper or sweep_glue",
    )
    sweep.add_argument(
        "--sweep_set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override one key of --sweep, repeatable (`bert-keras config sweep` "
        "prints them)",
    )
    sweep.add_argument(
        "--jobs", type=int, default=1, help="processes at a time (default: 1)"
    )
    _add_task(sweep)
    _add_config(sweep, "finetune")
    _add_run(sweep)


def _add_tuned_verbs(verbs: Any) -> None:
    evaluate = _verb(verbs, "evaluate", "score a tuned model, or answers to SQuAD")
    evaluate.add_argument("--model", help="run directory of `finetune`")
    evaluate.add_argument(
        "--predictions", help="instead: predictions.json of any system, for SQuAD"
    )
    evaluate.add_argument("--input", required=True, help="file with what is right")

    predict = _verb(verbs, "predict", "answer new texts")
    predict.add_argument(
        "--model",
        required=True,
        nargs="+",
        help="run directory of `finetune`; with --data one for each task",
    )
    predict.add_argument("--input", help="file like those it was tuned on")
    predict.add_argument(
        "--data", help="GLUE's folder: answer its test files for the leaderboard"
    )
    predict.add_argument(
        "--output",
        required=True,
        help="file to write; a directory for answers of several files (span, --data); "
        ".zip with --data: ready to be uploaded",
    )

    export = _verb(verbs, "export", "SavedModel, LiteRT or ONNX of a trained model")
    export.add_argument("--model", required=True, help=_ANY_CHECKPOINT)
    export.add_argument("--output", required=True, help="directory, such as exported/1")
    export.add_argument(
        "--to",
        choices=EXPORT_FORMS,
        default=EXPORT_FORMS[0],
        help="saved_model: strings in, answers out; the others: ids in, numbers out "
        "(default: %(default)s)",
    )
    export.add_argument(
        "--embedding",
        choices=EMBEDDINGS,
        help="vectors, instead of what the model was trained to answer",
    )
    export.add_argument(
        "--layers",
        type=int,
        nargs="+",
        help="whose vectors, side by side: 0 are the embeddings, 1 is the first layer, "
        "-1 the last one (default: that one)",
    )
    export.add_argument(
        "--top_k", type=int, help="guesses for each [MASK] (default: 5)"
    )


def _add_feature_verbs(verbs: Any) -> None:
    features = _verb(verbs, "features", "vectors of words, from layers of an encoder")
    features.add_argument("--model", required=True, help=_ANY_CHECKPOINT)
    features.add_argument("--input", required=True, help="file of texts or of words")
    features.add_argument("--output", required=True, help="directory to make")
    features.add_argument(
        "--layers",
        type=int,
        nargs="+",
        default=[-1],
        help="0 are the embeddings, 1 is the first layer, -1 the last one (default: "
        "that one)",
    )
    features.add_argument(
        "--pooling",
        choices=POOLINGS,
        default=POOLINGS[0],
        help="of a word's pieces; none: a vector for each piece (default: %(default)s)",
    )
    features.add_argument(
        "--to",
        choices=FEATURE_FORMATS,
        default=FEATURE_FORMATS[0],
        help="(default: %(default)s)",
    )
    features.add_argument(
        "--form",
        choices=INPUT_FORMS,
        help="lines: one text a line; text: a table or JSON lines; tagging: columns of "
        "CoNLL or JSON lines of words (default: by the file's name)",
    )
    _add_config(features, "features")

    probe = _verb(verbs, "probe", "small taggers on an encoder's layers, scored")
    probe.add_argument("--model", required=True, help=_ANY_CHECKPOINT)
    probe.add_argument("--train", required=True, help="tagged words to train on")
    probe.add_argument("--dev", required=True, help="the same, to score on")
    _add_config(probe, "probe")
    _add_run(probe)


def _add_convert(verbs: Any) -> None:
    convert = _verb(verbs, "convert", "checkpoints of others in and out")
    convert.add_argument(
        "--input", required=True, help="checkpoint of any format, recognised by itself"
    )
    convert.add_argument("--output", required=True, help="directory to make")
    convert.add_argument("--to", required=True, choices=CHECKPOINT_FORMATS)
    convert.add_argument(
        "--approximate_gelu",
        action="store_true",
        help="write a model of the exact GELU although --to has only its tanh form",
    )


def _add_settings(verbs: Any) -> None:
    subjects = (*settings_reference.CONFIGURATIONS, "list", "page")
    settings = _verb(verbs, "config", "settings of a verb: keys, values, meanings")
    settings.add_argument(
        "subject",
        choices=subjects,
        metavar="VERB",
        help=f"one of {', '.join(subjects[:-2])}; or `list`: the recipes; or `page`: "
        "all settings of all verbs, as Markdown",
    )
    _add_config(settings, "VERB")


def _verb(verbs: Any, name: str, summary: str) -> argparse.ArgumentParser:
    parser = verbs.add_parser(name, help=summary, description=summary)
    parser.set_defaults(takes_beam_options=False)
    return parser


def _add_launch(verbs: Any) -> None:
    launch = verbs.add_parser(
        "launch", help="run corpus, vocab or examples on Dataflow"
    )
    targets = launch.add_subparsers(dest="target", required=True, metavar="TARGET")
    dataflow = _verb(targets, "dataflow", "now, and wait for its end")
    dataflow.add_argument(
        "--dry_run", action="store_true", help="only print the command"
    )
    template = _verb(targets, "flex-template", "print gcloud's commands")
    template.add_argument("--template", required=True, help="gs://BUCKET/NAME.json")
    template.add_argument(
        "--metadata",
        default="flex_template_metadata.json",
        help="file to write (default: %(default)s)",
    )
    for parser in (dataflow, template):
        parser.set_defaults(takes_beam_options=True)
        parser.epilog = "What is to be run stands after `--`: -- corpus --output ..."
        for name, what in (
            ("project", "Google Cloud project's id"),
            ("region", "such as europe-west4, that of the bucket"),
            ("temp_location", "gs://BUCKET/FOLDER for what is staged"),
        ):
            parser.add_argument(f"--{name}", required=True, help=what)
        parser.add_argument("--machine_type", help="default: by the verb")
        for name, default, what in (
            ("max_num_workers", 16, "machines, at most"),
            ("number_of_worker_harness_threads", 2, "in each process, one for a core"),
        ):
            parser.add_argument(
                f"--{name}",
                type=int,
                default=default,
                help=f"{what} (default: {default})",
            )
        parser.add_argument("--sdk_container_image", help="image with this package")


def _add_beam(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workers", type=int, default=1, help="local processes (default: 1)"
    )
    parser.add_argument(
        "--memory_limit",
        type=float,
        default=4.0,
        metavar="GB",
        help="of all local processes together (default: 4)",
    )
    parser.epilog = "What stands after `--` goes to Beam, such as -- --runner ..."
    parser.set_defaults(takes_beam_options=True)


def _add_config(parser: argparse.ArgumentParser, verb: str) -> None:
    parser.add_argument(
        "--config",
        help="YAML file with settings, or a recipe's name (`bert-keras config list`)",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override one setting, nested keys with dots; repeatable "
        f"(`bert-keras config {verb}` prints all settings)",
    )


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output_dir", required=True, help="run directory to make")
    parser.add_argument(
        "--strategy",
        default="auto",
        help="auto, cpu, gpu, tpu[:NAME] or multi_worker (default: auto)",
    )


class _Parser(argparse.ArgumentParser):
    """argparse with one-line errors that name the nearest option."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, allow_abbrev=False, **kwargs)

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[override]
        namespace, unknown = super().parse_known_args(args, namespace)
        if unknown:
            name = unknown[0].split("=")[0]
            self.error(
                f"no option {name!r}{nearest(name, self._option_string_actions)}"
            )
        return namespace, unknown

    def _check_value(self, action, value):  # type: ignore[override]
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            name = action.option_strings[0] if action.option_strings else action.dest
            self.error(
                f"{name} is one of {', '.join(known)}, got {value!r}"
                + nearest(value, known)
            )

    def error(self, message: str) -> NoReturn:
        prog = self.prog.removeprefix("bert-keras").strip()
        raise InputError(f"{prog}: {message}" if prog else message)


def split_at_dashes(arguments: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in arguments:
        return arguments, []
    position = arguments.index("--")
    return arguments[:position], arguments[position + 1 :]
