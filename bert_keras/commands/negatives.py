"""`bert-keras negatives`: wrong passages for `finetune --task ranking`."""

import argparse
from typing import Any

from bert_keras.commands import parser as options
from bert_keras.core.errors import InputError


def add_negatives(verbs: Any) -> None:
    parser = options.add_verb(verbs, "negatives", "hard wrong passages for ranking")
    parser.set_defaults(run=mine, needs=options.TENSORFLOW)
    options.add_required(
        parser,
        model="run directory of `finetune --task embedding`, or such a model",
        input="questions with right passages, as `--task ranking` reads them",
        passages="passages to search: .txt, a line each, or a column `passage`",
        output="file to make: .tsv, .csv or .jsonl",
    )
    for option, default, what in (
        ("--num_negatives", 7, "wrong passages for each question at most"),
        ("--depth", 100, "nearest passages that they are drawn from"),
        ("--skip", 0, "nearest passages that are left out, as they may be right"),
        ("--seed", 12345, "seed of the draw"),
    ):
        options.add_number(parser, option, default, what)
    options.add_number(
        parser,
        "--margin",
        0.05,
        "share of its cosine by which a right passage is nearer",
        of=float,
        metavar="SHARE",
    )


def mine(args: argparse.Namespace) -> None:
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
