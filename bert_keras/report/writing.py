"""The page of a report, and its directory, which appears when complete."""

import json
import logging
import math
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import figure

from bert_keras.checkpoints import run_directory
from bert_keras.core import files, progress
from bert_keras.core.errors import InputError, not_writable
from bert_keras.core.settings import pretraining
from bert_keras.kinds import registry
from bert_keras.labelled import data_report
from bert_keras.pages import drawing, html, markdown, sections
from bert_keras.report import (
    curves,
    diagnosis,
    facts,
    promises,
    scalar_log,
    task_summaries,
)

logger = logging.getLogger(__name__)

PAGE_NAME, HTML_NAME = "report.md", "report.html"

NUM_SENTENCES = 3
"""Sentences to show with guesses for their masked words; TensorBoard shows all."""

MAX_LABELS = 30
"""Labels to list with a run's settings."""

MAX_DRAWN_LABELS = 20
"""Labels in the picture, the commonest in the training file."""

MARK = "<!-- Made by `bert-keras report`; writing it again replaces all of it. -->"
"""The first line of each page."""

_COLOURS = (drawing.BLUE, drawing.VERMILION, drawing.GREEN, drawing.GREY)

# Parts of results.json with their own place on the page.
_SHOWN_RESULTS = {"steps", "seconds", "num_parameters", "skipped_steps", "train"}
_SHOWN_RESULTS |= {"eval", "eval_baseline"}

_SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads")
_SIZES += ("intermediate_size", "vocab_size", "max_position_embeddings")


def write_report(run_dir: str | Path, output_dir: str | Path | None = None) -> Path:
    """Writes `report.md`, pictures, and `report.html` with both: the curves of a run,
    finished or not, and the answers of a finished fine-tuning. Returns the directory:
    `output_dir`, or `report` in the run directory. Only an earlier report is replaced.
    """
    run_dir = files.path(run_dir)
    run = facts.read_facts(run_dir)
    output = files.path(output_dir or run_dir / run_directory.REPORT_NAME).resolve()
    # Only an earlier report is replaced.
    if not files.is_new(output):
        page = output / PAGE_NAME
        if not page.is_file() or not files.read_bytes(page).startswith(MARK.encode()):
            raise InputError(
                f"{output}: expected a new directory or an earlier report, found "
                "something else; choose another place with --output"
            )
        others = {path.name for path in output.iterdir() if path.suffix != ".png"}
        if foreign := sorted(others - {PAGE_NAME, HTML_NAME}):
            raise InputError(
                f"{output}: holds {foreign[0]!r} besides an earlier report, which "
                "would be lost; move it away, or choose another place with --output"
            )
    answers, parts, score = run_dir / run_directory.ANSWERS_NAME, None, ""
    try:
        with files.new_directory(output, replaces_earlier=True) as temporary:
            pictures = curves.draw_curves(run, temporary)
            # Answers without results are from an interrupted attempt.
            if run.results is not None and answers.is_file():
                kind = registry.labelled(run.task.kind)
                parts = task_summaries.read_sections(kind, run_dir)
                score = task_summaries.score_sentence(kind, run_dir, run.results)
            report = facts.read_data_report(run_dir)
            data = None if report is None else describe_data(report)
            if promise := run_directory.read_calibration(run_dir):
                promise = promises.section(promise)
            for part in filter(None, (data, promise, *(parts or ()))):
                if part.picture is not None:
                    (temporary / f"{part.name}.png").write_bytes(part.picture)
            content = {"parts": parts, "data": data, "score": score, "promise": promise}
            text = render(run, pictures, **content)
            (temporary / PAGE_NAME).write_text(text, encoding="utf-8")
            page = render(run, pictures, **content, is_long=True)
            page = html.from_markdown(page, temporary)
            (temporary / HTML_NAME).write_bytes(page)
    except OSError as error:
        raise not_writable(output, error) from None
    logger.info("report in %s", output / HTML_NAME)
    return output


def render(
    run: facts.Facts,
    pictures: Sequence[tuple[str, str]],
    parts: Sequence[sections.Section] | None = None,
    *,
    data: sections.Section | None = None,
    score: str = "",
    promise: sections.Section | None = None,
    is_long: bool = False,
) -> str:
    """Renders the whole page: how good the run is, its answers, then how it was made.

    Args:
        pictures: title and file name of each curve, next to the page.
        parts: the answers of a fine-tuned run; `None`: its file of answers is missing.
        data: the labelled files, if known.
        score: a sentence on how good the answers are, if known.
        promise: when a calibrated run answers.
        is_long: whether tables have as many rows as a page with filters takes.
    """
    # 1. How far the run got, and how good it is.
    verb = "Pre-training" if run.is_pretraining else "Distillation of an encoder"
    if run.is_tuned:
        name = "" if run.task.name is None else f"{run.task.name}, "
        verb = f"Fine-tuning for {name}{run.task.kind}"
    total = run.settings.get("num_train_steps")
    state = "not finished: step" if run.results is None else "finished at step"
    state = f"{verb}, {state} {run.last_step:,}"
    state += f" of {total:,}" if isinstance(total, int) else ""
    state += " so far." if run.results is None else "."
    name = "masked_lm_accuracy"
    if (accuracy := ((run.results or {}).get("eval") or {}).get(name)) is not None:
        guess = run.baseline.get(name)
        guess = f"; the baseline has {guess:.3f}" if isinstance(guess, float) else ""
        score = f"**{name} {accuracy:.3f}** on text that was held out{guess}."
    blocks = [f"{MARK}\n# {run.name}", state, score, *_evaluation(run)]
    blocks += _part("##", promise) if promise else ()
    # 2. What may be wrong with a pre-training.
    if run.is_pretraining:
        blocks += _problems(run)
    # 3. What the model answers: its mistakes first.
    if run.is_tuned and run.results is not None:
        missing = f"`{run_directory.ANSWERS_NAME}` is not in the run directory."
        blocks.append("## Answers to the development file")
        blocks += [missing] if parts is None else []
        for part in sorted(parts or (), key=lambda p: p.name != sections.MISTAKES):
            text = part.long_text if is_long and part.long_text else part.text
            blocks += _part("###", part._replace(text=text))
    # The groups of the last evaluation may be dozens.
    if groups := facts.group_curves(run.eval):
        best_first = sorted(groups, key=lambda group: -groups[group].values[-1])
        rows = ([group, *_value_and_step(groups[group], -1)] for group in best_first)
        blocks += ["## Minimal pairs by group"]
        blocks += [markdown.table(("group", "share told right", "at step"), rows)]
    texts = run.panels.texts
    tags = sorted(tag for tag in texts if tag.startswith("masked"))
    if tags:
        blocks.append(f"## Guesses for masked words at step {texts[tags[0]][0]:,}")
    for tag in tags[:NUM_SENTENCES]:
        name = tag.rpartition("/")[2].replace("_", " ")
        blocks.append(f"### {name}\n\n{texts[tag][1]}")
    # 4. Curves, in one paragraph: a page in HTML shows them side by side.
    blocks += ["## Curves", "\n".join(f"![{t}]({name})" for t, name in pictures)]
    # 5. How to repeat it.
    blocks += [*(_part("##", data) if data else ()), "## Model, data and settings"]
    blocks += [markdown.table(("", "the run"), _figures(run))]
    blocks += [markdown.table(("", "model and data"), _model_and_data(run))]
    blocks += [_command(run)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _problems(run: facts.Facts) -> Iterator[str]:
    is_further_training = "init_sha256" in run.inputs
    held_out = facts.find_curve(run.eval, "masked_lm_loss")
    findings = diagnosis.start_findings(
        run.settings, run.text_sample, is_further_training=is_further_training
    )
    findings |= diagnosis.curve_findings(
        run.settings,
        {name: facts.find_curve(run.train, name) for name in diagnosis.CURVES},
        None if held_out is None else facts.of_last_phase(run, held_out),
        run.text_sample,
        first_step=max(run.phase_ends, default=0),
    )
    lines = "\n".join(f"- **{cause}**: {text}." for cause, text in findings.items())
    yield "## What may be wrong"
    yield lines or "Nothing unusual in text, settings and curves."
    # A model that was trained before has lower losses.
    if not run.phase_ends and not is_further_training:
        step = run.last_step
        if band := diagnosis.usual_losses(run.settings, run.text_sample, step):
            ends = " to ".join(f"{end:.1f}" for end in band)
            yield f"At step {step:,} masked-LM losses of {ends} are usual."


def _evaluation(run: facts.Facts) -> Iterator[str]:
    """Yields the last and the best value of each metric, and the baseline's."""
    # 1. Curves by metric, of the last phase evaluated; those of groups are left out.
    curves = {
        facts.name_of(tag): facts.of_last_phase(run, run.eval.scalars[tag])
        for tag in sorted(run.eval.scalars, key=facts.name_of)
        if not tag.startswith(pretraining.GROUPS)
    }
    for name, value in (run.results or {}).get("eval", {}).items():
        # A run that was resumed after its last step has no line of it.
        if name not in curves and not name.startswith(pretraining.GROUPS):
            # In JSON a number that is not finite is null.
            step, value = np.array([run.last_step]), np.array([value], float)
            curves[name] = scalar_log.Curve(step, value)
    # 2. The perplexity, which is derived.
    baseline = dict(run.baseline)
    with np.errstate(over="ignore"):
        if "masked_lm_loss" in curves:
            loss = curves["masked_lm_loss"]
            curves["masked_lm_perplexity"] = loss._replace(values=np.exp(loss.values))
        if "masked_lm_loss" in baseline:
            perplexity = float(np.exp(baseline["masked_lm_loss"]))
            baseline["masked_lm_perplexity"] = perplexity
    # 3. A row for each metric; one that is no score has no best value.
    rows = []
    for name, curve in curves.items():
        better = registry.find(run.task.kind).metric(name).better
        finite = np.flatnonzero(np.isfinite(curve.values))
        choose = np.argmin if better == "less" else np.argmax
        has_best = better is not None and len(finite) > 0
        best = int(finite[choose(curve.values[finite])]) if has_best else None
        guess = baseline.get(name)
        guess = _number(guess) if isinstance(guess, int | float) else ""
        ends = *_value_and_step(curve, -1), *_value_and_step(curve, best)
        rows.append([name, *ends, guess])
    if not rows:
        yield "No evaluation so far."
        return
    header = ["evaluation", "last", "at step", "best", "at step", "baseline"]
    if not any(row[-1] for row in rows):
        header, rows = header[:-1], [row[:-1] for row in rows]
    yield markdown.table(header, rows)
    if run.phase_ends:
        yield "Best: among evaluations of the same phase as the last one."
    if (token := run.baseline.get("commonest_token")) is not None:
        yield f"Baseline: the commonest masked token, `{token}`, always guessed."


def _value_and_step(curve: scalar_log.Curve, index: int | None) -> tuple[str, str]:
    if index is None:
        return "", ""
    return _number(curve.values[index]), f"{curve.steps[index]:,}"


def _figures(run: facts.Facts) -> Iterator[tuple[str, str]]:
    # Summed over processes; results.json has only the time of the last one.
    yield "training time, loading left out", progress.duration(run.train.seconds)
    if (tokens := run.num_tokens) is not None:
        yield "tokens seen, padding included", f"{tokens:,}"
    for name in ("sequences_per_second", "tokens_per_second", "real_tokens_per_second"):
        if (curve := facts.find_curve(run.train, name)) is not None:
            yield f"{name.replace('_', ' ')}, median", f"{np.median(curve.values):,.1f}"
    steps = ", ".join(f"{step:,}" for step in run.train.restarts)
    listed = f"{len(run.train.restarts)}, first logged step after it: {steps}"
    yield "restarts", listed if steps else "none"
    skipped = (run.results or {}).get("skipped_steps")
    if skipped is None and (curve := facts.find_curve(run.train, "skipped_steps")):
        skipped = int(curve.values[-1])
    if skipped is not None:
        yield "skipped steps", f"{skipped:,}"
    for name, value in (run.results or {}).items():
        if name not in _SHOWN_RESULTS and isinstance(value, int | float | str):
            yield name, _plain(value)


def _model_and_data(run: facts.Facts) -> Iterator[tuple[str, str]]:
    if run.results is not None and "num_parameters" in run.results:
        yield "parameters", f"{run.results['num_parameters']:,}"
    for name in _SIZES:
        if name in run.bert_config:
            yield name, _plain(run.bert_config[name])
    if labels := run.task.labels:
        yield "labels", facts.listed_labels(labels, MAX_LABELS, "{}, and {:,} more")
    if "precision" in run.settings:
        yield "precision", _plain(run.settings["precision"])
    for name, value in ((run.results or {}).get("environment") or {}).items():
        yield name, markdown.literal(value if isinstance(value, str) else _plain(value))
    for name, value in run.inputs.items():
        yield name, _plain(value)


def _command(run: facts.Facts) -> str:
    """Returns the run's command, with the settings that differ from the defaults."""
    verb, data = "pretrain", "--examples EXAMPLES"
    changed = facts.changed_settings(run.task, run.settings)
    if not run.is_pretraining:
        changed.pop("task", None)
        task = shlex.quote(run.settings.get("task", "text"))
        verb, data = "finetune", f"--task {task} --train TRAIN --dev DEV --init INIT"
    elif run.num_phases > 1:
        data += "".join(f" EXAMPLES_{n + 1}" for n in range(1, run.num_phases))
    lines = [f"bert-keras {verb} {data} --output_dir {shlex.quote(run.name)}"]
    for key, value in changed.items():
        # As `--set` reads it: JSON, but a plain word without quotes; of a phase without
        # the settings that it leaves to the run.
        if key == "phases":
            value = [{k: v for k, v in p.items() if v is not None} for p in value]
        text = value if isinstance(value, str) else json.dumps(value)
        lines.append(f"    --set {shlex.quote(f'{key}={text}')}")
    command = " \\\n".join(lines)
    return f"Settings that differ from the defaults:\n\n```\n{command}\n```"


def _part(level: str, part: sections.Section) -> Iterator[str]:
    yield f"{level} {part.title}"
    if part.picture is not None:
        yield f"![{part.title}]({part.name}.png)"
    yield part.text


def describe_data(report: data_report.DataReport) -> sections.Section:
    problems = "\n".join(facts.problem_lines(report)) or "No problem was found."
    names = list(report.files[0].labels)[:MAX_DRAWN_LABELS]
    columns = []
    for file in report.files:
        lengths, count = file.lengths, file.num_examples
        cells = {
            "examples": f"{count:,}",
            "tokens: median": f"{lengths.median:,}",
            "tokens: 95 % have at most": f"{lengths.percentile_95:,}",
            "tokens: longest": f"{lengths.longest:,}",
            "longer than `max_seq_length`": _cell(lengths.num_long, count),
            "repeat an earlier text": _cell(file.num_repeated, count),
            "same text, another answer": _cell(file.num_contradicted, count),
            "lack a text": _cell(file.num_empty, count),
            "text is in the training file": _cell(file.num_in_training, count),
        }
        total = sum(file.labels.values()) + file.num_other_labels
        labels = {n: _cell(file.labels.get(n, 0), total) for n in names}
        cells |= {f"label {markdown.literal(n)}": cell for n, cell in labels.items()}
        columns.append(cells)
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    header = ["", *(markdown.literal(file.file) for file in report.files)]
    text = f"{problems}\n\n{markdown.table(header, rows)}"
    image = drawing.as_png(draw_data, report)
    return sections.Section("Data", "data", text, image)


def _cell(count: int | None, total: int) -> str:
    if not count:
        return "" if count is None else "0"
    return f"{count:,} ({markdown.percent(count / total)})"


def draw_data(report: data_report.DataReport) -> figure.Figure:
    """Draws shares of labels beside shares of lengths, a colour for each file."""
    names = list(report.files[0].labels)[:MAX_DRAWN_LABELS]
    shown = report.files[: len(_COLOURS)]
    height = max(4.0, 1.6 + 0.3 * len(names))
    picture, plot = drawing.new_plot("Lengths", height=height)
    # 1. Bars for the labels.
    if names:
        picture = figure.Figure(figsize=(11, height), layout="constrained")
        left, plot = picture.subplots(1, 2)
        thickness = 0.8 / len(shown)
        for number, file in enumerate(shown):
            left.barh(
                np.arange(len(names)) + (number - (len(shown) - 1) / 2) * thickness,
                [100 * facts.share_of(name, file) for name in names],
                height=thickness,
                color=_COLOURS[number],
            )
        left.set_yticks(range(len(names)), drawing.short_names(names))
        left.set_ylim(len(names) - 0.5, -0.5)
        num_labels = len(report.files[0].labels) + report.files[0].num_unlisted
        title = f"Labels, the commonest {len(names)} of {num_labels}"
        title = title if num_labels > len(names) else "Labels"
        left.set(title=title, xlabel="% of a file's labels")
    # 2. The distribution of the lengths.
    for file, colour in zip(shown, _COLOURS, strict=False):
        counts = file.lengths.counts
        plot.plot(
            np.arange(len(counts) + 1) * file.lengths.bin_width,
            100 * np.cumsum([0, *counts]) / file.num_examples,
            color=colour,
            linewidth=2,
            label=drawing.drawable([file.file])[0],
        )
    plot.axvline(report.max_seq_length, color="black", linestyle="--", linewidth=1.2)
    plot.annotate(
        f"max_seq_length {report.max_seq_length}",
        (report.max_seq_length, 2),
        xytext=(4, 0),
        textcoords="offset points",
        rotation=90,
        fontsize=10,
    )
    plot.set(title="Lengths", xlabel="tokens, uncut", ylabel="% of the examples, up to")
    plot.set(ylim=(0, 102), xlim=(0, None))
    drawing.add_legend(picture, num_columns=len(_COLOURS))
    return picture


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_plain(item) for item in value)
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return _number(value)
    if len(value) == 64 and set(value) <= set("0123456789abcdef"):
        return f"`{value[:12]}…`"
    return value if isinstance(value, str) else markdown.literal(json.dumps(value))


def _number(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    if value and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.3g}"
    return f"{value:,.4f}" if abs(value) < 1000 else f"{value:,.1f}"
