"""Sentence splitting, by literal cases."""

import random

import pytest

from pipelines import sentences

# Sentences are parted by " | ".
LATIN = """
One. | Two! | Three? | Four
He met Dr. Smith and Mrs. Jones at St. Mary's. | They left.
J. R. R. Tolkien wrote it. | It was long.
It grew by 3.5 per cent in 1990. | Then it fell.
The U.S. Army came. | In the U.S. | The war went on.
He lived in the U.S. | The next year he left.
"Come here," he said. | "Now!" | She came.
She said (it was late.) | Nobody heard.
He died (b. 1850) in Paris. | "No." | That was all.
Wait... | What was that? | "Who's there?!" | Nobody.
"What?" said he. | "Nothing!" said she.
Apples, pears, etc. are fruit. | So are plums, etc. | The rest are not.
See Fig. 3 and No. 7 on p. 12. | There it is.
The answer was no. | Then he left.
It was the vitamin C. | The dose was high.
World War I. | The war ended in 1918.
It boils at 100 °C. | Bread is done then.
He came at 5 p.m. | The door was open.
e.g. this one, i.e. that one. | Yes.
Er wurde am 3. Oktober 1990 geboren. | Das war z.B. in Berlin.
« Bonjour. » | Il partit avec M. Dupont. | Elle resta.
Он жил в им. Ленина районе. | Он уехал.
¿Quién? | ¡Nadie! | Así es.
Version 2.0.1 of example.org works. | 42 is the answer.
One vs. Two. | So it stays. and so on
"""

CJK = """
私は猫である。|名前はまだない。
「行くよ。」と言った。|彼は出た。
「行くよ。」|彼は出た。
どこ？|ここ！|そう。
柏林是首都。|它很大！|真的？
"""


@pytest.mark.parametrize("case", LATIN.strip().split("\n"))
def test_latin(case):
    text = case.replace(" | ", " ")
    assert sentences.split_sentences(text) == case.split(" | ")


@pytest.mark.parametrize("case", CJK.strip().split("\n"))
def test_chinese_and_japanese(case):
    text = case.replace("|", "")
    assert sentences.split_sentences(text) == case.split("|")


def test_nothing_in_nothing_out():
    assert sentences.split_sentences("") == []
    assert sentences.split_sentences("   ") == []


def test_no_character_is_lost_but_white_space():
    rng = random.Random(1)
    pieces = ["Mr.", "A", "b", ".", "!", "?", "…", " ", " ", '"', "”", "。", "」", "5"]
    for _ in range(3000):
        text = "".join(rng.choices(pieces, k=30))
        split = sentences.split_sentences(text)
        assert "".join("".join(split).split()) == "".join(text.split())
        assert all(sentence == sentence.strip() != "" for sentence in split)
