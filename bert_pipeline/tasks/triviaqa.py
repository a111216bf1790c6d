"""TriviaQA's Wikipedia part in the form of SQuAD 1.1: data of the paper's first fine-tuning for SQuAD (4.2, Table 2).

"The TriviaQA data we used consists of paragraphs from TriviaQA-Wiki formed of the first 400 tokens in documents, that
contain at least one of the provided possible answers."
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bert_pipeline.atomic import atomic_write
from bert_pipeline.errors import InputError
from bert_pipeline.records import open_source

TOKEN = re.compile(r"\w+|[^\w\s]")
"""A word or a punctuation mark. The paper does not define its tokens; TriviaQA's own script uses NLTK's."""
MAX_TOKENS = 400


def convert_triviaqa(questions: Path, evidence: Path, output: Path) -> dict[str, int]:
    """Write a SQuAD file with a paragraph for each pair of a question and a document; return counts.

    `questions` is a file such as wikipedia-train.json, `evidence` the folder of its documents, or the one above
    (`evidence/wikipedia`). A context is the original text of the first 400 tokens. Answers are all
    distinct spellings of the question's aliases that occur there as whole words, in any case, the leftmost first; pairs
    without any are counted and left out, as are pairs whose document is missing. Ids are TriviaQA's own:
    question--document. InputError if a file is not TriviaQA's or no pair is left; then nothing is written.
    """
    counts = {"pairs": 0, "without an answer in the context": 0, "documents missing": 0}

    # Written as a stream, one article after the other: the whole set has gigabytes of text.
    output.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(output) as temporary, open(temporary, "w", encoding="utf-8") as stream:
        stream.write('{"version": "1.1", "data": [\n')
        for article in _articles(questions, evidence, counts):
            stream.write(",\n" if counts["pairs"] else "")
            stream.write(json.dumps(article, ensure_ascii=False))
            counts["pairs"] += 1
        stream.write("\n]}\n")
        # Raised within the block, so that no empty file replaces an earlier one.
        if not counts["pairs"]:
            summary = ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "no questions"
            raise InputError(
                f"{questions}: no question has a document with its answer in {evidence} ({summary}); give "
                "wikipedia-train.json and the folder evidence/wikipedia of the same release"
            )
    return counts


def _articles(questions: Path, evidence: Path, counts: dict[str, int]) -> Iterator[dict[str, Any]]:
    root = evidence / "wikipedia" if (evidence / "wikipedia").is_dir() else evidence
    if not root.is_dir():
        raise InputError(f"{evidence}: not a folder; give TriviaQA's evidence/wikipedia")
    for number, record in enumerate(_load(questions)):
        try:
            question_id, question, truth = record["QuestionId"], record["Question"], record["Answer"]
            aliases = [truth["Value"], *truth.get("Aliases", []), *truth.get("NormalizedAliases", [])]
            pages = [(page["Filename"], page.get("Title") or page["Filename"]) for page in record["EntityPages"]]
            pattern = _any_of(aliases)
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{questions}: Data[{number}]: not a question of TriviaQA-Wiki ({error!r})") from error
        # One paragraph for each document, if one of the answers occurs in its first tokens.
        for name, title in pages:
            text = _read(root, name)
            if text is None:
                counts["documents missing"] += 1
                continue
            context = first_tokens(text.lstrip(), MAX_TOKENS)
            starts: dict[str, int] = {}
            for match in pattern.finditer(context):
                starts.setdefault(match[0], match.start())
            if not starts:
                counts["without an answer in the context"] += 1
                continue
            # All spellings that occur are accepted; training uses the first, the leftmost.
            answers = [{"text": text, "answer_start": start} for text, start in starts.items()]
            qas = [{"id": f"{question_id}--{name}", "question": question, "answers": answers}]
            yield {"title": title, "paragraphs": [{"context": context, "qas": qas}]}


def first_tokens(text: str, count: int) -> str:
    """Return the text up to the end of its token number `count`."""
    end = 0
    for _, match in zip(range(count), TOKEN.finditer(text)):
        end = match.end()
    return text[:end]


def _any_of(aliases: list[str]) -> re.Pattern[str]:
    """Return a pattern of any alias as whole words, the longest first; one that never matches without aliases."""
    spelled = sorted({alias.strip() for alias in aliases if alias.strip()}, key=lambda alias: (-len(alias), alias))
    alternatives = "|".join(map(re.escape, spelled))
    return re.compile(rf"(?<!\w)(?:{alternatives})(?!\w)" if spelled else r"(?!)", re.IGNORECASE)


def _load(path: Path) -> list[Any]:
    with open_source(path) as source:
        document = source.document()
    if not isinstance(document, dict) or not isinstance(document.get("Data"), list):
        raise InputError(f"{path}: found no list 'Data' at the top, expected TriviaQA's wikipedia-train.json")
    return [*document["Data"]]


def _read(root: Path, name: str) -> str | None:
    """Return the text of a document; None if it is missing. InputError for a name that leaves the folder."""
    path = root / name
    if not path.resolve().is_relative_to(root.resolve()):
        raise InputError(f"{name}: this document's name leaves {root}, expected one inside")
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from error
