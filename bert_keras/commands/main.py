"""The command line: one verb for each stage of a model's life.

Every verb imports its work when it is called, so `--help` answers at once and the
data verbs never load TensorFlow.
"""

import argparse
import logging
import os
import shlex
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from bert_keras.commands import config_page, machine_commands, parser, tuning_commands
from bert_keras.core import messages, requirements, stores
from bert_keras.core.errors import InputError, NotRun, Stopped, Unavailable
from bert_keras.core.settings import config, loading
from bert_keras.core.settings import features as feature_settings
from bert_keras.pipelines import sources

OVERVIEW = """\
usage: bert-keras VERB ...

bert-keras demo --output_dir demo    all stages on text that is on this machine
bert-keras help                      all verbs
bert-keras help VERB                 the options of a verb
bert-keras config VERB               the settings of a verb, for --set

A model of your own: corpus, vocab, examples, pretrain. A task on a model: finetune,
evaluate, predict, report, export. Other programs' checkpoints: convert."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the process's exit code.

    0 when done, 2 when the user can fix the problem, 75 when a store did not answer
    for minutes, 130 when interrupted, 143 after SIGTERM.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments:
        print(OVERVIEW, file=sys.stderr)
        return 2
    messages.configure()
    verb = ""
    try:
        parsed = _parse(arguments)
        messages.configure(quiet=parsed.quiet, as_json=parsed.log == "json")
        verb = f" {parsed.verb}"
        _run(parsed)
    except InputError as error:
        messages.last_words(f"bert-keras{verb}: error: {error}")
        return 2
    except Unavailable as error:
        messages.last_words(f"bert-keras{verb}: error: {error}")
        return error.exit_code
    except OSError as error:
        # Without a name it is none of a file: a fault of ours, or a closed pipe.
        if error.filename is None:
            raise
        reason = error.strerror or error
        messages.last_words(f"bert-keras{verb}: error: {error.filename}: {reason}")
        return 2
    except NotRun as reason:
        messages.last_words(f"bert-keras{verb}: {reason}", level=logging.INFO)
    except Stopped as reason:
        messages.last_words(f"bert-keras{verb}: {reason}", level=logging.WARNING)
        return reason.exit_code
    except KeyboardInterrupt:
        messages.last_words(f"bert-keras{verb}: interrupted")
        return 130
    return 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    if arguments[0] == "help":
        arguments = [*arguments[1:], "--help"]
    arguments, beam_arguments = parser.split_at_dashes(arguments)
    parsed = parser.build_parser().parse_args(arguments)
    if beam_arguments and not parsed.takes_beam_options:
        raise InputError(f"`{parsed.verb}` takes nothing after `--`")
    parsed.beam_arguments = beam_arguments
    return parsed


def _run(parsed: argparse.Namespace) -> None:
    name = parsed.target if parsed.verb == "launch" else parsed.verb
    if name in _BACKENDS:
        requirements.check_packages(name)
        if _BACKENDS[name]:
            requirements.check_backend(name, _BACKENDS[name])
        _quiet_tensorflow()
        if getattr(parsed, "workers", None) or "TF_CONFIG" in os.environ:
            _wait_for_stores()
    _VERBS[name](parsed)


# Data: Apache Beam, no TensorFlow.


def _corpus(args: argparse.Namespace) -> None:
    _quiet_beam()
    from bert_keras.pipelines import corpus

    corpus.build_corpus(
        args.output,
        sources={kind: getattr(args, kind) for kind in sources.SOURCES},
        config=loading.load(config.CorpusConfig, args.config, args.set),
        exclude_overlap_with=args.exclude_overlap_with,
        max_bad_fraction=args.max_bad_fraction,
        allow_cut_dumps=args.allow_cut_dumps,
        encoding=args.encoding,
        engine=_engine(args),
    )


def _vocab(args: argparse.Namespace) -> None:
    _quiet_beam()
    from bert_keras.pipelines import vocabulary

    vocabulary.build_vocabulary(
        args.corpus,
        args.output,
        vocab_size=args.vocab_size,
        do_lower_case=not args.cased,
        engine=_engine(args),
    )


def _extend_vocab(args: argparse.Namespace) -> None:
    from bert_keras.data import vocabulary_extension

    vocabulary_extension.write_extended(
        args.vocab,
        args.words,
        args.output,
        do_lower_case=not args.cased,
        into_unused=not args.append,
    )


def _pairs(args: argparse.Namespace) -> None:
    from bert_keras.pipelines import pairs

    pairs.write_pairs(
        args.corpus,
        args.output,
        kind=args.of,
        per_document=args.per_document,
        dev_percent=args.dev_percent,
    )


def _examples(args: argparse.Namespace) -> None:
    _quiet_beam()
    from bert_keras.pipelines import examples

    length = args.max_seq_length
    overrides = [*([] if length is None else [f"max_seq_length={length}"]), *args.set]
    examples.build_examples(
        args.corpus,
        args.vocab,
        args.output,
        config=loading.load(config.ExamplesConfig, args.config, overrides),
        do_lower_case=not args.cased,
        num_shards=args.num_shards,
        engine=_engine(args),
    )


def _launch_dataflow(args: argparse.Namespace) -> None:
    _quiet_beam()
    from bert_keras.pipelines.dataflow import launch, wheel

    staged = None if args.sdk_container_image else wheel.write_wheel("dist")
    names = launch.Dataflow.__dataclass_fields__
    settings = launch.Dataflow(**{name: getattr(args, name) for name in names})
    command = launch.dataflow_command(args.beam_arguments, settings, wheel=staged)
    parsed = _parse(command[1:])
    launch.check_paths(vars(parsed))
    print(shlex.join(command), flush=True)
    if not args.dry_run:
        _run(parsed)


def _engine(args: argparse.Namespace) -> Any:
    from bert_keras.pipelines.engine import engines

    return engines.make_engine(
        args.beam_arguments,
        num_workers=args.workers,
        memory_limit=round(args.memory_limit * 1e9),
    )


def _inspect(args: argparse.Namespace) -> None:
    _quiet_beam()
    from bert_keras.pipelines.inspection import description

    if args.stats:
        lines = description.describe_all(
            args.examples,
            vocab_path=args.vocab,
            json_path=args.json,
        )
    elif args.json:
        raise InputError("--json writes the card: give --stats too")
    else:
        lines = description.describe_examples(
            args.examples, vocab_path=args.vocab, limit=args.limit
        )
    for line in lines:
        print(line)


def _adopt(args: argparse.Namespace) -> None:
    _quiet_beam()
    from bert_keras.pipelines.inspection import adoption

    adoption.adopt_examples(args.directory, args.vocab, do_lower_case=not args.cased)


# Models: TensorFlow and Keras.


def _pretrain(args: argparse.Namespace) -> None:
    settings = loading.load(config.PretrainingConfig, args.config, args.set)
    from bert_keras.tpu import strategy
    from bert_keras.training import pretrain

    devices = strategy.get_strategy(
        args.strategy, workers=args.workers, worker_index=args.worker_index
    )
    pretrain.pretrain(
        settings,
        args.examples,
        args.output_dir,
        vocab_path=args.vocab,
        init=args.init,
        strategy=devices,
        is_chief=strategy.is_chief(devices),
        verify=args.verify,
    )


def _report(args: argparse.Namespace) -> None:
    from bert_keras import report

    print(report.write_report(args.run_dir, args.output))


def _fill_mask(args: argparse.Namespace) -> None:
    from bert_keras.inference import fill_mask

    texts = args.text or (line.rstrip("\n") for line in sys.stdin)
    model = fill_mask.FillMask(args.model)
    for text in texts:
        for line in fill_mask.describe(text, model(text, top_k=args.top_k)):
            print(line)


def _evaluate(args: argparse.Namespace) -> None:
    if (args.model is None) == (args.predictions is None):
        raise InputError("give a run with --model, or answers with --predictions")
    if args.predictions is not None:
        from bert_keras.kinds.span import squad_predictions

        scores = squad_predictions.score_file(args.input, args.predictions)
    else:
        from bert_keras.inference import finetuned

        scores = finetuned.evaluate(args.model, args.input)
    for name, value in scores.items():
        print(
            f"{name}\t{value:.4f}" if isinstance(value, float) else f"{name}\t{value}"
        )


def _predict(args: argparse.Namespace) -> None:
    if (args.input is None) == (args.data is None):
        raise InputError(
            "give a file with --input, or GLUE's folder with --data for its test files"
        )
    if args.input is not None and len(args.model) > 1:
        raise InputError("several runs go together only with --data")
    from bert_keras.inference import finetuned

    if args.input is None:
        finetuned.submit_glue(args.model, args.data, args.output)
    else:
        finetuned.predict(args.model[0], args.input, args.output)


def _export(args: argparse.Namespace) -> None:
    from bert_keras import export

    verdict = export.export_model(
        args.model,
        args.output,
        to=args.to,
        embedding=args.embedding,
        layers=args.layers,
        long_texts=args.long_texts,
        top_k=args.top_k,
        quantize=args.quantize,
        reduce_range=args.reduce_range,
        dev=args.dev,
        max_drop=args.max_drop,
        serving=args.serving,
        image=args.image,
    )
    if verdict is not None:
        print(export.table(verdict), end="")


def _features(args: argparse.Namespace) -> None:
    settings = loading.load(feature_settings.FeaturesConfig, args.config, args.set)
    from bert_keras.inference.features import writing

    writing.write(
        args.model,
        args.input,
        args.output,
        settings=settings,
        layers=args.layers,
        pooling=args.pooling,
        to=args.to,
        form=args.form,
    )


def _convert(args: argparse.Namespace) -> None:
    from bert_keras.checkpoints import conversion
    from bert_keras.labelled import reading
    from bert_keras.report import model_card

    card = None
    if args.to in model_card.USES:
        name = os.path.basename(os.path.abspath(args.output))
        card = model_card.text(args.input, name=name, form=args.to)
    done = conversion.convert(
        args.input,
        args.output,
        to=args.to,
        approximate_gelu=args.approximate_gelu,
        card=card,
        keep_tokens=args.keep_tokens and reading.read_strings(args.keep_tokens),
    )
    for line in conversion.describe(done, to=args.to):
        print(line)


def _config(args: argparse.Namespace) -> None:
    if args.subject in config_page.CONFIGURATIONS:
        model = config_page.CONFIGURATIONS[args.subject]
        settings = loading.load(model, args.config, args.set)
        lines = config_page.describe(args.subject, settings)
    elif args.config or args.set:
        raise InputError(f"`config {args.subject}` takes no --config and no --set")
    elif args.subject == "list":
        lines = config_page.recipe_lines()
    else:
        lines = config_page.page()
    for line in lines:
        print(line)


def _doctor(args: argparse.Namespace) -> None:
    _quiet_beam()
    machine_commands.doctor(args)


def _plan(args: argparse.Namespace) -> None:
    if args.train or args.data:
        requirements.check_packages("plan")
        _quiet_tensorflow()
    machine_commands.plan(args)


def _demo(args: argparse.Namespace) -> None:
    from bert_keras.lab import demo

    demo.run(args.output_dir)


def _quiet_beam() -> None:
    # Beam reports on import that its optional cloud parts are not installed.
    logging.getLogger().setLevel(logging.ERROR)
    logging.getLogger("apache_beam").setLevel(logging.ERROR)


def _quiet_tensorflow() -> None:
    """Silences TensorFlow's start-up noise unless the user asked for it."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # Else it takes the size of a store's file from what it was five seconds ago.
    os.environ.setdefault("GCS_STAT_CACHE_MAX_AGE", "0")
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    if os.environ["TF_CPP_MIN_LOG_LEVEL"] == "3":
        requirements.quiet_native_logs()
    warnings.filterwarnings("ignore", module="(tensorflow|keras|google|h5py).*")


def _wait_for_stores() -> None:
    """Has TensorFlow try requests to `gs://` again for five minutes, not for one.

    A batch that cannot be read ends the sums of all workers for good. One worker alone
    tries again itself, and says so.
    """
    # Its pauses double from a tenth of a second to 32.
    os.environ.setdefault("GCS_RETRY_CONFIG_MAX_RETRIES", "17")


_VERBS: dict[str, Callable[[argparse.Namespace], None]] = {
    "corpus": _corpus,
    "vocab": _vocab,
    "extend-vocab": _extend_vocab,
    "pairs": _pairs,
    "examples": _examples,
    "inspect": _inspect,
    "adopt": _adopt,
    "dataflow": _launch_dataflow,
    "pretrain": _pretrain,
    "preflight": machine_commands.preflight,
    "report": _report,
    "fill-mask": _fill_mask,
    "finetune": tuning_commands.finetune,
    "distill": tuning_commands.distill,
    "sweep": tuning_commands.sweep,
    "compare": tuning_commands.compare,
    "evaluate": _evaluate,
    "predict": _predict,
    "export": _export,
    "features": _features,
    "convert": _convert,
    "config": _config,
    "doctor": _doctor,
    "plan": _plan,
    "demo": _demo,
}
"""Functions of all verbs, and of the targets of `launch`."""

_BACKENDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("pretrain", "finetune", "demo"), ("tensorflow",)),
    "distill": ("tensorflow",),
    **dict.fromkeys(("sweep", "compare", "preflight"), ("tensorflow",)),
    **dict.fromkeys(("evaluate", "predict", "export"), ("tensorflow",)),
    "features": ("tensorflow",),
    **dict.fromkeys(("fill-mask", "convert"), ("tensorflow", "jax")),
    "report": (),
}
"""Verbs that need the packages of `train`, and the Keras backends that they run on, if
they load Keras: `tf.distribute` trains, `tf.data` feeds, `tf.function` exports."""


def _stop(*_: object) -> NoReturn:
    """Answers SIGTERM, unless a verb answers it itself."""
    raise Stopped("stopped by SIGTERM; give the same command again to resume")


_GRACE_SECONDS = 20.0
"""Time between a signal and the end of a process that a silent store holds up, without
`_ANSWER_SECONDS`: clouds give 30 in all."""
_ANSWER_SECONDS = 5.0
"""Time in which a store that is there answers."""


def _end_in_an_outage() -> None:
    """Has SIGTERM and Ctrl-C end this process even if a store does not answer.

    Python's handlers wait for the call that the main thread is in, such as TensorFlow's
    read of a batch, which may take minutes then. So a thread hears of the signal, asks
    the stores, and ends the process, whose state may be in the middle of a step.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    # A signal to a forked process is none to this one.
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))

    def watch() -> None:
        number = 0
        while number not in (signal.SIGTERM, signal.SIGINT):
            number = os.read(reading, 1)[0]
        time.sleep(_GRACE_SECONDS)
        while stores.all_answer(seconds=_ANSWER_SECONDS):
            time.sleep(1)
        name = signal.Signals(number).name
        messages.last_words(
            f"bert-keras: stopped by {name} while a store does not answer, and not "
            "saved; give the same command again to resume from the last checkpoint",
            level=logging.WARNING,
        )
        os._exit(128 + number)

    threading.Thread(target=watch, daemon=True).start()


def entry_point() -> NoReturn:
    """The process of `bert-keras`: runs `main` and ends."""
    signal.signal(signal.SIGTERM, _stop)
    _end_in_an_outage()
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os._exit(1)
    sys.stderr.flush()
    if code:
        # A pipeline that failed may have left threads that wait for dead workers.
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    entry_point()
