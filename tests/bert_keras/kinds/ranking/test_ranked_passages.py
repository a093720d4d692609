"""The page of a run that ranks passages."""

from bert_keras.kinds.ranking import RankedPassages, ranked_passages


def ranked(relevances, scores, prediction, line: int) -> RankedPassages:
    return RankedPassages(
        question="Who *left*?",
        passages=[f"passage {n} | {line}" for n in range(len(scores))],
        line=line,
        relevances=relevances,
        prediction=prediction,
        scores=scores,
    )


def test_the_sections_of_the_page():
    records = [
        ranked([1, 0], [0.5, 0.25], [0, 1], 2),
        ranked([0, 1, 0], [0.5, 0.25, 0.1], [0, 1, 2], 4),
        ranked([0, 0, 2], [0.5, 0.25, 0.1], [0, 1, 2], 7),
        ranked([0, 0], [0.5, 0.25], [0, 1], 10),
    ]
    ranks, mistakes = ranked_passages.describe(records)
    expected = """\
|  | 4 questions |
| --- | --- |
| mean of 1 / rank of the first right passage | 45.8 % |
| the same, 0 below rank 10 | 45.8 % |
| nDCG of the first 10 passages | 53.3 % |
| mean of 1 / rank in random order | 49.3 % |
| passages of a question | 2.5 |
| questions without a right passage | 1 |
| median rank of the first right one | 2 |"""
    assert ranks.text == expected
    expected = """\
2 of 4 first passages are wrong, though another one is right; first those farthest \
from the first place:

| line | rank | question | first right passage | first wrong passage |
| --- | --- | --- | --- | --- |
| 7 | 3 | Who &#42;left&#42;? | passage 2 &#124; 7 | passage 0 &#124; 7 |
| 4 | 2 | Who &#42;left&#42;? | passage 1 &#124; 4 | passage 0 &#124; 4 |"""
    assert mistakes.text == expected
    assert ranks.picture is not None and mistakes.picture is None


def test_a_page_without_a_right_passage():
    ranks, mistakes = ranked_passages.describe([ranked([0], [0.5], [0], 2)])
    assert "| questions without a right passage | 1 |" in ranks.text
    assert ranks.picture is None
    assert mistakes.text == (
        "0 of 1 first passages are wrong, though another one is right."
    )
