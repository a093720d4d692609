"""Questions become windows, and scores of tokens answers, by run_squad.py's rules."""

import itertools
import json
import math

import numpy as np
import pytest

from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning, tasks
from bert_keras.data import tokenization
from bert_keras.kinds.span import dataset, squad, squad_scores
from tests.bert_keras.kinds import kind_data

TOKENIZER = kind_data.tokenizer(*"abcdefghij", *(f"##{c}" for c in "abcdefghij"))
PAD, UNK, CLS, SEP, MASK, A, B, C, D, E, F, G, H, I, J = range(15)  # noqa: E741


def data_of(questions, *, has_impossible=True) -> dataset.SpanDataset:
    return dataset.SpanDataset(
        path="x", rows=questions, has_labels=True, has_impossible=has_impossible
    )


def windows_of(*questions, tokenizer=TOKENIZER, max_seq_length=10, **span):
    span = finetuning.SpanConfig(**{"doc_stride": 3, "max_query_length": 4} | span)
    settings = finetuning.FinetuningConfig(max_seq_length=max_seq_length, span=span)
    data = data_of(questions)
    return data.encode(data.describe(), tokenizer, settings)


def question(context: str, answer: str = "", *, words="a b", start=None, id="q"):
    start = context.find(answer) if start is None else start
    answers = (squad.Answer(answer, start),) if answer else ()
    return squad.Question(id, words, context, answers)


def test_windows_by_hand():
    """A context of 7 tokens in windows of 5, and one that fits."""
    asked = question("J", words="a a a a a b")
    found = windows_of(question("c d  e f g\nh I", "g\nh"), asked)
    assert found.questions.tolist() == [0, 0, 1]
    assert found.texts.lengths.tolist() == [10, 9, 8]
    assert found.texts.starts.tolist() == [0, 10, 19]
    batch = found.batch(np.arange(3))
    assert batch["input_ids"].tolist() == [
        [CLS, A, B, SEP, C, D, E, F, G, SEP],
        [CLS, A, B, SEP, F, G, H, I, SEP, PAD],
        [CLS, A, A, A, A, SEP, J, SEP, PAD, PAD],
    ]
    assert batch["segment_ids"].tolist() == [
        [0] * 4 + [1] * 6,
        [0] * 4 + [1] * 5 + [0],
        [0] * 6 + [1] * 2 + [0] * 2,
    ]
    assert batch["input_mask"].sum(axis=1).tolist() == [10, 9, 8]
    # Half of the answer is in the first window: that is no answer.
    assert batch["start_positions"].tolist() == [0, 5, 0]
    assert batch["end_positions"].tolist() == [0, 6, 0]
    assert found.char_starts[4:9].tolist() == [0, 2, 5, 7, 9]
    assert found.char_ends[10:19].tolist() == [0] * 4 + [8, 10, 12, 14, 0]
    # F has 1 token on its smaller side in the first window, 0 in the second; G has 0
    # and 1.
    wanted = [[4, 5, 6, 7], [15, 16, 17], [25]]
    assert np.flatnonzero(found.has_max_context).tolist() == sum(wanted, [])


def test_the_answer_is_where_its_characters_are():
    context = "ab cde, f"
    for answer, start, expected in (
        ("cde", 3, "cde"),
        ("ab cde", 0, "ab cde"),
        ("d", 4, "d"),
        (" cde,", 2, "cde,"),
        ("f", 8, "f"),
    ):
        found = windows_of(question(context, answer, start=start), max_seq_length=16)
        first, last = found.start_positions[0], found.end_positions[0]
        text = context[found.char_starts[first] : found.char_ends[last]]
        assert text == expected
    # As if it were control characters only.
    found = windows_of(question(context, " ", start=2), max_seq_length=16)
    assert (found.start_positions[0], found.end_positions[0]) == (0, 0)


def test_an_answer_inside_a_piece_takes_the_whole_piece():
    tokenizer = kind_data.tokenizer("golden", "##s")
    asked = question("The goldens", "old", words="")
    found = windows_of(asked, tokenizer=tokenizer)
    assert (found.start_positions[0], found.end_positions[0]) == (3, 3)
    assert (found.char_starts[3], found.char_ends[3]) == (4, 10)


def test_a_context_without_tokens_is_one_empty_window():
    found = windows_of(question(" \n\u200b "), question("", id="p"))
    assert found.texts.lengths.tolist() == [5, 5]
    assert not found.has_max_context.any()


def test_windows_need_room_and_questions():
    message = "max_seq_length=7 tokens has no room for max_query_length=4 of the"
    with pytest.raises(InputError, match=message):
        windows_of(question("c"), max_seq_length=7)
    with pytest.raises(InputError, match="expected at least one question, got none"):
        windows_of()


def make(num_questions=12):
    """Questions with few different words, so that texts are often found twice."""
    random = np.random.default_rng(0)
    questions = []
    for number in range(num_questions):
        context = " ".join(random.choice([*"abcDÉ"], random.integers(0, 40)))
        questions.append(squad.Question(f"q{number}", "a b", context, ()))
    windows = windows_of(*questions, max_seq_length=16, doc_stride=4)
    logits = random.normal(size=(2, len(windows.char_starts)))
    return questions, windows, *logits.astype(np.float32)


def expected_n_best(questions, windows, start_logits, end_logits, *, n_best, longest):
    """By loops, question by question, as the original goes about it."""
    found = {}
    for number, question in enumerate(questions):
        spans, nulls = [], []
        for row in np.flatnonzero(windows.questions == number):
            cls = int(windows.texts.starts[row])
            tokens = range(cls, cls + int(windows.texts.lengths[row]))
            nulls.append((float(start_logits[cls]), float(end_logits[cls])))
            begins = [t for t in tokens if windows.has_max_context[t]]
            ends = [t for t in tokens if windows.char_ends[t]]
            begins = sorted(begins, key=lambda t: -start_logits[t])[:n_best]
            ends = sorted(ends, key=lambda t: -end_logits[t])[:n_best]
            for begin, end in itertools.product(begins, ends):
                if begin <= end < begin + longest:
                    place = slice(windows.char_starts[begin], windows.char_ends[end])
                    both = float(start_logits[begin]), float(end_logits[end])
                    spans.append((question.context[place], *both))
        spans.append(("", *min(nulls, key=sum)))
        spans.sort(key=lambda span: -(span[1] + span[2]))
        best = {}
        for span in spans:
            if len(best) < n_best:
                best.setdefault(span[0], span)
        best.setdefault("", next(span for span in spans if not span[0]))
        found[question.id] = list(best.values())
    return found


def predict(
    questions, windows, start_logits, end_logits, *, has_impossible=True, **sizes
):
    data = data_of(questions, has_impossible=has_impossible)
    settings = finetuning.FinetuningConfig(span=finetuning.SpanConfig(**sizes))
    outputs = np.stack([start_logits, end_logits], axis=1)
    return data.answer(outputs, windows, data.describe(), settings)


@pytest.mark.parametrize(("n_best", "longest"), [(1, 1), (3, 4), (20, 30)])
def test_agrees_with_the_rules(n_best, longest):
    made = make()
    found = predict(*made, n_best_size=n_best, max_answer_length=longest)
    expected = expected_n_best(*made, n_best=n_best, longest=longest)
    assert list(found.n_best) == [question.id for question in made[0]]
    for id, entries in expected.items():
        assert [(c.text, *c[2:4]) for c in found.n_best[id]] == entries
        weights = np.exp([start + end for _, start, end in entries])
        probabilities = [candidate.probability for candidate in found.n_best[id]]
        assert probabilities == pytest.approx(weights / weights.sum())
        (null,) = [e for e in entries if not e[0]]
        others = [e for e in entries if e[0]]
        if n_best > 1 and others:
            odds = sum(null[1:]) - sum(others[0][1:])
            assert found.null_odds[id] == pytest.approx(odds)


def test_without_impossible_questions_there_is_always_an_answer():
    questions, windows, *logits = make()
    found = predict(questions, windows, *logits, has_impossible=False)
    assert found.null_odds is None
    for question in questions:
        candidates = found.n_best[question.id]
        assert len({c.text for c in candidates}) == len(candidates) <= 20
        assert all(c.text in question.context for c in candidates)
        assert found.texts()[question.id] == candidates[0].text
    assert any(not question.context for question in questions), "one has no text"
    files = data_of(questions).files(found, suffix="")
    assert set(files) == {"predictions.json", "nbest_predictions.json"}


def test_a_context_without_text_is_never_answered():
    asked = squad.Question("q", "a", " \n ", ())
    windows = windows_of(asked)
    logits = np.zeros((2, len(windows.char_starts)))
    found = predict([asked], windows, *logits)
    assert found.null_odds == {"q": 1e6}
    assert found.texts(decision=tasks.Decision(no_answer_odds=2e6)) == {"q": ""}
    assert found.n_best == {"q": [("", 1.0, 0.0, 0.0, (0, 0))]}


def test_files_by_hand():
    """Windows `[CLS] a [SEP] b C d [SEP]`; half of a surrogate pair can be written."""
    asked = squad.Question("q", "a", "b  C\ud800d", ())
    windows = windows_of(asked)
    start_logits = np.array([1, 9, 9, 2, 0, 0, 9], np.float32)
    end_logits = np.array([1, 9, 9, 0, 0, 0, 9], np.float32)
    start_logits[4:6], end_logits[4:6] = -50, -50
    end_logits[4] = 1
    found = predict([asked], windows, start_logits, end_logits)
    files = data_of([asked]).files(found, suffix="")
    assert files["null_odds.json"] == '{\n    "q": -1.0\n}\n'
    best = asked.context[: windows.char_ends[4]]
    assert json.loads(files["predictions.json"]) == {"q": best}
    n_best = json.loads(files["nbest_predictions.json"])["q"]
    assert list(n_best[0]) == ["text", "probability", "start_logit", "end_logit"]
    assert [c["text"] for c in n_best[:3]] == [best, "b", ""]
    assert n_best[0]["probability"] == pytest.approx(
        math.exp(3) / (math.exp(3) + 2 * math.exp(2))
    )
    # "Above" the threshold only.
    assert found.texts(decision=tasks.Decision(no_answer_odds=-1.0)) == {"q": best}
    assert found.texts(decision=tasks.Decision(no_answer_odds=-1.01)) == {"q": ""}


def test_a_failed_model():
    questions, windows, start_logits, end_logits = make(1)
    for bad in (np.nan, np.inf):
        end_logits[0] = bad
        with pytest.raises(InputError, match="scores are not finite numbers: its tr"):
            predict(questions, windows, start_logits, end_logits)


@pytest.mark.slow
def test_right_scores_give_right_answers_to_published_questions(shared_data):
    """All of SQuAD 1.1's development set. What is not exact are answers of more than 30
    tokens (13) and ones that people marked inside of a word (19)."""
    vocabulary = tokenization.Vocabulary.load(
        shared_data / "vocab" / "uncased_L-12_H-768_A-12" / "vocab.txt"
    )
    tokenizer = tokenization.Tokenizer(vocabulary, do_lower_case=True)
    read = squad.read_squad(shared_data / "squad" / "v1.1" / "dev-v1.1.json")
    sizes = {"max_seq_length": 384, "doc_stride": 128, "max_query_length": 64}
    windows = windows_of(*read.questions, tokenizer=tokenizer, **sizes)
    assert len(windows.texts) == 10_833
    logits = np.zeros((2, len(windows.char_starts)), np.float32)
    logits[0, windows.texts.starts + windows.start_positions] = 10
    logits[1, windows.texts.starts + windows.end_positions] = 10
    found = predict(read.questions, windows, *logits, has_impossible=False)
    scores = squad_scores.scores(
        squad.gold_answers(read.questions), found.texts(), has_impossible=False
    )
    assert scores["total"] == 10_570
    assert scores["exact_match"] == pytest.approx(100 * (1 - 32 / 10_570))
    assert scores["f1"] == pytest.approx(99.7519, abs=1e-4)
