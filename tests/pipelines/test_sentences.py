"""Sentence splitting: literal cases in many languages, and whole books."""

import itertools
import random
import re

import pytest

from bert_keras.pipelines import sentences
from tests.pipelines import cost

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
Version 2.0.1 of example.org works. | 42 is the answer.
One vs. Two. | So it stays. and so on
Mr. and Mrs. Brown met Prof. Green, Rev. White and Messrs. Black & Co. | They ate.
Lieut. Gray and Capt. Reed served under Brig. Gen. Smith. | Col. Hay did not.
St. Paul and Mt. Etna are far apart. | Ft. Worth is farther.
Martin Luther King, Jr. spoke. | Sammy Davis Jr. | The crowd sang.
He has a Ph.D. from M.I.T. | It took him ten years.
Washington, D.C. | The city is hot.
It happened in 44 B.C. | The year was bad. | It was 10 a.m. in Rome.
The firm is Brown Bros. Harriman. | Its rival is Smith Inc. | Both are old.
Roe v. Wade was decided. | Smith et al. found it. | Cf. Jones 1990, pp. 3-5.
It costs $1.50. | That is 20% more. | He paid.
It is 5 m. | Another is 7 km. | Both are long.
The ratio was .5 or 0.5. | It fell to -1.5. | Nothing else did.
See http://example.org/a.html. | It explains. | Mail to a.b@example.org. | Thanks!
1. The first of them is here. | 2. The second is not.
I. The first chapter. | II. The second one.
A. It is so. | B. It is not so.
He was alone... but not for long. | And then... | Then she came.
He said . . . nothing. | And then . . . | The end.
"Wait . . ." | "For what?" | "For me."
"I do," he said. | "Do you?" | 'No.' | She left.
“I do,” he said. | “Do you?” | ‘No.’ | She left.
“You said ‘no.’” | He did.
"It is." | ("Is it?") | [It was.] | {So.}
He left (at last!). | She stayed (did she?) all day.
He asked "Why?" and left. | "Because!" she cried. | He ran.
He left.[1] | She stayed.[23][a] | Nobody saw.
Is it? | ¿Es así? | — Yes. | – No.
Yes! | Yes! said he? no. | Not so!! | Really?! | Yes.
The plan ("Plan B.") was bad. | It failed.
The end.' "
The U.N. is in New York. | The U.N. | That is all.
George W. Bush and Samuel L. Jackson met. | George W. | He is known by that.
It was in Jan. 1990, on Sept. 3 and in Dec. | The snow fell.
Nos. 3 and 4, vol. 2, ch. 5 and sec. 6 are lost. | See also art. 7. | Art is long.
The ch. | Next is a word of two letters.
He was b. 1850 and d. 1900. | He fl. c. 1880.
E. coli lives there. | C. elegans does not.
It is called lit. "the House", from Lat. Domus. | That is odd.
_He_ said _no._ | _She_ did not.
He works at Yahoo! in the U.K. | But not today.
Thos. Gray and Wm. Blake wrote, resp. Lived. | We read.
The dept. Head left. | Two others did.
Approx. 50 came. | Ca. 20 stayed, incl. John. | 3 slept.
By 1990. | By 2000. | 5 of 6. | It is done.
He stayed--Mr. Gray did--with the ex-Gov. Smith. | He knew Jean-P. Sartre.
OK. | So be it. | TV. | It is on.
The cat sat on the mat. | The dog, too
No end here
"""

OTHERS = """
Er wurde am 3. Oktober 1990 geboren. | Das war z.B. in Berlin.
Im 19. Jahrhundert und im 2. Weltkrieg war es so. | Das 20. war anders.
Dr. Müller kam am 5. Mai, d.h. zu früh, bzw. Gar nicht. | Er ging.
„Ja.“ | Er ging. | »Nein.« | Sie blieb. | Er kam. | »Ja«, sagte er.
Es sind ca. 50 usw. | Die anderen fehlen. | Vgl. Abs. 3, Nr. 7 und Abb. 2.
Ist es so? | Ja! | Österreich ist schön. | Ähnlich ist es hier.
« Bonjour. » | Il partit avec M. Dupont. | Elle resta.
M. et Mme Dupont, p. ex. lui, habitent à St. Denis. | Elle dit : « Oui ! » | Il part.
L'État, c'est lui ! | « Non ? » | Éric rit… | À demain.
« Je viens », dit-il. | Mlle. Rose et MM. Blanc rient.
¿Quién? | ¡Nadie! | Así es.
El Sr. García y la Sra. López viven aquí. | «Sí.» | ¿Ves?
O Sr. Silva chegou. | Não é? | É assim.
Il dott. Rossi è qui. | Perché? | Così sia!
Dhr. de Vries kwam. | 's Avonds is het stil. | 't Is goed.
Он жил в им. Ленина районе. | Он уехал.
В 1990 г. Москва росла. | Это было в XX в. | На юге нет.
А. С. Пушкин родился в 1799 г. | Он писал, т.е. творил. | См. рис. 3.
«Да.» | — Нет! | Она ушла…
Κάλα. | Ναι! | Όχι.
هل هذا صحيح؟ | نعم. | لا!
यह सच है। | वह गया।
Jest to prof. Nowak. | Św. Jan był tu. | Łódź jest duża.
안녕하세요. | 반갑습니다! | 네.
"""

CJK = """
私は猫である。|名前はまだない。
「行くよ。」と言った。|彼は出た。
「行くよ。」|彼は出た。
「行くよ。」|「来るな！」|彼は「いや。」と言い、出た。
『本。』を読む。|（終わり。）|次。
どこ？|ここ！|そう。
本当！？|はい！！|いいえ。
これは1.5倍で、Dr. Smithの説である。|次。
彼は来た｡|彼女も来た｡
柏林是首都。|它很大！|真的？
他说：“你好。”|她走了。
“你好！”|“再见。”|他走了（很快。）|天黑了。
面积为16,410.54平方公里。|人口2,189万。
中国……很大。|U.S. Steel是公司。|对。
"""


@pytest.mark.parametrize(("table", "gap"), [(LATIN, " "), (OTHERS, " "), (CJK, "")])
def test_languages(table, gap):
    expected = [case.split(f"{gap}|{gap}") for case in table.strip().split("\n")]
    assert [sentences.split_sentences(gap.join(case)) for case in expected] == expected
    assert sentences.split_sentences(gap * 3) == []


def test_no_character_is_lost_but_white_space():
    rng = random.Random(1)
    pieces = ["Mr.", "A", "b", ".", "!", "?", "…", " ", " ", '"', "”", "。", "」", "5"]
    for _ in range(1000):
        text = "".join(rng.choices(pieces, k=30))
        split = sentences.split_sentences(text)
        assert "".join("".join(split).split()) == "".join(text.split())
        assert all(sentence == sentence.strip() != "" for sentence in split)


HOSTILE = (
    *(".", ". ", "..x", ". .x", "A. ", '."', ". «", ". (((", ".[1]", "word ", "a"),
    *("。", "。」", ".。!」 "),
)


@pytest.mark.parametrize("piece", HOSTILE)
def test_cost_of_hostile_paragraphs_grows_with_their_size(piece):
    cost.assert_linear(sentences.split_sentences, lambda size: piece * size)


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_sentences_of_books_are_plausible(shared_data, step):
    """Reads nine books or three, among them bibliographies and tables."""
    folder = shared_data / "books" / "strip_headers_reference" / "clean"
    blocks = [
        block
        for path in sorted(folder.glob("*.txt"))[::step]
        for block in path.read_text(encoding="utf-8").split("\n\n")
    ]
    paragraphs = [" ".join(block.split()) for block in blocks if block.strip()]
    split = [sentences.split_sentences(paragraph) for paragraph in paragraphs]
    assert [" ".join(sentences_) for sentences_ in split] == paragraphs
    lengths = sorted(len(sentence) for sentence in itertools.chain(*split))
    assert 2.8 < len(lengths) / len(paragraphs) < 3.2
    assert 40 < lengths[len(lengths) // 2] < 70
    assert 250 < lengths[len(lengths) * 99 // 100] < 500
    later = [sentence for found in split for sentence in found[1:]]
    assert sum(sentence[0].islower() for sentence in later) == 0
    ends = [sentence for found in split for sentence in found[:-1]]
    title = re.compile(r"\b(?:Mr|Mrs|Messrs|Dr|St|Prof|Capt|Col|Rev)\.$")
    assert [sentence for sentence in ends if title.search(sentence)] == []
    # Each end has its mark, and none is between the digits of a number.
    mark = re.compile(r"[.!?…][\"'”’“‘)\]«_»\s.!?…]*(?:\[\w{1,3}\])*$")
    assert [sentence for sentence in ends if not mark.search(sentence)] == []
    joined = sentences.split_sentences(" ".join(paragraphs))
    # Who speaks goes with what is said, where a small letter says so.
    assert not any(re.match(r"(?:said|asked|cried|he|she)\b", one) for one in joined)
    # Initials are not parted from their name.
    assert sum(re.fullmatch(r"[A-Z]\.", one) is not None for one in joined) < 50
