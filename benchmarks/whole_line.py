"""The whole line on real input: dumps, books and SST-2, with times and peak memory.

    python -m benchmarks.whole_line --data ../shared/data --work DIR [--steps 400]

Runs the commands that a user would type, one after the other, and prints a table.
"""

import argparse
import csv
import glob
import shlex
from collections.abc import Iterator
from pathlib import Path

from benchmarks import measuring


def commands(data: Path, work: Path, steps: int) -> list[str]:
    sst2, mini, tuned = data / "glue/SST-2", work / "runs/mini", work / "runs/sst2"
    return [
        "corpus --allow_cut_dumps "
        f"--wikipedia {data}/wikipedia/*.bz2 {data}/wikipedia/*.xml "
        f"--books {data}/books/gutenberg/*.txt --output {work}/corpus",
        f"vocab --corpus {work}/corpus --vocab_size 30522 --output {work}/vocab.txt",
        f"examples --corpus {work}/corpus --vocab {work}/vocab.txt "
        f"--max_seq_length 128 --set dupe_factor=2 --output {work}/examples_128",
        f"inspect {work}/examples_128 --limit 2",
        f"pretrain --config bert_mini --examples {work}/examples_128 "
        f"--output_dir {mini} --set num_train_steps={steps} "
        "--set optimizer.warmup_steps=100 --set optimizer.learning_rate=5e-4 "
        "--set global_batch_size=64 --set save_checkpoint_steps=200",
        f"fill-mask --model {mini} 'the capital of france is [MASK].' "
        "'he opened the [MASK] and went out.'",
        f"finetune --task text --train {sst2}/train.tsv --dev {sst2}/dev.tsv "
        f"--set columns.text=sentence --set num_train_epochs=1 "
        f"--set learning_rate=1e-4 --init {mini} --output_dir {tuned}",
        f"evaluate --model {tuned} --input {sst2}/dev.tsv",
        f"predict --model {tuned} --input {work}/sentences.tsv "
        f"--output {work}/predictions.tsv",
        f"export --model {tuned} --output {work}/exported/1",
    ]


def rows(args: argparse.Namespace) -> Iterator[list[str]]:
    with open(args.data / "glue/SST-2/dev.tsv", encoding="utf-8", newline="") as file:
        labelled = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        sentences = ["sentence", *(row["sentence"] for row in labelled)]
    text = "".join(f"{sentence}\n" for sentence in sentences)
    (args.work / "sentences.tsv").write_text(text, encoding="utf-8")
    for command in commands(args.data, args.work, args.steps):
        words = [
            path
            for word in shlex.split(command)
            for path in (sorted(glob.glob(word)) if "*" in word else [word])
        ]
        cost = measuring.bert_keras(*words)
        times = f"{cost.seconds:.1f}", f"{cost.cpu_seconds:.1f}"
        yield [words[0], *times, f"{cost.peak_megabytes:.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="real data sets")
    parser.add_argument("--work", type=Path, required=True, help="a new directory")
    parser.add_argument("--steps", type=int, default=400, help="of pre-training")
    args = parser.parse_args()
    args.work.mkdir(parents=True)
    packages = ("tensorflow", "keras", "tensorflow-text", "apache-beam", "numpy")
    print(measuring.machine(*packages))
    measuring.print_table(["command", "wall s", "CPU s", "peak MB"], rows(args))


if __name__ == "__main__":
    main()
