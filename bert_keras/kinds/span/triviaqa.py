"""TriviaQA in its own layout: questions in `qa/*.json`, documents in `evidence/`.

Each pair of a question and a document becomes a question as SQuAD has it, by the first
place where the document names an answer. TriviaQA converted to SQuAD's layout is read
by `squad`.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.kinds.span import squad, squad_scores

# Folders below `evidence/`, by list of documents of a question.
_FOLDERS = {"EntityPages": "wikipedia", "SearchResults": "web"}


def read_triviaqa(
    path: str | Path,
    evidence: str | Path,
    *,
    max_words: int = 400,
    has_answers: bool = True,
) -> squad.QuestionSet:
    """Reads a file of questions, such as `qa/wikipedia-dev.json`, and their documents.

    Ids are `QUESTION_ID--DOCUMENT`, as in TriviaQA's own conversion. Pairs whose
    document is missing are skipped; pairs whose document does not name an answer cannot
    be trained on.

    Args:
        evidence: the folder with `wikipedia/` and `web/`.
        max_words: words of a document that are kept. The paper trained on the first
            400 tokens (footnote 12).
        has_answers: whether to look for answers; test files have none.
    """
    content = files.read_json(path)
    questions, skipped = {}, []
    for place, node in squad.items(content, "Data", str(path)):
        question = squad.field(node, "Question", str, place)
        question_id = squad.field(node, "QuestionId", str, place)
        names = _answer_names(node, place) if has_answers else []
        # As whole words, in any case; of two names at one place the longer one.
        alternatives = "|".join(map(re.escape, names))
        named = re.compile(rf"(?<!\w)(?:{alternatives})(?!\w)", re.IGNORECASE)
        for document, name in _documents(node, files.path(evidence), place):
            pair_id = f"{question_id}--{name}"
            context = _read_document(document, max_words)
            if context is None:
                skipped.append(f"{pair_id}: there is no {document}")
            elif pair_id not in questions:
                match = named.search(context) if names else None
                others = [n for n in names if not match or n != match[0]]
                answers = [squad.Answer(n, None) for n in others]
                if match:
                    answers.insert(0, squad.Answer(match[0], match.start()))
                elif has_answers:
                    skipped.append(f"{pair_id}: the text does not name an answer")
                row = squad.Question(pair_id, question, context, tuple(answers))
                questions[pair_id] = row
    if not questions:
        raise InputError(
            f"{path}: no question has a document that can be used (for example "
            f"{', '.join(skipped[:1]) or 'none lists one'}): give the folder that has "
            "wikipedia/ and web/, or read more words of each document"
        )
    return squad.QuestionSet(tuple(questions.values()), False, skipped=tuple(skipped))


def _documents(node: Any, evidence: Path, place: str) -> Iterator[tuple[Path, str]]:
    """Yields path and name of each document of a question."""
    for key, folder in _FOLDERS.items():
        if key not in node:
            continue
        for document_place, document in squad.items(node, key, place):
            # A page that could not be fetched has no file.
            if isinstance(document, dict) and "Filename" not in document:
                continue
            name = squad.field(document, "Filename", str, document_place)
            inside, path = evidence / folder, evidence / folder / name
            # JSON can hold halves of characters, which no file name has.
            is_bad = not name or re.search("[\0\\\\\ud800-\udfff]", name)
            is_bad = is_bad or os.path.isabs(name)
            # Not by ".." in the text alone: a link can lead out as well.
            if is_bad or not path.resolve().is_relative_to(inside.resolve()):
                raise InputError(
                    f"{document_place}: 'Filename': expected a path inside {inside}, "
                    f"got {name!r}"
                )
            yield path, name


def _read_document(path: Path, max_words: int) -> str | None:
    """Returns the first words of a file, with white space; `None` without a file."""
    try:
        content = path.read_bytes().decode("utf-8-sig")
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start}: not UTF-8") from None
    # Possessive: nothing is tried twice, however long a document is.
    beginning = re.match(rf"(?:\s*+\S++){{0,{max_words}}}+", content)
    return beginning[0] if beginning else ""


def _answer_names(node: Any, place: str) -> list[str]:
    """Returns names of the answer, longest first."""
    answer = squad.field(node, "Answer", dict, place)
    place = f"{place}.Answer"
    names = [squad.field(answer, "Value", str, place)]
    for key in ("Aliases", "NormalizedAliases"):
        names += squad.field(answer, key, list, place) if key in answer else []
    for name in names:
        if not isinstance(name, str):
            raise InputError(f"{place}: expected names that are strings, got {name!r}")
    # Articles and signs alone would be found in any text.
    distinct = {name.strip() for name in names if squad_scores.normalize_answer(name)}
    return sorted(distinct, key=lambda name: (-len(name), name))
