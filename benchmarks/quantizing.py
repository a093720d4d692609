"""Cost and gain of smaller weights: a table of verdicts of `export`.

    python -m benchmarks.quantizing --work DIR --run SST-2 runs/sst2 SST-2/dev.tsv

Each finished run is exported to ONNX and LiteRT with `--quantize int8`, to a SavedModel
with `--quantize bfloat16`, whatever it loses, and compared with float32 on the whole
file. DIR keeps the exports: given again, the script makes only missing ones.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from benchmarks import measuring
from bert_keras import export

FORMATS = {"onnx": "int8", "litert": "int8", "saved_model": "bfloat16"}


def rows(args: argparse.Namespace) -> Iterator[list[str]]:
    for task, run, dev in args.run:
        for to, kind in FORMATS.items():
            output = args.work / f"{task}-{to}"
            if not output.exists():
                options = {"quantize": kind, "dev": dev, "max_drop": 100.0}
                export.export_model(Path(run), output, to=to, **options)
            verdict = json.loads((output / "quantization.json").read_text())
            pairs = [
                verdict["score"],
                verdict["bytes"],
                *verdict["latency_ms"].values(),
            ]
            score, size, *times = [(p["float32"], p["quantised"]) for p in pairs]
            changed = verdict["changed_answers"]["quantised"]
            yield [
                *(task, f"{to}, {kind}"),
                f"{verdict['metric']} {score[0]:.2f} -> {score[1]:.2f}",
                f"{changed:,} of {verdict['examples']:,}",
                f"{100 * size[1] / size[0]:.1f} %",
                *(f"{a:.1f} -> {b:.1f} ({a / b:.2f})" for a, b in times),
            ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument(
        "--run", nargs=3, action="append", metavar=("TASK", "RUN", "DEV"), required=True
    )
    packages = ("tensorflow", "onnxruntime", "ai-edge-litert", "ai-edge-quantizer")
    print(measuring.machine(*packages))
    header = ["task", "format", "score", "answers changed", "bytes"]
    header += ["ms, one text (times as fast)", "ms, 32 texts (times as fast)"]
    measuring.print_table(header, rows(parser.parse_args()))


if __name__ == "__main__":
    main()
