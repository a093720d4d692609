"""Commands that start jobs elsewhere: compared word by word, none of them is run."""

import re
import shlex

import pytest

from bert_keras.commands import main as cli
from bert_keras.pipelines import dataflow

pytest.importorskip("google.cloud.dataflow")

SETTINGS = dict.fromkeys(dataflow.SETTINGS) | {
    **{"project": "my-project-1", "region": "europe-west4"},
    **{"temp_location": "gs://bucket/tmp", "max_num_workers": 16},
    "number_of_worker_harness_threads": 2,
}
CORPUS = ["corpus", "--jsonl", "gs://bucket/a b.jsonl", "--output", "gs://bucket/c"]
EXAMPLES = shlex.split(
    "examples --corpus gs://bucket/c --vocab gs://bucket/vocab.txt "
    "--set 'masked_lm_prob=0.15' --output gs://bucket/e"
)


def test_a_job_with_our_wheel(tmp_path):
    wheel = tmp_path / "our.whl"
    wheel.touch()
    command = dataflow.make_command(CORPUS, SETTINGS, wheel=str(wheel))
    assert shlex.join(command) == (
        "bert-keras corpus --jsonl 'gs://bucket/a b.jsonl' --output gs://bucket/c "
        "-- --runner DataflowRunner --project my-project-1 --region europe-west4 "
        "--temp_location gs://bucket/tmp --job_name bert-keras-corpus-d1ae52fa "
        "--machine_type n2-standard-4 --max_num_workers 16 "
        "--number_of_worker_harness_threads 2 --no_save_main_session "
        f"--extra_package {wheel}"
    )


def test_a_job_with_an_image():
    command = dataflow.make_command(
        [*EXAMPLES, "--", "--machine_type", "n2-highmem-8", "--subnetwork=s"],
        SETTINGS | {"sdk_container_image": "eu.gcr.io/p/image:1", "max_num_workers": 3},
        wheel=None,
    )
    after = command[command.index("--") + 1 :]
    assert after[after.index("--max_num_workers") + 1] == "3"
    # What the user gives for Beam stands last, and so wins.
    assert shlex.join(after[-7:]) == (
        "--sdk_container_image eu.gcr.io/p/image:1 --sdk_location container "
        "--machine_type n2-highmem-8 --subnetwork=s"
    )
    assert "--extra_package" not in after


def test_the_name_of_a_job_is_that_of_its_output():
    name = dataflow.job_name("corpus", ["--output", "gs://bucket/c"])
    assert re.fullmatch(r"bert-keras-corpus-[0-9a-f]{8}", name)
    assert dataflow.job_name("corpus", ["--output=gs://bucket/c/", "--jsonl=x"]) == name
    assert dataflow.job_name("corpus", ["--output", "gs://bucket/d"]) != name
    assert dataflow.job_name("vocab", ["--output", "gs://bucket/c"]) != name


# The verb.


LAUNCH = shlex.split(
    "launch dataflow --project my-project-1 --region europe-west4 "
    "--temp_location gs://bucket/tmp --dry_run --"
)


def test_a_dry_run_prints_a_command_that_can_be_repeated(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main([*LAUNCH, *CORPUS]) == 0
    (wheel,) = (tmp_path / "dist").iterdir()
    printed = shlex.split(capsys.readouterr().out)
    assert printed == dataflow.make_command(CORPUS, SETTINGS, wheel=str(wheel))
    parsed = cli.build_parser().parse_command(printed[1:])
    assert (parsed.verb, parsed.output) == ("corpus", "gs://bucket/c")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (LAUNCH, "give the command to run after `--`"),
        ([*LAUNCH, "corpsu"], "one of corpus, vocab, examples, got 'corpsu'; did you"),
        ([*LAUNCH, "pretrain", "--output", "x"], "corpus, vocab, examples, got 'pretr"),
        ([*LAUNCH, *CORPUS[:3]], "corpus: --output gs://BUCKET/... is needed"),
        ([*LAUNCH, *CORPUS, "--", "--machine_typ=x"], "did you mean '--machine_type'"),
        ([*LAUNCH, *CORPUS, "--bok", "x"], "corpus: no option '--bok'; did you mean"),
        ([*LAUNCH, *CORPUS, "--books", "b.txt"], "but 'b.txt' is on this machine, wh"),
        ([*LAUNCH, *CORPUS[:3], "--output", "/c"], "but '/c' is on this machine"),
        ([*LAUNCH, *EXAMPLES, "--corpus", "s3://b/c"], "'s3://b/c' is not on Google"),
        ([*LAUNCH, "vocab", *EXAMPLES[1:3], "--output", "v.txt"], "but 'v.txt' is on"),
        ([*LAUNCH, *CORPUS, "--workers", "8"], "--workers is for processes of this"),
        ([*LAUNCH, *CORPUS, "--memory_limit=8"], "--memory_limit is for processes of"),
        ([*LAUNCH, *CORPUS, "--", "--runner", "x"], "Dataflow: leave --runner out, or"),
        ([*LAUNCH, *CORPUS, "--", "--max_num_workers=0"], "--max_num_workers must be"),
        ([*LAUNCH[:-1], "--max_num_workers=0", "--", *CORPUS], "must be at least 1, g"),
        (["launch", "dataflo"], "target is one of dataflow, .* did you mean 'dataflo"),
        (["launch", "dataflow"], "required: --project, --region, --temp_location"),
    ],
)
def test_mistakes(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 2
    assert re.search(message, capsys.readouterr().err)
