"""Verbs that use a trained model, or hand it to other programs."""

import argparse
import dataclasses
import os
import re
import socket
import sys

from bert_keras.commands import parser as options
from bert_keras.commands.parser import choice, flag, required, value
from bert_keras.core import files, manifest, requirements
from bert_keras.core.errors import InputError
from bert_keras.core.settings import choices, tasks


@options.Verb(
    "guess the [MASK] in sentences",
    {
        "text": value("sentences with [MASK] (default: lines of stdin)", nargs="*"),
        "--model": required(f"model with a masked-LM head: {options.ANY_CHECKPOINT}"),
        "--top_k": value("guesses for each [MASK]", default=5),
    },
    needs=options.KERAS,
)
def fill_mask(args: argparse.Namespace) -> None:
    options.check_paths(models=[args.model])
    from bert_keras.inference import fill_mask

    texts = args.text or (line.rstrip("\n") for line in sys.stdin)
    model = fill_mask.FillMask(args.model)
    for text in texts:
        options.print_lines(fill_mask.describe(text, model(text, top_k=args.top_k)))


@options.Verb(
    "how probable a masked LM finds sentences, or which of two",
    {
        "--model": required(f"model with a masked-LM head: {options.ANY_CHECKPOINT}"),
        "--input": "sentences, one a line; `-` is standard input",
        "--pairs": "instead of --input: minimal pairs, with columns `good`, `bad` and "
        "perhaps `group`, or those of BLiMP's files (.tsv, .csv, .jsonl, .parquet)",
        "--group_by": "column of --pairs with the groups",
        "--pll": choice(
            choices.PllForm,
            "original: each piece is masked alone; word_l2r: with the rest of its word",
            default="original",
        ),
        "--output": "JSON lines to write, with the score of each piece",
        "--picture": "PNG to write, with the accuracy of each group of --pairs",
    },
    needs=options.TENSORFLOW,
    exclusive=(("--input", "--pairs"),),
)
def score(args: argparse.Namespace) -> None:
    path = args.pairs or args.input
    if path is None:
        raise InputError("give sentences with --input, or pairs with --pairs")
    if args.pairs is None and (args.group_by or args.picture):
        raise InputError("--group_by and --picture need --pairs")
    options.check_paths(models=[args.model], input=args.input, pairs=args.pairs)
    from bert_keras.scoring import scored_files

    if args.pairs is None:
        asked = options.named(args, "output", "pll")
        lines = scored_files.score_sentences(args.model, path, **asked)
    else:
        asked = options.named(args, "output", "pll", "group_by", "picture")
        lines = scored_files.score_pairs(args.model, path, **asked)
    options.print_lines(lines)


@options.Verb(
    "score a tuned model, or answers to SQuAD",
    {
        "--model": "run directory of `finetune`, or a tuned model of any format",
        "--predictions": "instead of --model: any system's predictions.json for SQuAD",
        "--input": required("labelled file to score against"),
    },
    needs=options.TENSORFLOW,
)
def evaluate(args: argparse.Namespace) -> None:
    if (args.model is None) == (args.predictions is None):
        raise InputError("give a run with --model, or answers with --predictions")
    models = [args.model] if args.model else []
    options.check_paths(models=models, **options.named(args, "input", "predictions"))
    if args.predictions is not None:
        from bert_keras.kinds.span import dataset

        scores = dataset.score_file(args.input, args.predictions)
    else:
        from bert_keras.inference import finetuned

        scores = finetuned.evaluate(args.model, args.input)
    for name, number in scores.items():
        text = f"{number:.4f}" if isinstance(number, float) else number
        print(f"{name}\t{text}")


@options.Verb(
    "when a tuned model answers, and when it says nothing",
    {
        "--model": required("run directory of `finetune`"),
        "--data": "labelled file that the run has not seen (default: the rows that "
        "`finetune --calibrate` set aside)",
        "--precision": value("share of the answers given that are right", default=0.95),
        "--confidence": value("probability that this holds", default=0.95),
        "--by_label": flag("promise it of the answers with each label"),
    },
    needs=options.TENSORFLOW,
)
def calibrate(args: argparse.Namespace) -> None:
    options.check_paths(models=[args.model], data=args.data)
    from bert_keras.report import promises
    from bert_keras.trust import calibrating

    names = ("data", "precision", "confidence", "by_label")
    promise = calibrating.calibrate(args.model, **options.named(args, *names))
    rows = map("\t".join, promises.by_label(promise))
    options.print_lines([promises.sentence(promise), promises.facts(promise), *rows])


@options.Verb(
    "answer new texts",
    {
        "--model": required(
            "run directory of `finetune`, or a tuned model of any "
            "format; with --data one for each task",
            nargs="+",
        ),
        "--input": "file like those it was tuned on; `-` is standard input",
        "--data": "instead of --input: GLUE's folder, to answer its test files",
        "--output": required(
            "file to write, with the columns of the input: .csv, .jsonl, any other is "
            "tab-separated; `-` is standard output; a directory where the answers are "
            "several files (span, --data); with --data a .zip file is ready for GLUE"
        ),
    },
    needs=options.TENSORFLOW,
)
def predict(args: argparse.Namespace) -> None:
    if (args.input is None) == (args.data is None):
        raise InputError(
            "give a file with --input, or GLUE's folder with --data for its test files"
        )
    if args.input is not None and len(args.model) > 1:
        raise InputError("several runs go together only with --data")
    options.check_paths(models=args.model, input=args.input, data=args.data)
    from bert_keras.inference import finetuned

    if args.input is None:
        finetuned.submit_glue(args.model, args.data, args.output)
    else:
        finetuned.predict(args.model[0], args.input, args.output)


@options.Verb(
    "the words for and against each answer of a tuned model",
    {
        "--model": required("run directory of `finetune`, or a tuned model"),
        "--input": required("file as `predict` takes it"),
        "--output": required(
            "file to make, .jsonl: a line for each answer; a page goes beside it"
        ),
        "--label": "explain the score of this label (default: the answer's)",
    },
    needs=options.TENSORFLOW,
)
def explain(args: argparse.Namespace) -> None:
    options.check_paths(models=[args.model], input=args.input)
    from bert_keras.trust import explaining

    lines = explaining.explain(args.model, args.input, args.output, label=args.label)
    options.print_lines(lines)


@options.Verb(
    "a page to try a model or to search an index, and JSON beside it",
    {
        "--model": f"{options.ANY_CHECKPOINT}; with --index: place of the index's "
        "model, if it has moved",
        "--index": "directory that `index` made, to search",
        "--rerank": "run directory of `finetune --task ranking`, which orders the best "
        "hits of --index",
        "--port": value("port to listen on; 0 is a free one", default=8000),
        "--host": value(
            "address to listen on; 0.0.0.0 is open to all who reach this machine",
            default="127.0.0.1",
        ),
    },
    needs=options.TENSORFLOW,
)
def serve(args: argparse.Namespace) -> None:
    for name in ("fastapi", "uvicorn"):
        requirements.check_installed(name, "serve", "`serve` needs the package")
    if args.index is None and (args.model is None or args.rerank):
        raise InputError("give a model with --model, or an index with --index")
    options.check_paths(models=filter(None, (args.model, args.rerank)))
    if args.index is not None:
        manifest.read_manifest(args.index, kind="index")
    if not 0 <= args.port < 1 << 16:
        raise InputError(f"--port is a number from 0 to 65535, got {args.port}")
    if not args.host:  # would be all addresses of this machine
        raise InputError("--host is an address of this machine, got an empty one")
    address = (args.host, args.port)
    family = socket.AF_INET6 if ":" in args.host else socket.AF_INET
    try:
        listener = socket.create_server(address, family=family, backlog=1024)
    except OSError as error:
        raise InputError(
            f"--host {args.host} --port {args.port}: {error.strerror}; --port 0 takes "
            "a free port"
        ) from None
    with listener:
        # Each answer would wait 40 ms: asyncio sets this for its own sockets alone.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        from bert_keras.serve import app

        named = options.named(args, "model", "index")
        app.run(listener, reranker=args.rerank, **named)


@options.Verb(
    "hard wrong passages for ranking",
    {
        "--model": required(
            "run directory of `finetune --task embedding`, or such a model"
        ),
        "--input": required(
            "questions with right passages, as `--task ranking` reads them"
        ),
        "--passages": required(
            "passages to search: .txt, a line each, or a column `passage`"
        ),
        "--output": required("file to make: .tsv, .csv or .jsonl"),
        "--num_negatives": value("wrong passages of a question", default=7),
        "--depth": value("nearest passages to draw from", default=100),
        "--skip": value("nearest passages to leave out", default=0),
        "--seed": value("seed of the draw", default=12345),
        "--margin": value(
            "share of its cosine by which a right passage is nearer", default=0.05
        ),
    },
    needs=options.TENSORFLOW,
)
def negatives(args: argparse.Namespace) -> None:
    options.check_paths(models=[args.model], **options.named(args, "input", "passages"))
    import numpy as np

    from bert_keras.inference import finetuned, forward
    from bert_keras.kinds import registry, vectors
    from bert_keras.kinds.ranking import negatives

    choice = negatives.Choice(**options.named(args, *negatives.Choice._fields))
    negatives.check(choice, args.output)
    form = vectors.Embedding.form
    model = finetuned.FinetunedModel.load_form(args.model, form)
    kind = registry.labelled(model.task.kind)
    compute = forward.predictor_for(model.network)

    def embed(texts) -> np.ndarray:
        # Texts from Python become inputs as those of `predict` do.
        data = kind.from_python(texts, model.task)
        inputs = data.encode(model.task, model.tokenizer, model.settings)
        return compute(inputs, title=None)[:, 0]

    negatives.mine(
        *(args.input, args.passages, args.output),
        embed=embed,
        encode=model.tokenizer.encode_packed,
        choice=choice,
    )


@options.Verb(
    "an index of your own texts, to search",
    {
        "--model": required(
            "run directory of `finetune --task embedding`, or such a model"
        ),
        "--input": required(
            "files of texts, or patterns: .txt, a line each, or a column `text` or "
            "`passage` of .tsv, .csv, .jsonl or .parquet; or a directory of `corpus`",
            nargs="+",
        ),
        "--output": required("directory of the index"),
        "--add": flag("add the files to a finished index"),
        "--max_seq_length": value(
            "tokens of a piece at most; longer texts become pieces that overlap by "
            "half (default: those of the model)",
            type=int,
        ),
    },
    needs=options.TENSORFLOW,
)
def index(args: argparse.Namespace) -> None:
    options.check_paths(args.output)
    files.check_model_exists(args.model)
    from bert_keras.search import building

    named = options.named(args, "add", "max_seq_length")
    building.build(args.model, args.input, args.output, **named)


@options.Verb(
    "texts of an index that answer a question",
    {
        "question": value("questions (default: lines of stdin)", nargs="*"),
        "--index": required("directory that `index` made"),
        "--by": choice(
            choices.SearchBy,
            "words: BM25; vectors: cosines; both: the ranks of both, fused",
            default="both",
        ),
        "--rerank": "run directory of `finetune --task ranking`, which orders the best",
        "--top": value("texts of a question", default=10),
        "--model": "place of the index's model, if it has moved",
        "--json": flag("print a line of JSON for each text"),
    },
    needs=options.TENSORFLOW,
)
def search(args: argparse.Namespace) -> None:
    options.check_paths(
        models=filter(None, (args.model, args.rerank)), index=args.index
    )
    from bert_keras.search import searching

    opened = searching.SearchIndex(args.index, model=args.model, reranker=args.rerank)
    asked = (line.rstrip("\n") for line in sys.stdin if line.strip())
    for question in args.question or asked:
        for rank, hit in enumerate(opened.search(question, args.top, by=args.by), 1):
            facts = {"question": question, "rank": rank, **dataclasses.asdict(hit)}
            place = f"{hit.document}  characters {hit.start} to {hit.end}"
            text = f"{rank:2}  {hit.score:.4f}  {place}\n    {hit.text}\n"
            # Indexed texts may contain codes that a terminal would execute.
            text = re.sub(r"[\0-\x08\x0b-\x1f\x7f-\x9f]", "\ufffd", text)
            print(files.to_json(facts) if args.json else text)


@options.Verb(
    "SavedModel, LiteRT or ONNX of a trained model, or a page for browsers",
    {
        "--model": required(options.ANY_CHECKPOINT),
        "--output": required("directory to create, such as exported/1"),
        "--to": choice(
            choices.ExportForm,
            "saved_model: strings in, answers out; litert and onnx: ids in, numbers "
            "out; transformers_js: a page that runs the model in the browser",
            default="saved_model",
        ),
        "--layers": options.layers(None),
        "--embedding": choice(
            choices.Embedding,
            "vectors of texts or tokens (default: the answers the model was trained "
            "for)",
        ),
        "--long_texts": choice(
            tasks.LongTexts,
            "what becomes of texts longer than an input, with --embedding: cut keeps "
            "the beginning, head_tail beginning and end; windows_mean and windows_max "
            "pool the vectors of overlapping windows (default: cut)",
        ),
        "--quantize": choice(
            choices.Quantization,
            "smaller weights of a tuned run, int8 for --to onnx and litert, bfloat16 "
            "and float16 for saved_model; compared on --dev (default: float32)",
        ),
        "--serving": choice(
            choices.ModelServer,
            "adds the requests with which TensorFlow Serving warms up, with --output "
            "NAME/VERSION (default: nothing)",
        ),
        "--top_k": value("guesses for each [MASK] (default: 5)", type=int),
        "--reduce_range": flag(
            "7 bits instead of 8 for --to onnx --quantize int8, for x86 "
            "processors without VNNI, whose sums would overflow"
        ),
        "--dev": "labelled file to compare on, for --quantize",
        "--max_drop": value(
            "points that --quantize may lose (default: 0.5)", type=float
        ),
    },
    needs=options.TENSORFLOW,
)
def export(args: argparse.Namespace) -> None:
    options.check_paths(models=[args.model], dev=args.dev)
    from bert_keras import export

    names = ("to", "embedding", "layers", "long_texts", "top_k", "serving")
    names += ("quantize", "reduce_range", "dev", "max_drop")
    named = options.named(args, *names)
    verdict = export.export_model(args.model, args.output, **named)
    if verdict is not None:
        print(export.table(verdict), end="")


@options.Verb(
    "third-party checkpoints in and out",
    {
        "--input": required("checkpoint; its format is recognised"),
        "--output": required("directory to create"),
        "--to": choice(choices.CheckpointFormat, "format to write", required=True),
        "--base": "base of an adapter (default: where the adapter says)",
        "--approximate_gelu": flag("allow a format whose GELU is the tanh form only"),
        "--keep_tokens": value(
            "texts (.txt, tables, JSON; paths or patterns): leave out the pieces "
            "of the vocabulary that they do not need; --to may then be the same format",
            nargs="+",
        ),
    },
    needs=options.KERAS,
)
def convert(args: argparse.Namespace) -> None:
    options.check_paths(models=filter(None, (args.input, args.base)))
    from bert_keras.checkpoints import conversion
    from bert_keras.labelled import reading
    from bert_keras.report import model_card

    card = None
    if args.to in model_card.LIBRARIES:
        name = os.path.basename(os.path.abspath(args.output))
        card = model_card.text(args.input, name=name, form=args.to)
    done = conversion.convert(
        *(args.input, args.output),
        card=card,
        keep_tokens=args.keep_tokens and reading.read_strings(args.keep_tokens),
        **options.named(args, "to", "approximate_gelu", "base"),
    )
    options.print_lines(conversion.describe(done, to=args.to))
