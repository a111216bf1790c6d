"""Scores of a bag of words: what a task gives to word counts alone, as a baseline for fine-tuned models.

The features are words and pairs of neighboring words, of each text and of both, weighted by tf-idf. Classes are
predicted by logistic regression, numbers by ridge regression; the regularization is chosen by cross-validation on the
training rows. Everything is scored by the task's metric on the rows that `bert finetune` uses.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from benchmarks.harness import describe_machine, errors_as_exit_codes, markdown_table, program
from bert_model.kinds import kind_of
from bert_pipeline.errors import UsageError
from bert_pipeline.tasks.catalogue import Task
from bert_pipeline.tasks.example import TextExample
from bert_pipeline.tasks.task import load_task_data

_WORD = re.compile(r"\w+|[^\w\s]")


def features(example: TextExample) -> Iterator[str]:
    """Yield the words and bigrams of an example: of its first text, of its second, and those that both have."""
    first, second = (set(_ngrams(text or "")) for text in (example.text_a, example.text_b))
    yield from (f"a {ngram}" for ngram in sorted(first))
    yield from (f"b {ngram}" for ngram in sorted(second))
    yield from (f"ab {ngram}" for ngram in sorted(first & second))
    # The shares of common words do not depend on which words they are.
    if first and second:
        common = len(first & second)
        yield from (f"share of {name} {10 * common // len(texts)}" for name, texts in (("a", first), ("b", second)))


def _ngrams(text: str) -> Iterator[str]:
    words = _WORD.findall(text.lower())
    yield from words
    yield from map(" ".join, zip(words, words[1:]))


def predict(task: Task, train: Sequence[TextExample], dev: Sequence[TextExample]) -> dict[str, Any]:
    """Fit the training examples and predict the others; returns predictions by id."""
    vectorizer = TfidfVectorizer(analyzer=features, min_df=2, sublinear_tf=True)
    if task.kind == "regression":
        model, grid = Ridge(), {"ridge__alpha": [0.3, 1.0, 3.0, 10.0]}
    else:
        model, grid = LogisticRegression(max_iter=1000), {"logisticregression__C": [0.3, 1.0, 3.0, 10.0, 30.0]}
    search = GridSearchCV(make_pipeline(vectorizer, model), grid, cv=3)
    search.fit(train, [example.label for example in train])
    convert = float if task.kind == "regression" else str
    return {example.example_id: convert(value) for example, value in zip(dev, search.predict(dev))}


@errors_as_exit_codes
def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each task."""
    parser = program("bag_of_words", __doc__)
    parser.add_argument(
        "--task", action="append", required=True, metavar="NAME=DATA", help="a task of texts; may be repeated"
    )
    args = parser.parse_args(arguments)
    rows = []
    for name, _, path in (word.partition("=") for word in args.task):
        data = load_task_data(name, path)
        if data.task.kind not in ("classification", "regression"):
            raise UsageError(f"{name}: is a task of kind {data.task.kind}, expected classification or regression")
        for split, dev in data.dev.items():
            found = kind_of(data.task).score(dev, predict(data.task, data.train, dev))
            baseline = kind_of(data.task).baseline(data.train, dev)
            metric = data.task.main_metric
            sizes = (f"{len(data.train):,}", f"{len(dev):,}")
            rows.append(
                (data.task.title, f"{split}/{metric}", *sizes, f"{baseline[metric]:.1f}", f"{found[metric]:.1f}")
            )
            print(*rows[-1], file=sys.stderr, flush=True)
    print(describe_machine(("scikit-learn",)))
    print(markdown_table(("task", "metric", "train", "dev", "trivial", "bag of words"), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
