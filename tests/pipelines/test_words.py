"""Words in all scripts: literal counts, and those of `str.split` where it is right."""

import random

import pytest

from bert_keras.pipelines import sentences, words
from tests.pipelines import cost

# Universal Declaration of Human Rights, article 1: 30 words in English.
ARTICLE = {
    "en": "All human beings are born free and equal in dignity and rights. They are "
    "endowed with reason and conscience and should act towards one another in a spirit "
    "of brotherhood.",
    "ko": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. "
    "인간은 천부적으로 이성과 양심을 부여받았으며 "
    "서로 형제애의 정신으로 행동하여야 한다.",
    "ja": "すべての人間は、生まれながらにして自由であり、かつ、"
    "尊厳と権利とについて平等である。人間は、理性と良心とを授けられており、"
    "互いに同胞の精神をもって行動しなければならない。",
    "zh": "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心，"
    "并应以兄弟关系的精神相对待。",
    "th": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ "
    "ต่างมีเหตุผลและมโนธรรม และควรปฏิบัติต่อกันด้วยเจตนารมณ์แห่งภราดรภาพ",
    "lo": "ມະນຸດທຸກຄົນເກີດມາມີສິດເສລີພາບ ແລະ ສະເໝີພາບກັນໃນກຽດສັກສີ ແລະ ສິດທິ "
    "ທຸກໆຄົນມີເຫດຜົນແລະມະໂນທຳ ແລະ ຄວນປະພຶດຕໍ່ກັນດ້ວຍຄວາມເປັນອ້າຍນ້ອງ",
    # Shorter translations, the second of the first sentence alone.
    "km": "មនុស្សទាំងអស់កើតមកមានសេរីភាព និងសមភាពក្នុងសិទ្ធិ និងសេចក្ដីថ្លៃថ្នូរ។ "
    "មនុស្សគ្រប់រូបសុទ្ធតែមានវិចារណញ្ញាណ និងសតិសម្បជញ្ញៈ។",
    "my": "လူတိုင်းသည် တူညီ လွတ်လပ်သော ဂုဏ်သိက္ခာဖြင့်လည်းကောင်း တူညီလွတ်လပ်သော "
    "အခွင့်အရေးများဖြင့်လည်းကောင်း မွေးဖွားလာသူများဖြစ်သည်။",
}


def test_one_text_has_about_as_many_words_in_every_language():
    counts = {language: words.count_words(text) for language, text in ARTICLE.items()}
    assert counts == {
        **{"en": 30, "ko": 20, "ja": 41, "zh": 21, "th": 33, "lo": 34},
        **{"km": 30, "my": 32},
    }


@pytest.mark.parametrize(
    ("text", "count"),
    [
        *(("", 0), (" \n\u3000", 0), ("One two  three.", 3)),
        *(("A dash – is one, as str.split has it.", 9), ("一", 1), ("一二", 1)),
        *(("一二三", 2), ("一，二", 2), ("「一二」。", 1), ("他说：“你好”——再见……", 3)),
        *(("2022年にNHKで放送", 5), ("ＮＨＫの番組", 3)),
        ("Beijing (北京) is a city.", 5),
        *(("그는 「책」을 읽었다", 4), ("กขค", 1), ("กขคงจ", 2), ("ฯลฯ Bob กขคง", 3)),
        ("、。・", 0),
    ],
)
def test_literally(text, count):
    assert words.count_words(text) == count


def test_text_with_spaces_has_the_words_of_split():
    rng = random.Random(0)
    for _ in range(2000):
        text = "".join(rng.choices("ab- \n\u00a0\u2014“”é가Жि.", k=12))
        assert words.count_words(text) == len(text.split())


def test_paragraphs_and_their_sentences_have_the_same_words():
    rng = random.Random(0)
    for _ in range(2000):
        text = "".join(rng.choices("aB1人々はกข。！」、 ", k=20))
        joined = " ".join(sentences.split_sentences(text))
        assert words.count_words(joined) == words.count_words(text)


def test_in_linear_time():
    for piece in ("a人", "a", "- ", "a、", "ก", "“"):
        cost.assert_linear(words.count_words, lambda n, piece=piece: piece * n + "人")
