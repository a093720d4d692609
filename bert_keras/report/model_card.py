"""A model card: what a trained model is, from the files of its run alone.

It is Markdown under the metadata that the Hugging Face Hub reads (`library_name`,
`pipeline_tag`, `model-index`). Facts that the run's files do not have are called "not
stated". The card names files, but neither directories, nor the machine, nor a text.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from bert_keras.checkpoints import run_directory
from bert_keras.core import files, manifest
from bert_keras.core.errors import InputError
from bert_keras.core.settings import loading
from bert_keras.kinds import registry
from bert_keras.kinds.kind import Labelled
from bert_keras.pages import markdown
from bert_keras.report import facts, promises

FILE_NAME = "README.md"

_MAX_LABELS = 20

_TEXT = '"A text."'
_PAIR = '{"text": "A text.", "text_pair": "Another text."}'

LIBRARIES = {
    "hugging_face": "transformers",
    "sentence_transformers": "sentence-transformers",
    "saved_model": "tensorflow",
    "onnx": "onnx",
    "litert": "tflite",
    "transformers_js": "transformers.js",
}
"""What loads the files beside a card, by their form; `uses/` has how."""


def text(
    model_dir: str | Path, *, name: str, form: str, has_answers: bool = True
) -> str | None:
    """Returns the card of a finished run; `None`: the model is no such run. `form` is
    that of the files beside the card, a key of `LIBRARIES`; they give answers, or
    vectors in place of these."""
    directory = files.path(model_dir)
    is_run = (directory / run_directory.TASK_NAME).is_file()
    results = run_directory.read_results(directory) if is_run else None
    if not (results and results.get("eval")):
        return None
    run = run_directory.read_run(directory)
    settings = loading.read_yaml(directory / run_directory.CONFIG_NAME)
    settings = run_directory.flat(settings)
    # Those that are not finite are null in the file.
    scores = {k: v for k, v in results["eval"].items() if v is not None}
    kind, task, sizes = registry.find(run.task.kind), run.task, run.bert_config
    # 1. What the Hub reads, as `huggingface_hub.ModelCardData` writes it.
    pipeline = kind.names.pipeline
    evaluation = {
        "task": {"type": pipeline},
        "dataset": {"type": "own", "name": "held-out data of the run"},
        "metrics": [
            {"type": score, "value": round(value, 6)} for score, value in scores.items()
        ],
    }
    metadata = {
        "library_name": LIBRARIES[form],
        "license": "unknown",
        "pipeline_tag": pipeline,
        "tags": ["bert", "bert-keras"],
        "model-index": [{"name": name, "results": [evaluation]}],
    }
    head = yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)
    # 2. What people read, beginning with what the model is.
    what = f"tuned for {task.kind}" if isinstance(kind, Labelled) else "pre-trained"
    what += f" on {task.name}" if task.name else ""
    count = results.get("num_parameters")
    sections = [
        f"---\n{head}---",
        f"# {markdown.literal(name)}",
        f"A BERT (Devlin et al., 2018), {what}: {sizes.num_hidden_layers} layers, "
        f"hidden size {sizes.hidden_size}, {sizes.num_attention_heads} heads, "
        f"{sizes.vocab_size:,} pieces" + (f", {count:,} parameters." if count else "."),
        f"## Use\n\n{_use(form, run)}",
        *("## Results", _scores(directory, results, scores), *_thresholds(results)),
        *(_promise(directory, form) if has_answers else ()),
        *("## Data", "\n".join(_data(run, results))),
        *("## Training", "\n".join(_training(run, results, settings))),
        *("## Limits", "\n".join(_limits(run, settings))),
    ]
    return "\n\n".join(sections) + "\n"


def _use(form: str, run: run_directory.Run) -> str:
    """Returns how the files beside the card are loaded: a file of `uses/`, whose words
    in capitals are replaced."""
    task, kind = run.task, registry.find(run.task.kind)
    usage, ids = kind.usage(task), [run.vocabulary.cls_id, run.vocabulary.sep_id]
    if form == "hugging_face":
        # transformers 5 has no pipeline for questions, and no version has one for
        # endings or vectors.
        form = "pipeline" if usage.model is None else "model"
        call = usage.model or usage.text or (_PAIR if task.has_text_pair else _TEXT)
    else:
        call = f"text=tf.constant([{usage.text or _TEXT}])"
        if task.has_text_pair:
            call += ', text_pair=tf.constant(["Another text."])'
        call = usage.strings or call
    # BertForMultipleChoice -> AutoModelForMultipleChoice.
    model = str(kind.names.hugging_face).removeprefix("Bert").removeprefix("Model")
    words = {
        "PIPELINE": str(kind.names.pipeline),
        "MODEL": f"AutoModel{model}",
        # Without it, theirs reads more of a long text than the run did.
        "OPTIONS": "" if usage.text else ", truncation=True",
        "CALL": call,
        # Within the brackets of an array.
        "[IDS]": usage.ids.replace("{ids}", str(ids)),
        "MORE\n": usage.more,
    }
    code = Path(__file__).with_name("uses").joinpath(f"{form}.md").read_text("utf-8")
    for word, value in words.items():
        code = code.replace(word, value)
    return code.rstrip()


def _scores(
    directory: Path, results: Mapping[str, Any], scores: Mapping[str, float]
) -> str:
    """Formats this run's scores, and the mean of runs that differ in the seed alone."""
    columns = {
        "score": map(markdown.literal, scores),
        "this model": [f"{value:.4f}" for value in scores.values()],
    }
    runs = _runs_but_for_seed(directory)
    if len(runs) > 1:
        values = [[run[k] for run in runs if run.get(k) is not None] for k in scores]
        columns[f"mean ± deviation of {len(runs)} seeds"] = [
            markdown.spread(v, digits=4, num_runs=len(runs)) for v in values
        ]
    if baseline := results.get("eval_baseline"):
        columns["commonest answer"] = [
            "–" if (value := baseline.get(k)) is None else f"{value:.4f}"
            for k in scores
        ]
    return (
        markdown.table(list(columns), zip(*columns.values(), strict=True))
        + "\n\nOf data that the model was not trained on. It and its settings may have "
        "been chosen by these scores; they may be lower on other texts."
    )


def _runs_but_for_seed(directory: Path) -> list[Mapping[str, Any]]:
    """Returns the scores of this run and of its neighbours with another seed, as in a
    sweep; [] if the run does not record its inputs."""

    def inputs_of(run: Path) -> dict[str, Any]:
        return files.read_json(run / run_directory.INPUTS_NAME) | {"seed": None}

    if not (directory / run_directory.INPUTS_NAME).is_file():
        return []
    inputs, same = inputs_of(directory), []
    for path in sorted(directory.absolute().parent.iterdir()):
        try:
            is_same = inputs_of(path) == inputs
            results = run_directory.read_results(path) if is_same else None
        except (OSError, InputError):
            continue
        if results and results.get("eval"):
            same.append(results["eval"])
    return same


def _thresholds(results: Mapping[str, Any]) -> Iterator[str]:
    """Yields the rule by which probabilities or scores became the run's answers."""
    decision = run_directory.decision_of(results)
    if by_label := decision.label_thresholds:
        rows = [[markdown.literal(k), f"{v:.9g}"] for k, v in by_label.items()]
        yield (
            "A text has each label whose probability reaches its threshold, chosen on "
            "the same data:"
        )
        yield markdown.table(["label", "threshold"], rows)
    elif "best_f1_thresh" in results.get("eval", {}):
        yield (
            "A question has no answer where the score of `[CLS]` less that of the best "
            f"answer is above {decision.no_answer_odds:.9g}, chosen on the same data."
        )


def _promise(directory: Path, form: str) -> Iterator[str]:
    """Yields when a calibrated run answers, if the files beside the card know it."""
    promise = run_directory.read_calibration(directory)
    if promise is None or form in ("hugging_face", "sentence_transformers"):
        return
    yield f"## When it answers\n\n{promises.sentence(promise)}"
    yield promises.facts(promise)
    yield from promises.label_table(promise)
    if form in ("onnx", "litert") and promise.half_width is None:
        answer = "where the softmax of the best is below `threshold`, there is none."
        if promise.by_label:
            answer = answer.replace("`threshold`", "its label's of `thresholds`")
        if promise.several == "labels":
            answer = "a label holds whose sigmoid reaches its number in `thresholds`."
        elif promise.several is not None:
            answer = (
                "of entities the log odds of the mean of their words' best tags. Where "
                "their sigmoid is below `threshold`, the tags are `O`."
            )
        yield (
            "`decisions.json` has both: divide logits and scores by `temperature`; "
            f"{answer}"
        )


def _data(run: run_directory.Run, results: Mapping[str, Any]) -> Iterator[str]:
    # 1. The labelled files of a fine-tuning.
    text_sources = set()
    report = facts.read_data_report(run.directory)
    limit = report.max_seq_length if report else 0
    for file in report.files if report else ():
        labels = ", ".join(
            f"{markdown.literal(label)} {markdown.percent(facts.share_of(label, file))}"
            for label in list(file.labels)[:_MAX_LABELS]
        )
        long = markdown.percent(file.lengths.num_long / max(file.num_examples, 1))
        yield (
            f"- {_name(file.file)}: {file.num_examples:,} examples; "
            + (f"labels: {labels}; " if labels else "")
            + f"{file.lengths.median} tokens in the median, {long} have more than "
            f"{limit}"
        )
    if report:
        yield from facts.problem_lines(report, quotes=False)
    elif "num_train_examples" in results:
        yield f"- {results['num_train_examples']:,} examples to learn from"
        yield f"- {results['num_eval_examples']:,} examples to score on"
    # 2. The directories of examples of a pre-training, while they exist.
    places = results.get("environment", {}).get("examples") or ()
    for place in [places] if isinstance(places, str) else places:
        counts = {}
        with contextlib.suppress(OSError, InputError):
            examples = manifest.read_manifest(place, kind="examples")
            corpus = examples.config.get("corpus") or {}
            counters = {**corpus.get("counters", {}), **examples.counters}
            by_source = [key for key in counters if key.startswith("words/")]
            text_sources.update(by_source)
            names = ("documents", "words", "examples", *by_source)
            counts = {key: counters[key] for key in names if key in counters}
        listed = ", ".join(f"{number:,} {key}" for key, number in counts.items())
        yield f"- {_name(place)}: {listed or 'counts not stated, its manifest is gone'}"
    yield ""
    licences = "Licences of the texts: not stated in the run's files."
    if "words/wikipedia" in text_sources:
        licences += " Wikipedia's own text is under CC BY-SA 4.0."
    yield licences


def _training(
    run: run_directory.Run, results: Mapping[str, Any], settings: Mapping[str, Any]
) -> Iterator[str]:
    environment = results.get("environment", {})
    if isinstance(init := environment.get("init"), str):
        scratch = settings.get("from_scratch")
        yield f"- start: {'random weights' if scratch else _name(init)}"
    seconds = results.get("seconds", 0.0)
    time = f"{seconds:.0f} seconds" if seconds < 600 else f"{seconds / 3600:.1f} hours"
    yield f"- {results.get('steps', 0):,} steps in {time}"
    yield f"- hardware: {environment.get('devices') or 'not stated'}"
    changed = []
    for key, value in facts.changed_settings(run.task, settings).items():
        if isinstance(value, str):
            # The rest of a path is the maker's own business.
            value = os.path.basename(value.rstrip("/"))
        changed.append(f"`{key}={json.dumps(value)}`")
    yield f"- settings that differ from the defaults: {', '.join(changed) or 'none'}"
    packages = [f"bert-keras {environment.get('version', 'of unknown version')}"]
    names = [name for name in ("tensorflow", "keras") if name in environment]
    packages += [f"{name} {environment[name]}" for name in names]
    yield f"- made by {', '.join(packages)}"


def _limits(run: run_directory.Run, settings: Mapping[str, Any]) -> Iterator[str]:
    kind = registry.find(run.task.kind)
    yield f"- Text is {'lower-cased' if run.do_lower_case else 'read with its case'}."
    if length := settings.get("max_seq_length"):
        how = f"`{settings.get('long_texts', 'cut')}`"
        if isinstance(kind, Labelled) and kind.always_windows:
            how = "overlapping windows"
        yield f"- It was tuned on at most {length:,} tokens a text; longer: {how}."
    yield f"- It has {run.bert_config.max_position_embeddings:,} positions."
    if run.task.labels:
        names = facts.listed_labels(run.task.labels, _MAX_LABELS, "{} and {} more")
        yield f"- It knows {names}, nothing else."
    yield "- Languages, bias and harmful content of the texts: not stated."


def _name(place: str) -> str:
    return markdown.literal(os.path.basename(place.rstrip("/")))
