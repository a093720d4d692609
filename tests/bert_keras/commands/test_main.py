import argparse
import http.server
import os
import re
import subprocess
import sys
from concurrent import futures

import pytest

from bert_keras.commands import main as cli
from bert_keras.core import manifest, ownership
from tests.bert_keras.training.finetuning import test_finetune


def run(*arguments, capsys):
    """Exit code, standard output, standard error."""
    try:
        code = cli.main(arguments)
    except SystemExit as exit:
        code = exit.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def parsers(parser):
    """A parser and those of its verbs and targets."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from parsers(below)


@pytest.mark.parametrize(
    "parser", list(parsers(cli.build_parser())), ids=lambda parser: parser.prog
)
def test_every_option_says_what_and_its_default(parser):
    # A percent sign is one for argparse, too.
    text = " ".join(parser.format_help().split())
    assert text.startswith("usage: bert-keras")
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            assert len(action.help.split()) >= 2, action
        if action.type in (int, float) and isinstance(action.default, int | float):
            assert f"(default: {action.default})" in text, action


def test_the_help_lists_all_verbs_in_groups(capsys):
    text = run("--help", capsys=capsys)[1]
    listed = re.findall(r"^ ([ *]) ([a-z-]+) ", text, re.MULTILINE)
    (below,) = cli.build_parser()._subparsers._group_actions
    assert sorted(name for _, name in listed) == sorted(below.choices)
    assert sum(mark == "*" for mark, _ in listed) == 5
    assert len(re.findall(r"^[A-Z].*:$", text, re.MULTILINE)) == 6


def test_the_length_of_examples_is_that_of_the_configuration(tmp_path, monkeypatch):
    """Unless it is given; a default of the option's would hide a file's value."""
    built = []
    monkeypatch.setattr(
        "bert_keras.pipelines.examples.build_examples",
        lambda *_, config, **__: built.append(config.max_seq_length),
    )
    (tmp_path / "c.yaml").write_text("max_seq_length: 64\n")
    command = ["examples", "--corpus", "x", "--vocab", "y", "--output", "z"]
    for options in ([], ["--max_seq_length", "512"]):
        assert cli.main([*command, *options]) == 0
        assert cli.main([*command, "--config", f"{tmp_path}/c.yaml", *options]) == 0
    assert built == [128, 64, 512, 512]


def test_a_reader_that_has_seen_enough_is_no_error():
    command = f"{sys.executable} -m bert_keras.commands.main config page | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("# Configuration\n", "")


FILES = {
    "ok.csv": b"text,label\na,x\nb,y\n",
    "labels.csv": b"text,class\na,x\nb,y\n",
    "twice.yaml": b"batch_size: 8\nlearning_rate: 1e-5\nbatch_size: 16\n",
    "exported/saved_model.pb": b"",
    "onnx/model.onnx": b"",
    "litert/model.tflite": b"",
    "hugging_face/config.json": b'{"model_type": "bert"}',
    "hugging_face/model.safetensors": b"",
}
START = "finetune --init bert --output_dir run "
TUNE = f"{START} --train ok.csv --dev ok.csv "
READ = "finetune --set max_seq_length=64 --init {init} --output_dir run --dev 10% "
READ += "--train "
HUB = "hf download google-bert/bert-base-uncased --local-dir bert-base-uncased"


@pytest.fixture(scope="module")
def init(tmp_path_factory):
    folder = tmp_path_factory.mktemp("init") / "run"
    return test_finetune.make_init(folder, test_finetune.BERT_CONFIG)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        # Verbs and options.
        ("corpsu", "got 'corpsu'; did you mean 'corpus'"),
        ("corpus", "corpus: the following arguments are required: --output"),
        ("corpus --output x --wikipdia y", "'--wikipdia'; did you mean '--wikipedia'"),
        ("vocab --corpus x --output y --vocab_size many", "'many'"),
        (TUNE + "--gpu 1", "no option '--gpu'\n"),
        (TUNE + "--quiet u", "did not expect 'u', which belongs to no"),
        ("corpus --output x --workers 0", "must be at least 1, got 0"),
        ("corpus --jsonl x --output y --encoding cp1251", "--encoding is for the plai"),
        ("inspect x -- --runner y", "`inspect` takes nothing after `--`"),
        ("inspect x --json y", "--json writes the card: give --stats too"),
        ("adopt x", "adopt: the following arguments are required: --vocab"),
        ("predict --model a --input x --data y --output z", "give a file with --input"),
        ("predict --model a b --input x --output z", "several runs go together only"),
        *(
            (f"evaluate --input x {more}", "give a run with --model, or answers with")
            for more in ("", "--predictions y --model z")
        ),
        (START + "--task MRPC --train t", "give the files with --train and --dev, or"),
        (START + "--data d --train t --dev t", "give the files with --train and --de"),
        # Settings.
        (
            "examples --corpus x --vocab v --output y --max_seq_length 20 "
            "--set max_predictions_per_seq=19",
            "must leave room for [CLS] and two [SEP] in `max_seq_length`, got 19 and",
        ),
        (
            "sweep --folds 2 --train t --init i --output_dir o --set span.doc_stride=4",
            "`span` is for --task span, got the task text: leave it out",
        ),
        (
            TUNE + "--set columns.label_separator=|",
            "is for --task text --set multi_label",
        ),
        (TUNE + "--set learning_rate 2e-5", "in one word: --set learning_rate=2e-5\n"),
        (
            TUNE + "--learning_rate 2e-5",
            "finetune: no option '--learning_rate'; it is a setting: "
            "--set learning_rate=2e-5",
        ),
        (TUNE + "--epochs=3", "a setting: --set num_train_epochs=3"),
        (TUNE + "--lengths [64]", "it is a setting: --set 'lengths=[64]'"),
        (TUNE + "--learning-rate 1", "it is a setting: --set learning_rate=1"),
        (TUNE + "--bilstm-units --quiet", "a setting: --set bilstm_units=VALUE"),
        (
            "pretrain --examples x --output_dir y --vocab v --hidden_size 128",
            "it is a setting: --set model.hidden_size=128",
        ),
        (TUNE + "--set lr=2e-5", "no key 'lr'; did you mean 'learning_rate'?"),
        (TUNE + "--set epochs=3", "no key 'epochs'; did you mean 'num_train_epochs'?"),
        (TUNE + "--config bert_tiny", "a recipe of `pretrain`, not of `finetune`;"),
        (TUNE + "--config bert_tinny", "no configuration 'bert_tinny': neither a file"),
        (TUNE + "--config twice.yaml", "'batch_size' is there twice, in lines 1 and 3"),
        # Tasks.
        (TUNE + "--task textt", "'textt'; did you mean 'text'"),
        (TUNE + "--task ner", "no task 'ner'; give --task tagging"),
        (TUNE + "--task mrpc", "no task 'mrpc'; give --task MRPC"),
        # Files.
        ("adopt x --vocab y", "y: expected a vocabulary, cannot read it"),
        (START + "--train t --dev d", "--train t: no such file or directory"),
        *(
            (f"{command} none", f"{command.split()[-1]} none: no such file or direct")
            for command in (
                "evaluate --model m --input",
                "predict --model m --output o --input",
                "score --model m --pairs",
                "features --model m --output o --input",
            )
        ),
        (
            READ + "ok.csv --dev 0.1",
            "--dev 0.1: no such file; 10% of the training file is held out by "
            "--dev 10%",
        ),
        (
            READ + "labels.csv",
            "no column 'label' (there: text, class); rename it, or fine-tune with "
            "--set columns.label=NAME",
        ),
        # Models.
        (TUNE.replace("bert", "bert-base-uncased"), HUB),
        (TUNE.replace("bert", "owner/name"), "hf download owner/name --local-dir name"),
        *(
            (f"{verb} --model bert-base-uncased --input ok.csv", HUB)
            for verb in ("evaluate", "predict --output new.csv")
        ),
        (
            "predict --model exported --input ok.csv --output out.tsv",
            "exported: an export for serving (saved_model.pb), which is not read back; "
            "give the run directory that `export` made it from",
        ),
        ("evaluate --model onnx --input ok.csv", "an export for serving (*.onnx)"),
        (
            "evaluate --model litert --input ok.csv",
            "an export for serving (*.tflite)",
        ),
        (
            "evaluate --model hugging_face/model.safetensors --input ok.csv",
            "a file of a checkpoint; give its directory, hugging_face",
        ),
    ],
)
def test_a_mistake_gets_one_line(command, message, init, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    before = sorted(tmp_path.rglob("*"))
    code, out, error = run(*command.format(init=init).split(), capsys=capsys)
    assert (code, out) == (2, "") and error.count("\n") == 1
    assert error.startswith("bert-keras") and message in error
    assert sorted(tmp_path.rglob("*")) == before


def test_what_is_missing_or_in_use_is_said_before_tensorflow_is_loaded(tmp_path):
    examples, used = tmp_path / "examples", tmp_path / "used"
    examples.mkdir()
    made = manifest.Manifest(kind="examples", shards=(), config={})
    manifest.write_manifest(examples, made)
    tune = ["finetune", "--train", __file__, "--dev", "10%", "--init", "bert"]
    asked = ["predict", "--input", __file__, "--output", "o", "--model"]
    train = ["pretrain", "--examples", str(examples), "--output_dir"]
    program = (
        "import sys; from bert_keras.commands import main as cli\n"
        "assert cli.main(sys.argv[1:]) == 2\n"
        "assert not {'tensorflow', 'keras'} & {*sys.modules}\n"
    )
    with ownership.owned(used):
        for arguments, message in (
            (
                [*train, "y", "--set", "minimal_pairs=none"],
                "--set minimal_pairs none: n",
            ),
            ([*train, "y", "--vocab", "none"], "--vocab none: no such file"),
            ([*train, str(used)], f"{used}: in use by process {os.getpid()} on"),
            ([*tune, "--output_dir", str(used)], f"{used}: in use by process"),
            ([*tune, "--output_dir", "y"], "finetune: error: bert: does not exist\n"),
            ([*asked, "bert"], "predict: error: bert: does not exist\n"),
        ):
            command = [sys.executable, "-c", program, *arguments]
            ended = subprocess.run(command, capture_output=True, text=True)
            assert ended.returncode == 0, ended.stderr
            assert message in ended.stderr


def test_without_a_verb_there_is_the_help(capsys):
    assert cli.main([]) == 2
    assert capsys.readouterr().err == cli.build_parser().format_help()


@pytest.mark.parametrize("verb", [[], ["finetune"]])
def test_help_is_a_verb_too(verb, capsys):
    pages = []
    for arguments in (["help", *verb], [*verb, "--help"]):
        with pytest.raises(SystemExit) as done:
            cli.main(arguments)
        assert done.value.code == 0
        pages.append(capsys.readouterr().out)
    assert pages[0] == pages[1]


def test_an_interrupt_is_no_traceback(monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    name = "bert_keras.pipelines.inspection.description.describe_examples"
    monkeypatch.setattr(name, interrupted)
    code, _, err = run("inspect", "x", capsys=capsys)
    assert (code, err) == (130, "bert-keras inspect: interrupted\n")


def test_answers_of_any_system_are_scored(shared_data, capsys):
    """BERT's ensemble on SQuAD 1.1: the leaderboard has 86.2 and 92.2."""
    squad = shared_data / "squad"
    predictions = squad / "eval_reference/v1.1/predictions_bert_ensemble.json"
    arguments = ["--input", str(squad / "v1.1/dev-v1.1.json")]
    arguments += ["--predictions", str(predictions)]
    assert cli.main(["evaluate", *arguments]) == 0
    assert capsys.readouterr().out == (
        "exact_match\t86.2062\nf1\t92.1956\ntotal\t10570\nnum_unanswered\t0\n"
        "num_unknown\t0\n"
    )


HELD_UP = """
import ctypes, os, sys, threading, time
from bert_keras.commands import config_page
from bert_keras.commands import main as cli
from bert_keras.core import stores
def sleep():
    os.kill(os.getpid(), 15)
    time.sleep(60)
def block():
    # In a call that hears of no signal, as TensorFlow's may be.
    stores.client_for("gs://bucket/directory")
    threading.Timer(0.3, os.kill, (os.getpid(), 15)).start()
    threading.Timer(3, os._exit, (0,)).start()
    lock, mutex = ctypes.CDLL(None).pthread_mutex_lock, ctypes.c_buffer(99)
    lock(mutex), lock(mutex)
cli._GRACE_SECONDS, cli._ANSWER_SECONDS = 0.2, 1
config_page.recipes = globals()[sys.argv[1]]
sys.argv = ["bert-keras", "config", "list"]
cli.entry_point()
"""


def held_up(how, **variables):
    command = [sys.executable, "-c", HELD_UP, how]
    environment = {**os.environ, **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_sigterm_is_not_taken_for_the_end():
    """As an exit code that `&&` and schedulers heed. `config` has nothing to resume."""
    ended = held_up("sleep")
    assert ended.returncode == 143
    assert ended.stderr == "bert-keras config: stopped by SIGTERM\n"


@pytest.mark.parametrize("answers", [False, True])
def test_a_signal_ends_a_process_that_a_silent_store_holds_up(answers):
    class Missing(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_error(404)

    with (
        http.server.ThreadingHTTPServer(("localhost", 0), Missing) as server,
        futures.ThreadPoolExecutor() as pool,
    ):
        if answers:
            pool.submit(server.serve_forever)
        address = f"http://localhost:{server.server_port}"
        ended = held_up("block", STORAGE_EMULATOR_HOST=address)
        if answers:
            server.shutdown()
    assert ended.returncode == (0 if answers else 143), ended.stderr
    message = (
        "bert-keras: stopped by SIGTERM while a store does not answer, and not saved; "
        "run the same command again\n"
    )
    assert ended.stderr.endswith(message) != answers
