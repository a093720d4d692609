"""Verbs that use a trained model, or hand it to other programs."""

import argparse
import os
import sys

from bert_keras.commands import parser as options
from bert_keras.core.errors import InputError
from bert_keras.core.settings import choices, tasks


@options.Verb(
    "guess the [MASK] in sentences",
    {
        "text": {
            "nargs": "*",
            "help": "sentences with [MASK] (default: lines of stdin)",
        },
        "--model MODEL!": f"model with a masked-LM head: {options.ANY_CHECKPOINT}",
        "--top_k N=5": "guesses for each [MASK]",
    },
    needs=options.KERAS,
)
def fill_mask(args: argparse.Namespace) -> None:
    from bert_keras.inference import fill_mask

    texts = args.text or (line.rstrip("\n") for line in sys.stdin)
    model = fill_mask.FillMask(args.model)
    for text in texts:
        options.print_lines(fill_mask.describe(text, model(text, top_k=args.top_k)))


@options.Verb(
    "how probable a masked LM finds sentences, or which of two",
    {
        "--model MODEL!": f"model with a masked-LM head: {options.ANY_CHECKPOINT}",
        "--input FILE": "sentences, one a line; `-` is standard input",
        "--pairs FILE": "instead of --input: minimal pairs, with columns `good` and "
        "`bad`, and perhaps `group`, or those of BLiMP's files (.tsv, .csv, .jsonl)",
        "--group_by COLUMN": "column of --pairs with the groups",
        "--pll": (
            choices.PllForm,
            "original: each piece is masked alone; word_l2r: with the rest of its word",
        ),
        "--output FILE": "JSON lines to write, with the score of each piece",
        "--picture FILE": "PNG to write, with the accuracy of each group of --pairs",
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
    from bert_keras.scoring import scored_files

    asked = {"output": args.output, "pll": args.pll}
    if args.pairs is None:
        lines = scored_files.score_sentences(args.model, path, **asked)
    else:
        asked |= {"group_by": args.group_by, "picture": args.picture}
        lines = scored_files.score_pairs(args.model, path, **asked)
    options.print_lines(lines)


@options.Verb(
    "score a tuned model, or answers to SQuAD",
    {
        "--model MODEL": "run directory of `finetune`, or a tuned model of any format",
        "--predictions FILE": "instead of --model: predictions.json of any system, for "
        "SQuAD",
        "--input INPUT!": "labelled file to score against",
    },
    needs=options.TENSORFLOW,
)
def evaluate(args: argparse.Namespace) -> None:
    if (args.model is None) == (args.predictions is None):
        raise InputError("give a run with --model, or answers with --predictions")
    if args.predictions is not None:
        from bert_keras.kinds.span import squad_predictions

        scores = squad_predictions.score_file(args.input, args.predictions)
    else:
        from bert_keras.inference import finetuned

        scores = finetuned.evaluate(args.model, args.input)
    for name, value in scores.items():
        text = f"{value:.4f}" if isinstance(value, float) else value
        print(f"{name}\t{text}")


@options.Verb(
    "answer new texts",
    {
        "--model MODEL...!": "run directory of `finetune`, or a tuned model of any "
        "format; with --data one for each task",
        "--input INPUT": "file like those it was tuned on; `-` is standard input",
        "--data DIRECTORY": "instead of --input: GLUE's folder, to answer its test "
        "files",
        "--output OUTPUT!": "file to write, with the columns of the input: .csv, "
        ".jsonl, any other is tab-separated; `-` is standard output; a directory where "
        "the answers are several files (span, --data); with --data a .zip file is "
        "ready for GLUE's server",
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
    from bert_keras.inference import finetuned

    if args.input is None:
        finetuned.submit_glue(args.model, args.data, args.output)
    else:
        finetuned.predict(args.model[0], args.input, args.output)


@options.Verb(
    "hard wrong passages for ranking",
    {
        "--model MODEL!": "run directory of `finetune --task embedding`, or such a "
        "model",
        "--input INPUT!": "questions with right passages, as `--task ranking` reads "
        "them",
        "--passages PASSAGES!": "passages to search: .txt, a line each, or a column "
        "`passage`",
        "--output OUTPUT!": "file to make: .tsv, .csv or .jsonl",
        "--num_negatives N=7": "wrong passages for each question at most",
        "--depth N=100": "nearest passages that they are drawn from",
        "--skip N=0": "nearest passages that are left out, as they may be right",
        "--seed N=12345": "seed of the draw",
        "--margin SHARE=0.05": "share of its cosine by which a right passage is nearer",
    },
    needs=options.TENSORFLOW,
)
def negatives(args: argparse.Namespace) -> None:
    import numpy as np

    from bert_keras.inference import finetuned, forward
    from bert_keras.kinds import registry, vectors
    from bert_keras.kinds.ranking import negatives

    choice = negatives.Choice(*(getattr(args, n) for n in negatives.Choice._fields))
    negatives.check(choice, args.output)
    model = finetuned.FinetunedModel.load(args.model)
    kind = registry.labelled(model.task.kind)
    if kind.form != vectors.Embedding.form:
        raise InputError(
            f"{args.model}: a model for {kind.name}, expected one for vectors, from "
            "`finetune --task embedding`"
        )
    compute = forward.predictor_for(model.network)

    def embed(texts) -> np.ndarray:
        data = kind.from_python(texts, model.task)
        inputs = data.encode(model.task, model.tokenizer, model.settings)
        return compute(inputs, title=None)[:, 0]

    negatives.mine(args.input, args.passages, args.output, embed=embed, choice=choice)


@options.Verb(
    "SavedModel, LiteRT or ONNX of a trained model",
    {
        "--model MODEL!": options.ANY_CHECKPOINT,
        "--output OUTPUT!": "directory to create, such as exported/1",
        "--to": (
            choices.ExportForm,
            "saved_model: strings in, answers out; litert and onnx: ids in, numbers "
            "out",
        ),
        "--layers": options.layers(None),
        "--embedding?": (
            choices.Embedding,
            "vectors of texts or tokens (default: the answers the model was trained "
            "for)",
        ),
        "--long_texts?": (
            tasks.LongTexts,
            "what becomes of texts longer than an input, with --embedding: cut keeps "
            "the beginning, head_tail beginning and end; windows_mean and windows_max "
            "pool the vectors of overlapping windows (default: cut)",
        ),
        "--quantize?": (
            choices.Quantization,
            "smaller weights of a tuned run, int8 for --to onnx and litert, bfloat16 "
            "and float16 for saved_model; compared on --dev (default: float32)",
        ),
        "--serving?": (
            choices.ModelServer,
            "adds the requests with which TensorFlow Serving warms up, with --output "
            "NAME/VERSION (default: nothing)",
        ),
        "--top_k N=int": "guesses for each [MASK] (default: 5)",
        "--reduce_range": "7 bits instead of 8 for --to onnx --quantize int8, for x86 "
        "processors without VNNI, whose sums would overflow",
        "--dev FILE": "labelled file to compare on, for --quantize",
        "--max_drop POINTS=float": "points of the score that --quantize may lose "
        "(default: 0.5)",
    },
    needs=options.TENSORFLOW,
)
def export(args: argparse.Namespace) -> None:
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
    )
    if verdict is not None:
        print(export.table(verdict), end="")


@options.Verb(
    "third-party checkpoints in and out",
    {
        "--input INPUT!": "checkpoint; its format is recognised",
        "--output OUTPUT!": "directory to create",
        "--to!": (choices.CheckpointFormat, "format to write"),
        "--approximate_gelu": "write a model with the exact GELU although --to has "
        "only its tanh form",
        "--keep_tokens FILE...": "texts (.txt, .tsv, .csv, .jsonl; paths or patterns): "
        "leave out the pieces of the vocabulary that they do not need; --to may then "
        "be the same format",
    },
    needs=options.KERAS,
)
def convert(args: argparse.Namespace) -> None:
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
    options.print_lines(conversion.describe(done, to=args.to))
