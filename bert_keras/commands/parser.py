"""Options of every verb of the command line."""

import argparse
import typing
from typing import Any, Literal, NoReturn

from bert_keras import __version__, tpu
from bert_keras.commands import config_page, machine_verbs, tuning_verbs
from bert_keras.core.errors import InputError, check_choice, nearest
from bert_keras.core.settings import config
from bert_keras.core.settings import features as feature_settings
from bert_keras.pipelines import sources

_ANY_CHECKPOINT = "run directory, or any checkpoint that `convert` reads"
_CASED = "keep case and accents (default: lower case without accents)"
_DEFAULT = "(default: %(default)s)"


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="bert-keras",
        description="Your own BERT, from raw text to a served model.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    _add_data_verbs(verbs)
    _add_example_verbs(verbs)
    machine_verbs.add_launch(verbs, _verb)
    _add_pretraining_verbs(verbs)
    _add_finetuning_verbs(verbs)
    _add_tuned_verbs(verbs)
    _add_export(verbs)
    _add_feature_verbs(verbs)
    _add_convert(verbs)
    _add_settings(verbs)
    machine_verbs.add_doctor(_verb(verbs, "doctor", "is this machine ready to train?"))
    plan = _verb(verbs, "plan", "time, money and disk that a run takes")
    _add_config(plan, "pretrain")
    machine_verbs.add_plan(plan)
    demo = _verb(verbs, "demo", "all stages on text that is on this machine")
    _add_required(demo, output_dir="directory to create")
    return parser


def _add_data_verbs(verbs: Any) -> None:
    corpus = _verb(verbs, "corpus", "raw dumps and books -> documents")
    options = {name: source.description for name, source in sources.SOURCES.items()}
    options["exclude_overlap_with"] = "evaluation files: drop documents they share"
    for name, what in options.items():
        corpus.add_argument(
            f"--{name}",
            action="extend",
            nargs="+",
            default=[],
            metavar="FILE",
            help=f"{what}; paths or patterns",
        )
    _add_required(corpus, output="directory to create")
    corpus.add_argument(
        "--max_bad_fraction",
        type=float,
        default=0.01,
        metavar="FRACTION",
        help="fraction of unreadable pages above which the job fails " + _DEFAULT,
    )
    corpus.add_argument(
        "--encoding",
        metavar="NAME",
        help="encoding of books that are not UTF-8, as cp1251 (default: detect it)",
    )
    _add_flag(
        corpus, "--allow_cut_dumps", "read plain dumps without </mediawiki> at the end"
    )
    _add_config(corpus, "corpus")
    _add_beam(corpus)

    vocab = _verb(verbs, "vocab", "documents -> WordPiece vocabulary")
    _add_required(vocab, corpus="directory made by `corpus`", output="file to write")
    _add_number(
        vocab,
        "--vocab_size",
        30522,
        "number of entries, special tokens included (paper: 30,000)",
    )
    _add_flag(vocab, "--cased", _CASED)
    _add_beam(vocab)

    extend = _verb(verbs, "extend-vocab", "your words into a trained vocabulary")
    _add_required(
        extend,
        vocab="vocab.txt of the trained model",
        words="text file with one word to add on each line",
        output="vocab.txt to write",
    )
    _add_flag(extend, "--cased", _CASED)
    _add_flag(
        extend,
        "--append",
        "put all words after the last entry (default: into [unusedN] first)",
    )
    tuning_verbs.add_pairs(verbs, _verb)


def _add_example_verbs(verbs: Any) -> None:
    examples = _verb(verbs, "examples", "documents -> masked TFRecords")
    _add_required(
        examples,
        corpus="directory made by `corpus`",
        vocab="vocab.txt to tokenize with",
        output="directory to create",
    )
    _add_flag(examples, "--cased", _CASED)
    _add_number(
        examples,
        "--max_seq_length",
        None,
        "tokens of an example, special ones included (default: the configuration's, "
        "else 128)",
    )
    _add_number(
        examples,
        "--num_shards",
        None,
        "number of files (default: one for each 500 documents, and at least 20 for "
        "100 documents or more)",
    )
    _add_config(examples, "examples")
    _add_beam(examples)

    adopt = _verb(verbs, "adopt", "third-party TFRecords -> examples")
    adopt.add_argument("directory", help="directory of *.tfrecord*; gets a manifest")
    _add_required(adopt, vocab="vocab.txt that the records were made with")
    _add_flag(adopt, "--cased", "the records keep case and accents")

    inspect = _verb(verbs, "inspect", "show decoded examples")
    inspect.add_argument("examples", help="directory made by `examples` or `adopt`")
    inspect.add_argument("--vocab", help="vocab.txt (default: the directory's own)")
    _add_number(inspect, "--limit", 5, "examples to print")
    _add_flag(inspect, "--stats", "read all examples and print a data card instead")
    inspect.add_argument("--json", help="JSON file to write the data card to")


def _add_pretraining_verbs(verbs: Any) -> None:
    pretrain = _verb(verbs, "pretrain", "train an encoder: masked LM + next sentence")
    pretrain.add_argument(
        "--examples",
        nargs="+",
        required=True,
        metavar="DIRECTORY",
        help="made by `examples`, on disk or on gs://; two, of 128 and of 512 tokens, "
        "for the two phases",
    )
    pretrain.add_argument("--vocab", help="vocab.txt (default: the examples')")
    pretrain.add_argument("--init", help=f"model to train further: {_ANY_CHECKPOINT}")
    _add_workers(pretrain)
    pretrain.add_argument(
        "--verify",
        action="store_true",
        help="hash the examples again (default: once for each run and machine, never "
        "on gs://, where that reads them all; their sizes are always checked)",
    )
    _add_config(pretrain, "pretrain")
    _add_run(pretrain)

    preflight = _verb(
        verbs, "preflight", "compile the steps of a run for a TPU that is not there"
    )
    machine_verbs.add_preflight(preflight)
    _add_config(preflight, "pretrain")

    report = _verb(verbs, "report", "pictures and a page of what a run did")
    report.add_argument("run_dir", metavar="RUN", help="run directory")
    report.add_argument("--output", help="directory to create (default: RUN/report)")

    fill = _verb(verbs, "fill-mask", "guess the [MASK] in sentences")
    fill.add_argument(
        "text", nargs="*", help="sentences with [MASK] (default: lines of stdin)"
    )
    _add_required(fill, model=f"model with a masked-LM head: {_ANY_CHECKPOINT}")
    _add_number(fill, "--top_k", 5, "guesses for each [MASK]")


def _add_finetuning_verbs(verbs: Any) -> None:
    finetune = _verb(verbs, "finetune", "train on labelled data")
    _add_task(finetune)
    _add_workers(finetune)
    _add_config(finetune, "finetune")
    _add_run(finetune)

    distill = _verb(verbs, "distill", "a smaller model that is like a trained one")
    tuning_verbs.add_distill(distill, _ANY_CHECKPOINT)
    _add_workers(distill)
    _add_config(distill, "finetune")
    _add_run(distill)

    sweep = _verb(verbs, "sweep", "many runs of `finetune`, the best one on dev")
    tuning_verbs.add_sweep(sweep)
    _add_task(sweep)
    _add_config(sweep, "finetune")
    _add_run(sweep)

    compare = _verb(verbs, "compare", "which model to start from, and is it worth it")
    tuning_verbs.add_compare(compare, _ANY_CHECKPOINT)
    _add_config(compare, "finetune")
    _add_run(compare)


def _add_workers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workers",
        type=lambda text: text.split(","),
        default=(),
        metavar="HOST:PORT,...",
        help="addresses of all processes that train together, the chief's first "
        "(default: this process trains alone)",
    )
    _add_number(
        parser, "--worker_index", None, "place of this process in --workers, from 0"
    )


def _add_task(parser: argparse.ArgumentParser) -> None:
    tuning_verbs.add_files(parser)
    _add_required(parser, init=f"encoder to start from: {_ANY_CHECKPOINT}")
    _add_flag(
        parser,
        "--from_scratch",
        "take size and vocabulary from --init but random weights: a baseline",
    )


def _add_tuned_verbs(verbs: Any) -> None:
    evaluate = _verb(verbs, "evaluate", "score a tuned model, or answers to SQuAD")
    evaluate.add_argument(
        "--model", help="run directory of `finetune`, or a tuned model of any format"
    )
    evaluate.add_argument(
        "--predictions",
        metavar="FILE",
        help="instead of --model: predictions.json of any system, for SQuAD",
    )
    _add_required(evaluate, input="labelled file to score against")

    predict = _verb(verbs, "predict", "answer new texts")
    predict.add_argument(
        "--model",
        required=True,
        nargs="+",
        help="run directory of `finetune`, or a tuned model of any format; with --data "
        "one for each task",
    )
    predict.add_argument(
        "--input", help="file like those it was tuned on; `-` is standard input"
    )
    predict.add_argument(
        "--data",
        metavar="DIRECTORY",
        help="instead of --input: GLUE's folder, to answer its test files",
    )
    _add_required(
        predict,
        output="file to write, with the columns of the input: .csv, .jsonl, any other "
        "is tab-separated; `-` is standard output; a directory where the answers are "
        "several files (span, --data); with --data a .zip file is ready for GLUE's "
        "server",
    )


def _add_export(verbs: Any) -> None:
    export = _verb(verbs, "export", "SavedModel, LiteRT or ONNX of a trained model")
    _add_required(
        export, model=_ANY_CHECKPOINT, output="directory to create, such as exported/1"
    )
    _add_choice(
        export,
        "--to",
        config.ExportForm,
        "saved_model: strings in, answers out; litert and onnx: ids in, numbers out",
    )
    _add_choice(
        export,
        "--embedding",
        config.Embedding,
        "vectors of texts or tokens (default: the answers the model was trained for)",
        has_default=False,
    )
    _add_layers(export, None)
    _add_choice(
        export,
        "--long_texts",
        config.LongTexts,
        "what becomes of texts longer than an input, with --embedding: cut keeps the "
        "beginning, head_tail beginning and end; windows_mean and windows_max pool the "
        "vectors of overlapping windows (default: cut)",
        has_default=False,
    )
    _add_number(export, "--top_k", None, "guesses for each [MASK] (default: 5)")
    _add_choice(
        export,
        "--quantize",
        config.Quantization,
        "smaller weights of a tuned run, int8 for --to onnx and litert, bfloat16 and "
        "float16 for saved_model; compared on --dev (default: float32)",
        has_default=False,
    )
    _add_flag(
        export,
        "--reduce_range",
        "7 bits instead of 8 for --to onnx --quantize int8, for x86 processors without "
        "VNNI, whose sums would overflow",
    )
    export.add_argument(
        "--dev", metavar="FILE", help="labelled file to compare on, for --quantize"
    )
    export.add_argument(
        "--max_drop",
        type=float,
        metavar="POINTS",
        help="points of the score that --quantize may lose (default: 0.5)",
    )
    _add_choice(
        export,
        "--serving",
        config.ModelServer,
        "adds what TensorFlow Serving reads, with --output NAME/VERSION (default: "
        "nothing)",
        has_default=False,
    )
    export.add_argument(
        "--image",
        help="container image of TensorFlow Serving (default: the published one of "
        "TensorFlow 2.20)",
    )


def _add_feature_verbs(verbs: Any) -> None:
    features = _verb(verbs, "features", "vectors of words, from layers of an encoder")
    _add_required(
        features,
        model=_ANY_CHECKPOINT,
        input="file of texts or of words",
        output="directory to create",
    )
    _add_layers(features, [-1])
    _add_choice(
        features,
        "--pooling",
        feature_settings.Pooling,
        "vector of a word: of its first piece, or the mean; none: one for each piece",
    )
    _add_choice(
        features, "--to", feature_settings.VectorFormat, "format of the files to write"
    )
    _add_choice(
        features,
        "--form",
        feature_settings.InputForm,
        "lines: one text a line; text: a table or JSON lines; tagging: columns of "
        "CoNLL or JSON lines of words (default: by the file's name)",
        has_default=False,
    )
    _add_config(features, "features")


def _add_layers(parser: argparse.ArgumentParser, default: list[int] | None) -> None:
    parser.add_argument(
        "--layers",
        type=int,
        nargs="+",
        default=default,
        metavar="N",
        help="layers whose vectors to write: 0 is the embeddings, 1 the first layer, "
        "-1 the last one (default: -1)",
    )


def _add_convert(verbs: Any) -> None:
    convert = _verb(verbs, "convert", "third-party checkpoints in and out")
    _add_required(
        convert,
        input="checkpoint; its format is recognised",
        output="directory to create",
    )
    convert.add_argument(
        "--to",
        required=True,
        choices=typing.get_args(config.CheckpointFormat),
        help="format to write",
    )
    _add_flag(
        convert,
        "--approximate_gelu",
        "write a model with the exact GELU although --to has only its tanh form",
    )
    convert.add_argument(
        "--keep_tokens",
        nargs="+",
        metavar="FILE",
        help="texts (.txt, .tsv, .csv, .jsonl; paths or patterns): leave out the "
        "pieces of the vocabulary that they do not need; --to may then be the same "
        "format",
    )


def _add_settings(verbs: Any) -> None:
    subjects = (*config_page.CONFIGURATIONS, "list", "page")
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
    _add_flag(parser, "--quiet", "print only results, warnings and errors")
    _add_choice(
        parser,
        "--log",
        Literal["text", "json"],
        "form of the messages on stderr",
    )
    return parser


def _add_required(parser: argparse.ArgumentParser, **helps: str) -> None:
    for name, what in helps.items():
        parser.add_argument(f"--{name}", required=True, help=what)


def _add_flag(parser: argparse.ArgumentParser, option: str, what: str) -> None:
    parser.add_argument(option, action="store_true", help=what)


def _add_number(
    parser: argparse.ArgumentParser, option: str, default: int | None, what: str
) -> None:
    shown = what if default is None else f"{what} {_DEFAULT}"
    parser.add_argument(option, type=int, default=default, metavar="N", help=shown)


def _add_choice(
    parser: argparse.ArgumentParser,
    option: str,
    choices: Any,
    what: str,
    *,
    has_default: bool = True,
) -> None:
    """Adds an option for one of a Literal's values; the first one is the default."""
    known = typing.get_args(choices)
    parser.add_argument(
        option,
        choices=known,
        default=known[0] if has_default else None,
        help=f"{what} {_DEFAULT}" if has_default else what,
    )


def _add_beam(parser: argparse.ArgumentParser) -> None:
    _add_number(parser, "--workers", 1, "local processes")
    parser.add_argument(
        "--memory_limit",
        type=float,
        default=4.0,
        metavar="GB",
        help=f"memory of all local processes together, in GB {_DEFAULT}",
    )
    parser.epilog = "Options after `--` go to Beam, such as -- --runner ..."
    parser.set_defaults(takes_beam_options=True)


def _add_config(parser: argparse.ArgumentParser, verb: str) -> None:
    parser.set_defaults(settings_of=verb)
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
    _add_required(parser, output_dir="run directory to create")
    *first, last = tpu.STRATEGIES
    parser.add_argument(
        "--strategy",
        default="auto",
        help=f"devices to train on: {', '.join(first)} or {last} {_DEFAULT}",
    )


class _Parser(argparse.ArgumentParser):
    """argparse with one-line errors that name the nearest option."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, allow_abbrev=False, **kwargs)

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[override]
        namespace, unknown = super().parse_known_args(args, namespace)
        if unknown:
            name, _, value = unknown[0].partition("=")
            verb, value = self.get_default("settings_of"), value or unknown[1:2]
            hint = config_page.option_of(verb, name, "".join(value))
            hint = hint or nearest(name, self._option_string_actions)
            self.error(f"no option {name!r}{hint}")
        return namespace, unknown

    def _check_value(self, action, value):  # type: ignore[override]
        if action.choices is not None:
            name = action.option_strings[0] if action.option_strings else action.dest
            try:
                check_choice(name, value, action.choices)
            except InputError as error:
                self.error(str(error))

    def error(self, message: str) -> NoReturn:
        prog = self.prog.removeprefix("bert-keras").strip()
        raise InputError(f"{prog}: {message}" if prog else message)


def split_at_dashes(arguments: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in arguments:
        return arguments, []
    position = arguments.index("--")
    return arguments[:position], arguments[position + 1 :]
