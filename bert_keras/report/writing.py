"""The directory of a report, which appears only when it is complete."""

import logging
from pathlib import Path

from bert_keras.checkpoints import run_directory
from bert_keras.core import files
from bert_keras.core.errors import InputError, not_writable
from bert_keras.kinds import registry
from bert_keras.report import curves, data_section, facts, page, task_summaries

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
    answers, parts = run_dir / run_directory.ANSWERS_NAME, None
    try:
        with files.new_directory(output, replaces_earlier=True) as temporary:
            pictures = curves.draw_curves(run, temporary)
            # Answers without results are from an interrupted attempt.
            if run.results is not None and answers.is_file():
                kind = registry.labelled(run.task.kind)
                parts = task_summaries.read_sections(kind, run_dir)
            report = facts.read_data_report(run_dir)
            data = None if report is None else data_section.describe(report)
            for part in filter(None, (data, *(parts or ()))):
                if part.picture is not None:
                    (temporary / f"{part.name}.png").write_bytes(part.picture)
            text = page.render(run, pictures, parts, data=data)
            (temporary / PAGE_NAME).write_text(text, encoding="utf-8")
    except OSError as error:
        raise not_writable(output, error) from None
    logger.info("report in %s", output / PAGE_NAME)
    return output


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
