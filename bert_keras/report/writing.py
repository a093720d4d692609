"""The directory of a report, which appears only when it is complete."""

import logging
from pathlib import Path

from bert_keras.checkpoints import run_directory
from bert_keras.core import files
from bert_keras.core.errors import InputError, not_writable
from bert_keras.kinds import registry
from bert_keras.report import (
    curves,
    data_section,
    diagnosis,
    facts,
    page,
    task_summaries,
)

logger = logging.getLogger(__name__)

PAGE_NAME = "report.md"


def write_report(run_dir: str | Path, output_dir: str | Path | None = None) -> Path:
    """Writes `report.md` and pictures: the curves of a run, finished or not, and the
    answers of a finished fine-tuning. Returns the report's directory: `output_dir`, or
    `report` in the run directory. Only an earlier report there is replaced."""
    run_dir = files.path(run_dir)
    run = facts.read_facts(run_dir)
    output = files.path(output_dir or run_dir / run_directory.REPORT_NAME).resolve()
    _check_replaceable(output)
    try:
        with files.new_directory(output, replaces_earlier=True) as temporary:
            _write_files(run_dir, run, temporary)
    except OSError as error:
        raise not_writable(output, error) from None
    logger.info("report in %s", output / PAGE_NAME)
    return output


def _write_files(run_dir: Path, run: facts.Facts, output: Path) -> None:
    pictures = curves.draw_curves(run, output)
    parts = None
    # Answers without results are from an interrupted attempt.
    if run.results is not None and (run_dir / run_directory.ANSWERS_NAME).is_file():
        parts = task_summaries.read_sections(registry.labelled(run.task.kind), run_dir)
    report = facts.read_data_report(run_dir)
    data = None if report is None else data_section.describe(report)
    for part in filter(None, (data, *(parts or ()))):
        if part.picture is not None:
            (output / f"{part.name}.png").write_bytes(part.picture)
    problems, usual = None, None
    if run.is_pretraining:
        sample = diagnosis.read_sample(run_dir)
        is_further_training = "init_sha256" in run.inputs
        held_out = facts.find_curve(run.eval, "masked_lm_loss")
        problems = [
            *diagnosis.start_findings(
                run.settings, sample, is_further_training=is_further_training
            ),
            *diagnosis.curve_findings(
                run.settings,
                {name: facts.find_curve(run.train, name) for name in diagnosis.CURVES},
                None if held_out is None else facts.of_last_phase(run, held_out),
                sample,
                first_step=max(run.phase_ends, default=0),
            ),
        ]
        # A model that was trained before has lower losses.
        if not run.phase_ends and not is_further_training:
            usual = diagnosis.usual_losses(run.settings, sample, run.last_step)
    text = page.render(
        run, pictures, parts, data=data, problems=problems, usual_losses=usual
    )
    (output / PAGE_NAME).write_text(text, encoding="utf-8")


def _check_replaceable(output: Path) -> None:
    if files.is_new(output):
        return
    report, mark = output / PAGE_NAME, b""
    if report.is_file():
        with files.open_to_read(report) as file:
            mark = file.readline().strip()
    if mark != page.MARK.encode():
        raise InputError(
            f"{output}: expected a new directory or an earlier report, found something "
            "else; choose another place with --output"
        )
    foreign = [
        path.name
        for path in sorted(output.iterdir())
        if path != report and path.suffix != ".png"
    ]
    if foreign:
        raise InputError(
            f"{output}: holds {foreign[0]!r} besides an earlier report, which would be "
            "lost; move it away, or choose another place with --output"
        )
