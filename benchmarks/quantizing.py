"""What smaller weights cost and give: a page and a drawing of verdicts of `export`.

    python benchmarks/quantizing.py --work DIR --results results/quantizing.md \\
        --run SST-2 runs/sst2 SST-2/dev.tsv --run CoNLL-2003 runs/ner eng.testa

Each finished run is exported to ONNX and LiteRT with `--quantize int8`, to a SavedModel
with `--quantize bfloat16`, whatever it loses, and compared with float32 on the whole
file. DIR keeps the exports: given again, it makes only what is missing.
"""

import argparse
import datetime
import json
import os
import platform
from importlib import metadata
from pathlib import Path

from matplotlib import figure

from bert_keras import export
from bert_keras.report import drawing, markdown

FORMATS = {"onnx": "int8", "litert": "int8", "saved_model": "bfloat16"}
_COLOURS = {
    "onnx": drawing.BLUE,
    "litert": drawing.VERMILION,
    "saved_model": drawing.GREEN,
}
_NAMES = {
    "onnx": "ONNX, int8",
    "litert": "LiteRT, int8",
    "saved_model": "SavedModel, bfloat16",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument(
        "--run", nargs=3, action="append", metavar=("TASK", "RUN", "DEV"), required=True
    )
    arguments = parser.parse_args()
    verdicts = {
        (task, to): measured(Path(run), dev, arguments.work / f"{task}-{to}", to)
        for task, run, dev in arguments.run
        for to in FORMATS
    }
    picture = arguments.results.with_suffix(".png")
    picture.write_bytes(drawing.as_png(lambda: draw(verdicts)))
    arguments.results.write_text(page(verdicts, picture.name), encoding="utf-8")


def measured(run: Path, dev: str, output: Path, to: str) -> dict:
    """The verdict on an export, which is made unless it is there."""
    if not output.exists():
        export.export_model(
            run, output, to=to, quantize=FORMATS[to], dev=dev, max_drop=100.0
        )
    return json.loads((output / "quantization.json").read_text())


def page(verdicts: dict[tuple[str, str], dict], picture: str) -> str:
    header = [
        *("task", "format", "score", "answers changed", "megabytes", "bytes"),
        *("ms, one text", "times", "ms, 32 texts", "times"),
    ]
    rows = [
        [task, _NAMES[to], *_cells(verdict)] for (task, to), verdict in verdicts.items()
    ]
    packages = ("tensorflow", "onnxruntime", "ai-edge-litert", "ai-edge-quantizer")
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in packages)
    cores = len(os.sched_getaffinity(0))
    return "\n".join(
        [
            "# Exports with smaller weights",
            "",
            f"{datetime.date.today().isoformat()}: {_processor()}, {cores} core(s) of "
            f"{os.cpu_count()}, {versions}. Made by `benchmarks/quantizing.py`.",
            "",
            "`export --quantize` of a tuned run of each task, float32 -> smaller, on",
            "whole dev files. Latencies are medians of wall time of inputs from all",
            "over a file, both in turns; `times`: how much faster the smaller one is.",
            "",
            markdown.table(header, rows),
            "",
            "![Bytes in percent of float32, and how many times as fast: bars for each "
            f"task and format]({picture})",
            "",
        ]
    )


def _cells(verdict: dict) -> list[str]:
    score, sizes = verdict["score"], verdict["bytes"]
    cells = [
        f"{verdict['metric']} {score['float32']:.2f} -> {score['quantised']:.2f}",
        f"{verdict['changed_answers']['quantised']:,} of {verdict['examples']:,}",
        f"{sizes['float32'] / 1e6:.1f} -> {sizes['quantised'] / 1e6:.1f}",
        f"{100 * sizes['quantised'] / sizes['float32']:.1f} %",
    ]
    for times in verdict["latency_ms"].values():
        cells.append(f"{times['float32']:.1f} -> {times['quantised']:.1f}")
        cells.append(f"{times['float32'] / times['quantised']:.2f}")
    return cells


def draw(verdicts: dict[tuple[str, str], dict]) -> figure.Figure:
    """Bars for each task and format: bytes, speed; the change of score."""
    image = figure.Figure(figsize=(11, 5.4), layout="constrained")
    plots = image.subplots(1, 3, sharey=True)
    places = range(len(verdicts))
    colours = [_COLOURS[to] for _, to in verdicts]
    bars = {
        "bytes, % of float32": [
            100 * v["bytes"]["quantised"] / v["bytes"]["float32"]
            for v in verdicts.values()
        ],
        **{
            f"times as fast, {title}": [
                v["latency_ms"][size]["float32"] / v["latency_ms"][size]["quantised"]
                for v in verdicts.values()
            ]
            for size, title in (("1", "one text"), ("32", "32 texts"))
        },
    }
    for plot, (title, values) in zip(plots, bars.items(), strict=True):
        drawn = plot.barh(places, values, color=colours)
        form = "{:.0f}" if title.startswith("bytes") else "{:.2f}"
        plot.bar_label(drawn, [form.format(value) for value in values], padding=3)
        plot.set(title=title, xlim=(0, 1.18 * max(values)))
        plot.grid(visible=False, axis="y")
    names = []
    for (task, _), verdict in verdicts.items():
        change = verdict["score"]["quantised"] - verdict["score"]["float32"]
        names.append(f"{task}, {verdict['metric']} {change:+.2f}")
    plots[0].set_yticks(places, names)
    plots[0].invert_yaxis()
    for to, colour in _COLOURS.items():
        plots[0].barh([0], [0], color=colour, label=_NAMES[to])
    drawing.add_legend(image, num_columns=3)
    return image


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(": ")[2]
    return platform.machine()


if __name__ == "__main__":
    main()
