"""`bert-keras negatives`: wrong passages for `finetune --task ranking`."""

import argparse

from bert_keras.commands import parser as options
from bert_keras.core.errors import InputError


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
    name="negatives",
    needs=options.TENSORFLOW,
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
