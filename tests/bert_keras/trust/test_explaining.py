"""Why a run answers as it does: numbers, places, the page, and the check of both."""

import html.parser
import io
import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.special

import bert_keras
from bert_keras.checkpoints import conversion
from bert_keras.commands import main as cli
from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning
from bert_keras.data import features, tokenization
from bert_keras.inference import attribution, finetuned
from bert_keras.kinds import registry
from bert_keras.trust import explaining
from tests import make
from tests.bert_keras.search.test_search import limited_files

WORDS = [f"w{number}" for number in range(40)]
OTHERS = [
    "un",
    "##like",
    "##ly",
    "(",
    ")",
    "Ä",
    "ä",
    "电",
    "影",
    "<",
    ">",
    "/",
    "script",
]
VOCABULARY = tokenization.Vocabulary((*features.SPECIAL_TOKENS, *WORDS, *OTHERS))
SPAN = {"doc_stride": 6, "max_query_length": 3, "max_answer_length": 2}


def text_settings(**changes) -> finetuning.FinetuningConfig:
    return finetuning.FinetuningConfig(task="text", max_seq_length=12, **changes)


KINDS = {
    "classification": (
        {"labels": ("bad", "good", "so so"), "has_text_pair": True},
        text_settings(),
    ),
    "multi_label": ({"labels": ("a", "b", "c")}, text_settings(multi_label=True)),
    "regression": ({}, text_settings(regression=True)),
    "head and tail": ({}, text_settings(regression=True, long_texts="head_tail")),
    "ranking": (
        {"has_text_pair": True},
        finetuning.FinetuningConfig(task="ranking", max_seq_length=12),
    ),
    "span": (
        {"has_text_pair": True},
        finetuning.FinetuningConfig(task="span", max_seq_length=14, span=SPAN),
    ),
    "windows": (
        {"labels": ("bad", "good")},
        text_settings(long_texts="windows_mean", window_stride=4),
    ),
    "tagging": (
        {"labels": ("O", "PER")},
        finetuning.FinetuningConfig(task="tagging", max_seq_length=12),
    ),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory, randomize):
    """A function that makes the run of a kind, once."""
    folder, made = tmp_path_factory.mktemp("explained"), {}

    def make_one(name: str) -> Path:
        if name not in made:
            task, settings = KINDS[name]
            kinds = {"windows": "classification", "head and tail": "regression"}
            kind = kinds.get(name, name)
            made[name] = make.make_run(
                folder / name,
                VOCABULARY,
                settings=settings,
                bert_config=make.small_config(len(VOCABULARY), num_hidden_layers=2),
                change=randomize,
                kind=kind,
                **task,
            )
        return made[name]

    return make_one


def explain(run: Path, examples, tolerance=1e-5, **options):
    """Explanations at all but exact integrals."""
    model = finetuned.FinetunedModel.load(run)
    data = registry.labelled(model.task.kind).from_python(examples, model.task)
    explainer = attribution.Explainer(model, data, tolerance=tolerance, **options)
    return [explainer.explain(number) for number in range(len(explainer))]


def named(explanation) -> list[tuple[str, float | None]]:
    texts = explanation.texts
    return [(texts[w.text][w.start : w.end], w.attribution) for w in explanation.words]


def read_lines(path: Path) -> list[dict]:
    return [*map(json.loads, path.read_text(encoding="utf-8").splitlines())]


# === An independent implementation: transformers, torch's autograd, Gauss's nodes ===


def theirs(run: Path, folder: Path, inputs, score) -> np.ndarray:
    """Attributions of each token, `(length,)`, on the weights of a converted run."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    conversion.convert(run, folder / "theirs", to="hugging_face")
    [name] = json.loads((folder / "theirs/config.json").read_text())["architectures"]
    model = getattr(transformers, name).from_pretrained(folder / "theirs")
    model = model.double().eval()
    ids, segments = (torch.tensor([inputs[k]]) for k in ("input_ids", "segment_ids"))
    special = [VOCABULARY.cls_id, VOCABULARY.sep_id]
    baseline = torch.where(
        torch.isin(ids, torch.tensor(special)), ids, VOCABULARY.mask_id
    )
    embed, points = model.bert.embeddings, {}
    start, end = (embed(input_ids=x, token_type_ids=segments) for x in (baseline, ids))
    embed.register_forward_hook(lambda *_: points["now"])
    nodes, weights = np.polynomial.legendre.leggauss(60)
    total = torch.zeros_like(start)
    for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        points["now"] = (start + node * (end - start)).detach().requires_grad_()
        answer = score(model(input_ids=ids, token_type_ids=segments))
        [gradient] = torch.autograd.grad(answer, points["now"])
        total += weight * gradient
    return ((end - start) * total).sum(-1)[0].detach().numpy()


def packed(*texts: str) -> dict[str, list[int]]:
    """`[CLS] text [SEP] text [SEP]`, where each word is a piece."""
    ids, segments = [VOCABULARY.cls_id], [0]
    for segment, text in enumerate(texts):
        pieces = [VOCABULARY.ids[word] for word in text.split()] + [VOCABULARY.sep_id]
        ids, segments = ids + pieces, segments + [segment] * len(pieces)
    return {"input_ids": ids, "segment_ids": segments}


def test_the_numbers_are_those_of_torch(runs, tmp_path):
    texts = "w3 w1 w4 w15", "w9 w2 w6"
    run = runs("classification")
    [ours] = explain(run, [texts], label="good")

    def score(outputs):
        bad, good, so_so = outputs.logits[0]
        return good - (bad + so_so) / 2

    expected = theirs(run, tmp_path, packed(*texts), score)
    assert [word for word, _ in named(ours)] == " ".join(texts).split()
    values = [value for _, value in named(ours)]
    np.testing.assert_allclose(values, expected[[1, 2, 3, 4, 6, 7, 8]], atol=5e-5)
    assert max(map(abs, values)) > 0.1
    # The special tokens are those of the baseline, too.
    assert (expected[[0, 5, 9]] == 0).all()
    assert sum(values) == pytest.approx(ours.score - ours.baseline_score, abs=5e-5)


def test_an_answer_in_a_window_is_explained_by_that_window(runs, tmp_path):
    run, asked = runs("span"), "w1 w2"
    context = " ".join(WORDS[3:27])
    [ours] = explain(run, [(asked, context)])
    [record] = bert_keras.load(run).predict([(asked, context)])
    assert ours.answer == record.prediction
    words = [word for word, _ in named(ours)]
    assert words == f"{asked} {context}".split()
    read = [word for word, value in named(ours)[2:] if value is not None]
    # A window has 14 tokens, with 2 of the question and 3 special ones.
    assert (len(read), (words.index(read[0]) - 2) % 6) in ((9, 0), (6, 0))
    assert {*record.prediction.split()} <= {*read}
    inputs = packed(asked, " ".join(read))
    first, *_, last = (4 + read.index(word) for word in 2 * record.prediction.split())

    def score(outputs):
        return outputs.start_logits[0, first] + outputs.end_logits[0, last]

    expected = theirs(run, tmp_path, inputs, score)
    values = [value for _, value in named(ours) if value is not None]
    np.testing.assert_allclose(values, [*expected[1:3], *expected[4:-1]], atol=5e-5)


def test_the_rule_is_exact_for_polynomials():
    for steps in (2, 4, 8, 16):
        nodes, weights = attribution.quadrature(steps)
        assert (weights > 0).all()
        for power in range(steps + 1):
            assert weights @ nodes**power == pytest.approx(1 / (power + 1), rel=1e-12)


# === What is explained ===


def test_the_score_is_that_of_the_answer(runs):
    texts = ["w1 w2 w3", "w20 w7", "w4 w30 w31 w5"]
    pairs = [(text, "w8 w9") for text in texts]
    for name, examples in (("multi_label", texts), ("regression", texts)):
        records = bert_keras.load(runs(name)).predict(examples)
        for record, one in zip(records, explain(runs(name), examples), strict=True):
            if name == "regression":
                assert one.score == pytest.approx(record.prediction, abs=1e-5)
                assert float(one.answer) == pytest.approx(record.prediction, rel=1e-5)
            else:
                best = max(record.probabilities, key=record.probabilities.get)
                assert one.answer == best
                probability = scipy.special.expit(one.score)
                assert probability == pytest.approx(
                    record.probabilities[best], abs=1e-5
                )
    # All labels of a model with three: their log probabilities less the others' mean.
    records = bert_keras.load(runs("classification")).predict(pairs)
    answers = explain(runs("classification"), pairs)
    assert [a.answer for a in answers] == [record.prediction for record in records]
    for place, label in enumerate(KINDS["classification"][0]["labels"]):
        found = explain(runs("classification"), pairs, label=label)
        for record, one in zip(records, found, strict=True):
            logs = np.log([*record.probabilities.values()])
            expected = logs[place] - np.delete(logs, place).mean()
            assert one.score == pytest.approx(expected, abs=1e-4)


def test_every_passage_of_a_ranking_is_explained(runs):
    question, passages = "w1 w2", ["w3 w4", "w5", "w6 w7 w8"]
    [record] = bert_keras.load(runs("ranking")).predict([(question, passages)])
    found = explain(runs("ranking"), [(question, passages)])
    assert [one.texts for one in found] == [(question, text) for text in passages]
    np.testing.assert_allclose([one.score for one in found], record.scores, atol=1e-5)


PLACES = {
    # Pieces of a word are one; brackets and ideographs are words.
    "(Unlikely) w1": "( Unlikely ) w1",
    "w1  电影 w2": "w1 电 影 w2",
    "W1 Ä 😀 unlikelier": "W1 Ä 😀 unlikelier",
    "w1\x00w2 \u200bw3": "w1\x00w2 w3",
    "qqq zzz qqq": "qqq zzz qqq",
    "": "",
    " \n": "",
}


@pytest.mark.parametrize("text", PLACES)
def test_words_are_those_of_the_text(text, runs):
    [one] = explain(runs("regression"), [text])
    assert " ".join(word for word, _ in named(one)) == PLACES[text]
    total = sum(value for _, value in named(one))
    assert total == pytest.approx(one.score - one.baseline_score, abs=5e-5)
    assert one.completeness_error < 1e-4


def test_words_that_were_not_read_have_no_attribution(runs):
    text = " ".join(WORDS[:30])
    [one] = explain(runs("regression"), [text])
    assert [word for word, value in named(one) if value is not None] == WORDS[:10]
    assert len(one.words) == 30
    [one] = explain(runs("head and tail"), [text])
    read = [word for word, value in named(one) if value is not None]
    assert read == [*tokenization.shortened(WORDS[:30], 10, keeps_tail=True)]
    # Of the windows of a text, the one with the highest score.
    [record] = bert_keras.load(runs("windows")).predict([text])
    [one] = explain(runs("windows"), [text])
    assert one.answer == record.prediction
    read = [word for word, value in named(one) if value is not None]
    windows = [WORDS[:30][start : start + 10] for start in range(0, 21, 4)]
    assert read in windows
    alone = explain(
        runs("windows"), [" ".join(window) for window in windows], label=one.answer
    )
    scores = [window.score for window in alone]
    assert one.score == pytest.approx(max(scores), abs=1e-5)
    assert windows.index(read) == int(np.argmax(scores))


def test_python_explains_what_an_adapter_and_a_merged_run_answer(
    runs, tmp_path, randomize
):
    base = make.make_run(
        tmp_path / "base",
        VOCABULARY,
        change=randomize,
        kind="pretraining",
    )
    adapter = make.make_adapter(
        tmp_path / "adapter",
        base,
        text_settings(),
        kind="classification",
        labels=("bad", "good"),
    )
    texts = ["w1 w2 w3", "w4 w5"]
    merged = bert_keras.load(adapter).explain(texts, label="good")
    beside = bert_keras.load(base, adapter=adapter).explain(texts, label="good")
    for one, other in zip(merged, beside, strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-5)
        values = [[value for _, value in named(found)] for found in (one, other)]
        np.testing.assert_allclose(*values, atol=1e-4)
    assert bert_keras.load(adapter).explain([]) == []


def test_a_loose_tolerance_takes_fewer_steps(runs, monkeypatch):
    monkeypatch.setattr(attribution, "FEWEST_STEPS", 2)
    text = ["w1 w2 w3 w4 w5 w6"]
    [exact] = explain(runs("regression"), text)
    [quick] = explain(runs("regression"), text, tolerance=attribution.TOLERANCE)
    assert quick.steps < exact.steps
    assert exact.completeness_error <= 1e-5 < quick.completeness_error <= 0.01
    largest = max(abs(value) for _, value in named(exact))
    for (_, one), (_, other) in zip(named(quick), named(exact), strict=True):
        assert one == pytest.approx(other, abs=0.02 * largest)


def test_an_integral_that_does_not_converge_is_warned_of(runs, monkeypatch, caplog):
    monkeypatch.setattr(attribution, "MOST_STEPS", 8)
    [one] = explain(runs("regression"), ["w1 w2 w3 w4 w5 w6"], tolerance=1e-7)
    assert one.steps == 8 and one.completeness_error > 1e-7
    [record] = [r for r in caplog.records if r.name == attribution.__name__]
    assert re.fullmatch(
        r"example 1: the attributions miss \S+ % of the score in 8 steps",
        record.getMessage(),
    )


# === The command ===

TEXTS = [
    "w1 w2 w3 <script>alert('w4')</script> & $policy w5",
    *(f"w{n} w{n + 1} w{2 * n} w7 w{n + 12}" for n in range(1, 13)),
    "w9 \u202ew8 \x07 电影 </p> 😀",
]


@pytest.fixture(scope="module")
def explained(runs, tmp_path_factory):
    """A file of texts, and its explanations."""
    folder = tmp_path_factory.mktemp("files")
    lines = [json.dumps({"text": text}) for text in TEXTS]
    (folder / "new.jsonl").write_text("\n".join(lines) + "\n")
    lines = explaining.explain(
        runs("multi_label"), folder / "new.jsonl", folder / "why.jsonl"
    )
    return folder, lines


def test_a_line_tells_all(explained, runs):
    folder, lines = explained
    rows = read_lines(folder / "why.jsonl")
    assert [row["texts"] for row in rows] == [[text] for text in TEXTS]
    assert [row["number"] for row in rows] == [*range(1, len(TEXTS) + 1)]
    expected = explain(runs("multi_label"), TEXTS, tolerance=0.01)
    for row, one in zip(rows, expected, strict=True):
        assert row["answer"] == one.answer and row["steps"] == one.steps
        assert row["score"] == pytest.approx(one.score, abs=1e-4)
        words = [(word["word"], word["attribution"]) for word in row["words"]]
        assert [word for word, _ in words] == [word for word, _ in named(one)]
        for (_, value), (_, other) in zip(words, named(one), strict=True):
            assert value == pytest.approx(other, abs=1e-4)
    assert lines[0] == (f"14 explanations in {folder}/why.jsonl and {folder}/why.html")
    assert re.fullmatch(
        r"completeness error up to 0\.\d\d %, \d+ to \d+ steps", lines[1]
    )
    assert lines[2] in re.sub("<.*?>", "", (folder / "why.html").read_text())


class Articles(html.parser.HTMLParser):
    """The texts of the page's paragraphs of texts, and all of its tags."""

    def __init__(self):
        super().__init__()
        self.texts, self.tags, self.forms = [], set(), set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.form = dict(attrs).get("class", "")
        if self.form == "text":
            self.texts.append("")
        if tag == "span":
            self.forms.add(self.form)
        self.is_text = self.form == "text" or self.is_text and tag == "span"

    def handle_endtag(self, tag):
        self.is_text = self.is_text and tag == "span"

    is_text = False

    def handle_data(self, data):
        if self.is_text:
            self.texts[-1] += data


def test_nothing_of_the_texts_runs_in_the_page(explained):
    page = (explained[0] / "why.html").read_text(encoding="utf-8")
    articles = Articles()
    articles.feed(page)
    # Controls, also of direction, are shown as signs.
    assert articles.texts == [re.sub("[\u202e\x07]", "\ufffd", text) for text in TEXTS]
    assert not articles.tags & {"script", "img", "a", "link"}
    assert "script-src 'none'" in page and "default-src 'none'" in page
    assert {"for l5", "against l5"} <= articles.forms


def test_answers_and_names_are_text_in_the_page():
    """Words of texts are too short to be tags; what is between them is not."""
    words = (attribution.Word(0, 0, 2, 0.5),)
    one = attribution.Explanation(
        ("w1 <i>\x01</i>",), "<script>alert(1)</script>", 1.0, 0.0, words, 0.0, 8
    )
    page = explaining.draw_page([one], "Not compared.", title="<b>&.tsv").decode()
    articles = Articles()
    articles.feed(page)
    assert not articles.tags & {"script", "b", "i"}
    assert articles.texts == ["w1 <i>\ufffd</i>"]
    assert "</small> &lt;script&gt;alert(1)&lt;/script&gt;</h2>" in page
    assert "<title>Why these answers: &lt;b&gt;&amp;.tsv</title>" in page


def test_a_second_call_writes_the_same_bytes(explained, runs, monkeypatch):
    folder, _ = explained
    monkeypatch.setattr(attribution, "TOKENS_PER_BATCH", 40)
    explaining.explain(
        runs("multi_label"), folder / "new.jsonl", folder / "again.jsonl"
    )
    for suffix in (".jsonl", ".html"):
        one, other = ((folder / name).with_suffix(suffix) for name in ("why", "again"))
        assert one.read_bytes() == other.read_bytes()


def test_a_killed_call_goes_on(explained, runs, tmp_path, monkeypatch):
    """Nothing but whole files has their names; a page without lines is none."""
    folder, _ = explained
    call = runs("multi_label"), folder / "new.jsonl", tmp_path / "why.jsonl"
    written = [tmp_path / f"why.{suffix}" for suffix in ("html", "jsonl")]
    replace = os.replace
    for num_whole in range(2):
        names = []

        def kill(source, name, names=names, num_whole=num_whole):
            if len(names) == num_whole:
                raise KeyboardInterrupt
            names.append(name)
            replace(source, name)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", kill)
            with pytest.raises(KeyboardInterrupt):
                explaining.explain(*call)
        assert [path.exists() for path in written] == [num_whole > 0, False]
    explaining.explain(*call)
    for path in written:
        assert path.read_bytes() == (folder / path.name).read_bytes()
    # A page of other lines is kept.
    written[1].unlink()
    (tmp_path / "new.jsonl").write_text('{"text": "w1 w2"}\n')
    with pytest.raises(InputError, match="why.html: exists already; choose another"):
        explaining.explain(runs("multi_label"), tmp_path / "new.jsonl", written[1])
    assert written[0].read_bytes() == (folder / "why.html").read_bytes()
    assert not written[1].exists()


def test_two_calls_at_once_do_not_mix(explained, runs, tmp_path, monkeypatch):
    """The second call begins, and ends, while the first one draws its page."""
    folder, _ = explained
    (tmp_path / "new.jsonl").write_text('{"text": "w1 w2"}\n')
    output, draw_page, others = tmp_path / "why.jsonl", explaining.draw_page, []

    def draw_late(*arguments, **options):
        if not others:
            others.append(tmp_path / "new.jsonl")
            explaining.explain(runs("multi_label"), others[0], output)
        return draw_page(*arguments, **options)

    monkeypatch.setattr(explaining, "draw_page", draw_late)
    with pytest.raises(InputError, match="exists already; choose another name"):
        explaining.explain(runs("multi_label"), folder / "new.jsonl", output)
    [row] = read_lines(output)
    assert row["texts"] == ["w1 w2"]
    assert "w20" not in output.with_suffix(".html").read_text()


def test_a_full_disk(explained, runs, tmp_path):
    """A limit on the size of files fails writing as a full disk does."""
    folder, _ = explained
    call = runs("multi_label"), folder / "new.jsonl", tmp_path / "why.jsonl"
    sizes = sorted((folder / name).stat().st_size for name in ("why.html", "why.jsonl"))
    for size in (300, *sizes):
        message = "cannot be written: File too large; make room"
        with limited_files(size - 1), pytest.raises(InputError, match=message):
            explaining.explain(*call)
        assert not (tmp_path / "why.jsonl").exists()
        assert not [*tmp_path.glob(".*")]
    explaining.explain(*call)
    for name in ("why.html", "why.jsonl"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_standard_input_is_a_file(explained, runs, tmp_path, monkeypatch):
    content = (explained[0] / "new.jsonl").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    output = tmp_path / "why.jsonl"
    command = ["explain", "--model", str(runs("multi_label")), "--input", "-"]
    assert cli.main([*command, "--output", str(output)]) == 0
    assert output.read_bytes() == (explained[0] / "why.jsonl").read_bytes()


def test_a_run_in_bfloat16_is_explained_in_float32(runs, tmp_path, randomize):
    settings = text_settings(precision="mixed_bfloat16", regression=True)
    run = make.make_run(
        tmp_path / "run",
        VOCABULARY,
        settings=settings,
        change=randomize,
        kind="regression",
    )
    with pytest.raises(InputError, match="load it with precision='float32'"):
        bert_keras.load(run).explain(["w1"])
    (tmp_path / "new.tsv").write_text("text\nw1 w2 w3\n")
    explaining.explain(run, tmp_path / "new.tsv", tmp_path / "why.jsonl")
    [row] = read_lines(tmp_path / "why.jsonl")
    [one] = bert_keras.load(run, precision="float32").explain(["w1 w2 w3"])
    assert row["score"] == pytest.approx(one.score, abs=1e-4)


# === The check ===


def test_the_best_order_is_better_than_random(runs):
    """Without the words that raise the score most, it falls most."""
    model = finetuned.FinetunedModel.load(runs("regression"))
    rng = np.random.default_rng(3)
    texts = [" ".join(rng.choice(WORDS, 9)) for _ in range(12)]
    data = registry.labelled("regression").from_python(texts, model.task)
    explainer = attribution.Explainer(model, data)
    losses = []
    for number in range(12):
        [of_text] = explaining.deletion_losses(
            explainer, number, explainer.explain(number)
        )
        losses.append(of_text)
    # A tenth of nine words is one word: masked by hand.
    one = explainer.explain(0)
    best = max(range(9), key=lambda place: one.words[place].attribution)
    words = texts[0].split()
    network, tokenizer = model.network, model.tokenizer
    ids = np.array(
        [[VOCABULARY.cls_id, *tokenizer.encode(" ".join(words)), VOCABULARY.sep_id]]
    )
    ids[0, 1 + best] = VOCABULARY.mask_id
    expected = one.score - float(network({"input_ids": ids})["logits"][0, 0])
    assert losses[0][0, 0] == pytest.approx(expected, abs=1e-5)
    assert explaining.verdict(np.array(losses)).startswith("The words with the highest")


def test_the_verdict_says_when_the_order_means_nothing():
    rng = np.random.default_rng(0)
    curve = np.array([[0.5, 1.0, 1.5, 2.0], [0.25, 0.5, 0.75, 1.0]])
    losses = curve + rng.normal(scale=0.1, size=(50, 2, 4))
    better = explaining.verdict(losses.round(1) * 0 + curve)
    assert better == (
        "The words with the highest attributions matter more than random words. Mean "
        "loss of 50 scores: 0.50 (random: 0.25) without 10 % of the words, 1.00 "
        "(random: 0.50) without 20 % of the words, 1.50 (random: 0.75) without 30 % of "
        "the words, 2.00 (random: 1.00) without 50 % of the words."
    )
    claim = "These explanations are no better than random ones: do not rely on them"
    for worse in (losses[:, ::-1], np.repeat(losses[:, :1], 2, axis=1)):
        assert explaining.verdict(worse).startswith(claim)
    # By chance alone, one-sided 95 %.
    chance = [explaining.verdict(rng.normal(size=(40, 2, 4))) for _ in range(400)]
    assert 4 < sum(not sentence.startswith(claim) for sentence in chance) < 40
    assert "-0.00" not in explaining.verdict(np.full((40, 2, 4), -1e-9))
    assert explaining.verdict(losses[:9]) == (
        "These explanations were not compared with random ones, for which 10 answers "
        "to texts of two words are needed, got 9."
    )


# === Messages ===


def messages(runs, tmp_path, randomize):
    for name in ("there.jsonl", "half.html"):
        (tmp_path / name).write_text("")
    (tmp_path / "new.tsv").write_text("text\nw1 w2\n")
    (tmp_path / "new.txt").write_text("w1 w2\n")

    def overflow(network):
        for weight in network.trainable_variables:
            if weight.path.endswith("kernel"):
                weight.assign(np.full(weight.shape, 3e38))

    def damage(network):
        network.trainable_variables[-1].assign([np.nan])

    pretrained = make.make_run(tmp_path / "lm", VOCABULARY, kind="pretraining")
    broken, damaged = (
        make.make_run(
            tmp_path / change.__name__,
            VOCABULARY,
            settings=KINDS["regression"][1],
            change=change,
            kind="regression",
        )
        for change in (overflow, damage)
    )
    return {
        ("regression", "new.tsv", "why.tsv"): "--output {}/why.tsv: expected a name "
        "that ends in .jsonl",
        ("regression", "new.tsv", "there.jsonl"): "{}/there.jsonl: exists already; "
        "choose another name",
        ("regression", "new.tsv", "half.jsonl"): "{}/half.html: exists already; choose "
        "another name",
        ("regression", "none.tsv", "why.jsonl"): "--input {}/none.tsv: no such file or "
        "directory",
        (
            pretrained,
            "new.tsv",
            "why.jsonl",
        ): f"{pretrained}: expected a model that was "
        "tuned on a task, got one for pretraining",
        (broken, "new.tsv", "why.jsonl"): f"{broken}: the model's scores are not "
        "finite: its training failed",
        (damaged, "new.tsv", "why.jsonl"): f"{damaged}: 1 values are not finite: 1 of "
        "head/classifier/bias: the training has failed, or the file is damaged; take "
        "an earlier checkpoint or another copy",
        ("tagging", "new.txt", "why.jsonl"): f"{runs('tagging')}: a model for tagging, "
        "expected one for classes or numbers of texts, for answers within a text, or "
        "for ranking",
        (
            "regression",
            "new.tsv",
            "why.jsonl",
            "good",
        ): f"{runs('regression')}: a model for regression has no label 'good'",
        (
            "multi_label",
            "new.tsv",
            "why.jsonl",
            "d",
        ): f"{runs('multi_label')}: the label to explain is one of a, b, c, got 'd'",
    }


def test_messages(runs, tmp_path, randomize, capsys):
    for case, expected in messages(runs, tmp_path, randomize).items():
        model, data, output, *label = case
        model = runs(model) if isinstance(model, str) else model
        command = ["explain", "--model", model, "--input", tmp_path / data]
        command += [
            "--output",
            tmp_path / output,
            *(["--label", *label])[: 2 * len(label)],
        ]
        assert cli.main([*map(str, command)]) == 2
        [line] = capsys.readouterr().err.splitlines()[-1:]
        assert line.endswith(f"bert-keras explain: error: {expected.format(tmp_path)}")
        assert not (tmp_path / "why.jsonl").exists()
