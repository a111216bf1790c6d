"""A bag of words learns what words decide, and nothing that their order decides."""

from benchmarks import bag_of_words
from bert_pipeline.tasks.example import TextExample

HEADERS = {"rte": "index\tsentence1\tsentence2\tlabel", "stsb": "index\tsentence1\tsentence2\tscore"}


def write(directory, task, rows):
    lines = [f"{n}\t{row}" for n, row in enumerate(rows)]
    for name in ("train.tsv", "dev.tsv"):
        (directory / name).write_text("\n".join([HEADERS[task], *lines]) + "\n")
    return f"{task}={directory}"


def test_words_decide_a_class(tmp_path, capsys):
    labels = ["entailment", "not_entailment"]
    rows = [f"the {'good' if n % 2 else 'bad'} film {n % 5}\tit was seen\t{labels[n % 2]}" for n in range(40)]
    assert bag_of_words.main(["--task", write(tmp_path, "rte", rows)]) == 0
    assert "| RTE | dev/accuracy | 40 | 40 | 50.0 | 100.0 |" in capsys.readouterr().out


def test_common_words_decide_a_number(tmp_path, capsys):
    rows = [f"a b c d e\t{' '.join('abcde'[: n % 6])} {' '.join('vwxyz'[n % 6 :])}\t{n % 6}" for n in range(60)]
    assert bag_of_words.main(["--task", write(tmp_path, "stsb", rows)]) == 0
    score = float(capsys.readouterr().out.strip().split("|")[-2])
    assert score > 90


def test_other_kinds_are_refused(tmp_path, capsys):
    sentence = "EU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\n"
    for name in ("eng.train", "eng.testa", "eng.testb"):
        (tmp_path / name).write_text(f"-DOCSTART- -X- -X- O\n\n{sentence}")
    assert bag_of_words.main(["--task", f"ner={tmp_path}"]) == 2
    assert "expected classification or regression" in capsys.readouterr().err


def test_example_without_a_first_text_has_features():
    example = TextExample("1", "", "my name is …")
    assert set(bag_of_words.features(example)) >= {"b my", "b my name"}
