"""Data commands: equal to their functions; options that would be ignored raise."""

import argparse
import re

import pytest
from small_corpus import make_corpus, make_documents, make_vocabulary

from bert_pipeline.cli import add_commands
from bert_pipeline.configuration import CommandParser
from bert_pipeline.errors import ConfigurationError, InputError, UsageError
from bert_pipeline.manifest import load_manifest
from bert_pipeline.vocabulary.tokenizer import Tokenizer

ONE = ("--workers", "1")


def parsed(*words):
    parser = argparse.ArgumentParser(prog="bert")
    add_commands(parser.add_subparsers(dest="command", required=True, parser_class=CommandParser))
    return parser.parse_args([str(word) for word in words])


def bert(*words, beam_options=ONE):
    arguments = parsed(*words)
    if hasattr(arguments, "beam_options"):
        arguments.beam_options = list(beam_options)
    return arguments.run(arguments)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus") / "corpus", [make_documents(40, held_out=[3, 5])])


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return make_vocabulary(tmp_path_factory.mktemp("vocabulary") / "vocabulary")


def test_corpus_vocab_and_instances_follow_each_other(tmp_path, capsys):
    text = tmp_path / "made.txt"
    documents = make_documents(40)
    text.write_text("\n\n".join("\n".join(document.sentences) for document in documents))
    assert bert("corpus", f"text:{text}", "--name", "made", "--output", tmp_path / "corpus") == 0
    assert load_manifest(tmp_path / "corpus").counts["documents"] == 40
    assert "40 documents" in capsys.readouterr().out
    words = ["vocab", tmp_path / "corpus", "--vocab-size", "100", "--num-unused", "3", "--cased"]
    assert bert(*words, "--output", tmp_path / "vocabulary") == 0
    tokenizer = Tokenizer.from_directory(tmp_path / "vocabulary")
    assert (tokenizer.vocab_size, tokenizer.do_lower_case) == (100, False)
    assert "tokens per word" in capsys.readouterr().out
    words = ["instances", tmp_path / "corpus", "--vocab", tmp_path / "vocabulary", "--max-seq-length", "40"]
    words += ["--masking", "static", "--masking-mix", "100/0/0", "--dupe-factor", "2"]
    assert bert(*words, "--output", tmp_path / "instances", "--show", "2") == 0
    out = capsys.readouterr().out
    assert out.count("passage follows") == 2
    assert "[MASK]→" in out
    manifest = load_manifest(tmp_path / "instances", kind="instances")
    assert manifest.counts["train"]["masked_as_mask_share"] == 1.0
    assert manifest.configuration["max_seq_length"] == 40
    assert bert("instances", tmp_path / "instances", "--show", "3", beam_options=()) == 0
    assert capsys.readouterr().out.count("passage follows") == 3
    with pytest.raises(UsageError, match="its files state the other case"):  # although the instances are there
        bert(*words, "--output", tmp_path / "instances", "--no-cased")


def test_vocab_and_instances_are_made_again_only_for_other_settings_or_inputs(corpus, vocabulary, tmp_path, caplog):
    caplog.set_level("INFO")

    def run(*words):
        caplog.clear()
        assert bert(*words, "--output", tmp_path / words[0]) == 0
        return (tmp_path / words[0] / "manifest.json").stat().st_mtime_ns

    def log():
        return [record.message for record in caplog.records if record.name == "bert_pipeline.step"]

    first = run("vocab", corpus, "--num-unused", 3, "--vocab-size", 100)
    assert run("vocab", corpus, "--num-unused", 3, "--vocab-size", 100) == first
    assert log() == [
        f"unchanged since {load_manifest(tmp_path / 'vocab').provenance['created']}: {tmp_path / 'vocab'} is reused"
    ]
    of_vocab = ("instances", corpus, "--vocab", tmp_path / "vocab", "--max-seq-length", 32)
    made = run(*of_vocab)
    assert run(*of_vocab) == made
    assert run("vocab", corpus, "--num-unused", 3, "--vocab-size", 101) != first
    assert log() == [f"{tmp_path / 'vocab'} is made again: its settings.vocab_size changed"]
    assert run(*of_vocab) != made
    assert log() == [f"{tmp_path / 'instances'} is made again: its inputs.vocabulary changed"]
    # Files that are no artifact are read anew each time.
    of_files = ("instances", corpus, "--vocab", vocabulary, "--max-seq-length", 32)
    assert run(*of_files) != run(*of_files)
    assert log() == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--masked-lm-prob", "0.15"], "--masked-lm-prob: masks are dynamic"),
        (
            ["--max-predictions-per-seq", "20", "--whole-word-masking"],
            "--max-predictions-per-seq, --whole-word-masking",
        ),
        (["--masking", "dynamic", "--masking-mix", "80/10/10"], "--masking-mix: masks are dynamic"),
        (["--masking", "static", "--masking-mix", "80/10"], "masking_mix: 80/10: expected three"),
        (["--max-seq-length", "2"], "max_seq_length: found 2"),
        (["--show", "0"], "--show 0"),
    ],
)
def test_conflicting_instance_options_raise_before_any_work(corpus, vocabulary, tmp_path, words, message):
    with pytest.raises(UsageError, match=message):
        bert("instances", corpus, "--vocab", vocabulary, "--output", tmp_path / "out", *words)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "beam_options", "message"),
    [
        ("instances CORPUS --output OUT", ONE, "--vocab DIR is missing"),
        ("instances CORPUS --vocab VOCABULARY", ONE, "--output DIR is missing"),
        ("instances CORPUS --show 1 --max-seq-length 32", (), "max_seq_length would be ignored"),
        ("corpus dump.xml", ONE, "--output DIR is missing"),
        ("vocab CORPUS --output OUT --extend VOCABULARY/vocab.txt --vocab-size 500", ONE, "vocab_size=500: extending"),
        ("vocab CORPUS --output OUT --min-count 0", ONE, "min_count: found 0"),
        ("vocab CORPUS --output OUT", ["--wokers=1"], "'--wokers=1' is not known"),
    ],
)
def test_missing_unknown_and_ignored_options_are_usage_errors(
    corpus, vocabulary, tmp_path, words, beam_options, message
):
    for name, place in (("CORPUS", corpus), ("VOCABULARY", vocabulary), ("OUT", tmp_path / "out")):
        words = words.replace(name, str(place))
    with pytest.raises(UsageError, match=message) as caught:
        bert(*words.split(), beam_options=beam_options)
    assert caught.value.exit_code == 2
    assert not list(tmp_path.iterdir())


def test_case_of_an_old_vocabulary_is_an_option(corpus, vocabulary, tmp_path):
    """Of a repository of the hub whose files do not state it."""
    (old := tmp_path / "old").mkdir()
    (old / "vocab.txt").write_bytes((vocabulary / "vocab.txt").read_bytes())
    (old / "tokenizer_config.json").write_text('{"model_max_length": 512}')
    words = ("instances", corpus, "--max-seq-length", 32, "--output", tmp_path / "instances", "--vocab")
    with pytest.raises(UsageError, match="give --cased or --no-cased"):
        bert(*words, old)
    for option, lower_cases in (("--no-cased", True), ("--cased", False)):
        assert bert(*words, old, option) == 0
        assert Tokenizer.from_directory(tmp_path / "instances").do_lower_case is lower_cases
    with pytest.raises(UsageError, match="its files state the other case"):
        bert(*words, vocabulary, "--cased")
    with pytest.raises(UsageError, match="so cased would be ignored"):
        bert("instances", corpus, "--show", 1, "--cased", beam_options=())
    compared = ("--compare", old / "vocab.txt", "--output", tmp_path / "vocabulary")
    assert bert("vocab", corpus, "--vocab-size", 100, "--num-unused", 3, *compared) == 0


def test_fertility_is_printed_for_half_and_twice_the_size(corpus, tmp_path, capsys):
    figures = {}
    for size in (80, 160):
        assert bert("vocab", corpus, "--output", tmp_path / f"{size}", "--vocab-size", size, "--num-unused", "3") == 0
        printed = capsys.readouterr().out
        figures[size] = re.search(r"this vocabulary: (\S+ tokens per word, \S+ \[UNK\])", printed)[1]
        others = dict(re.findall(r"with (\d+) entries it would be (\S+ tokens per word, \S+ \[UNK\])", printed))
        assert others.keys() == ({"40", "160"} if size == 80 else {"80", "164"})
    assert figures[80] == others["80"]


def test_script_that_the_alphabet_lacks_is_printed_and_warned_of(tmp_path, capsys, caplog):
    text = tmp_path / "made.txt"
    han = ["".join(chr(0x4E00 + 7 * number + place) for place in range(5)) for number in range(500)]
    text.write_text("\n\n".join(f"These are letters of two scripts.\n{word}" for word in han))
    assert bert("corpus", f"lines:{text}", "--held-out-per-mille", "500", "--output", tmp_path / "corpus") == 0
    words = ["--vocab-size", "150", "--num-unused", "3", "--pad-with-unused", "--max-alphabet", "20"]
    assert bert("vocab", tmp_path / "corpus", *words, "--output", tmp_path / "vocabulary") == 0
    assert "[UNK] by script: Latin 0.000% of" in capsys.readouterr().out
    assert "of the tokens of Han script are [UNK], at most" in caplog.text


@pytest.mark.real_data
def test_article_is_shown_with_its_passages(real_data, tmp_path, capsys):
    dump = real_data / "wikipedia/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
    assert bert("corpus", "--show", "Anarchism", dump, beam_options=()) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Anarchism (id 12")
    assert "| Anarchism is a political philosophy that advocates" in shown
    assert bert("corpus", "--show", "AccessibleComputing", dump, beam_options=()) == 0
    assert "The page is dropped: redirect." in capsys.readouterr().out
    with pytest.raises(InputError, match="no page is called 'No such page'"):
        bert("corpus", "--show", "No such page", dump, beam_options=())
    with pytest.raises(UsageError, match="would be ignored"):
        bert("corpus", "--show", "Anarchism", dump, "--output", tmp_path / "out")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["min_count=3", "--vocab-size", "300", "--cased"],
            {"vocab_size": 300, "min_count": 3, "do_lower_case": False},
        ),
        (["--num-unused", "4", "--source-weights", "books=2"], {"num_unused": 4, "source_weights": {"books": 2.0}}),
        (["--source-weights", "a=2", "b=0", "--source-weights", "c=3"], {"source_weights": {"a": 2, "b": 0, "c": 3}}),
        (["min_count=7"], {"vocab_size": 200, "min_count": 7}),
    ],
)
def test_key_value_overrides_options_which_override_the_file(tmp_path, words, expected):
    (tmp_path / "settings.yaml").write_text("vocab_size: 200\nnum_unused: 3\nmin_count: 5\n")
    arguments = parsed("vocab", "corpus", *words, "--config", tmp_path / "settings.yaml", "--output", "out")
    config = arguments.configured(arguments)
    assert {"min_count": 5, "num_unused": 3, **expected} == {
        name: getattr(config, name) for name in {"min_count", "num_unused", *expected}
    }


def test_settings_of_a_corpus_are_told_from_its_sources():
    arguments = parsed("corpus", "held_out_per_mille=9", "books=lines:a.txt", "--language", "books=de", "--settings")
    config = arguments.configured(arguments)
    assert (config.held_out_per_mille, config.languages, arguments.sources) == (
        9,
        {"books": "de"},
        ["books=lines:a.txt"],
    )
    arguments = parsed("vocab", "corpus", "vocab_sise=9", "--settings")
    with pytest.raises(ConfigurationError, match=r"unknown key 'vocab_sise' \(did you mean 'vocab_size'\?\)"):
        arguments.configured(arguments)
