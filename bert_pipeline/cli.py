"""Data commands of `bert`: download, corpus, vocab, instances, sample, task, convert-triviaqa."""

import argparse
import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from bert_pipeline.configuration import add_configuration, configured, from_mapping, settings_given
from bert_pipeline.errors import UsageError, count_of
from bert_pipeline.progress import Progress
from bert_pipeline.storage import local_path, path_or_url
from bert_pipeline.vocabulary.files import CASED_HELP

if TYPE_CHECKING:
    from bert_pipeline.manifest import Manifest

Subparsers: TypeAlias = "argparse._SubParsersAction[Any]"

_AFTER_DASHES = "Options of Apache Beam follow after `--`, such as `-- --workers 4`."


def add_commands(subparsers: Subparsers) -> None:
    """Add the data commands; each sets `run`, a function of the arguments that returns an exit code.

    Those with a configuration set `configured`, which returns it for the arguments; their parsers are CommandParsers.

    Commands that run on Beam also set `beam_options`, which `bert` fills with the arguments after `--`.
    """
    _add_download(subparsers)
    _add_corpus(subparsers)
    _add_vocab(subparsers)
    _add_instances(subparsers)
    _add_sample(subparsers)
    _add_task(subparsers)
    _add_triviaqa(subparsers)


def add_command(subparsers: Subparsers, name: str, description: str) -> argparse.ArgumentParser:
    """Add a subcommand; the first sentence of its description is its line in `bert --help`."""
    summary = description.partition(". ")[0].removesuffix(".")
    help = summary[0].lower() + summary[1:]
    return cast(argparse.ArgumentParser, subparsers.add_parser(name, help=help, description=description))


def _add_download(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "download",
        "Download a Wikipedia dump or the official task files. An interrupted transfer is resumed, and checksums are "
        "verified. The task files' directory can be passed to --data.",
    )
    parser.add_argument("what", choices=("wikipedia", "glue", "squad", "swag"), help="what to download")
    parser.add_argument("--output", required=True, type=local_path, metavar="DIR")
    parser.add_argument(
        "--from",
        dest="sources",
        action="append",
        default=[],
        metavar="DIR|URL",
        help="asked before the official site: a folder with files downloaded before (task files only), or a mirror",
    )
    parser.add_argument("--wiki", metavar="NAME", help="database name of the Wikipedia (default: enwiki)")
    parser.add_argument("--date", metavar="YYYYMMDD", help="date of its dump (default: latest)")
    parser.set_defaults(run=_run_download)


def _run_download(arguments: argparse.Namespace) -> int:
    from bert_pipeline.download import SITES, download_tasks, download_wikipedia

    if arguments.what == "wikipedia":
        # An option that would be ignored is refused.
        if folders := [source for source in arguments.sources if "://" not in source]:
            raise UsageError(f"--from {folders[0]}: expected the address of a mirror; a dump on disk needs no download")
        dump = (arguments.wiki or "enwiki", arguments.date or "latest", arguments.output)
        with Progress("MB") as progress:
            manifest = download_wikipedia(*dump, sites=(*arguments.sources, *SITES), progress=progress.show)
    else:
        for option in ("wiki", "date"):
            if getattr(arguments, option) is not None:
                raise UsageError(f"--{option} is about Wikipedia dumps; leave it out for {arguments.what}")
        manifest = download_tasks(arguments.what, arguments.output, sources=arguments.sources)

    # Paths alone, one a line, so that a shell can pass them on.
    print(*manifest.file_paths(), sep="\n")
    return 0


def _add_corpus(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "corpus",
        "Turn dumps and texts into documents: the text passages of articles, nothing else. Text, JSON lines and pairs "
        f"may be compressed (.gz, .bz2, .xz, .zst); docs/corpus.md describes every source. {_AFTER_DASHES}",
    )
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="[[NAME=]KIND:]PATH",
        help="a file, a directory or a pattern; KIND is wikipedia (a MediaWiki dump, the default), parquet (columns "
        "text, id, title, language), jsonl (an object with a text per line), lines (a sentence per line, a blank line "
        "between documents), book (running text), text (lines or book, decided by the text), or pairs (two sentences "
        "per line)",
    )
    parser.add_argument("--output", type=path_or_url, metavar="DIR", help="the corpus directory to write, or its URL")
    parser.add_argument(
        "--show", metavar="TITLE", help="print the passages of one article instead of building a corpus"
    )
    parser.add_argument(
        "--language",
        dest="codes",
        action="append",
        metavar="[NAME=]CODE",
        help="language of sources that do not say it (default: en), or of the source NAME, the first part of document "
        "ids, such as dewiki=de; may be repeated",
    )
    left_out = {"language", "languages"}
    add_configuration(parser, "bert_pipeline.corpus.splits:CorpusConfig", special=_languages, left_out=left_out)
    parser.set_defaults(run=_run_corpus, beam_options=[])


def _languages(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of the option --language; move the words among the sources that are settings."""
    from bert_pipeline.corpus.sources import parse_languages
    from bert_pipeline.corpus.splits import CorpusConfig

    # A source may have a name, as in books=jsonl:PATH, but not that of a setting.
    names = tuple(field.name for field in dataclasses.fields(CorpusConfig))
    words = [word for word in arguments.sources or [] if re.split(r"[.=]", word)[0] in names and "=" in word]
    arguments.sources = [word for word in arguments.sources or [] if word not in words]
    arguments.assignments = [*arguments.assignments, *words]
    language, languages = parse_languages(arguments.codes or [])
    settings = {"language": language, "languages": languages}
    return {name: value for name, value in settings.items() if value}


def _run_corpus(arguments: argparse.Namespace) -> int:
    if arguments.show is not None:
        return _show_article(arguments)
    if arguments.output is None:
        raise UsageError(
            "--output DIR is missing: give a directory for the corpus (or --show TITLE to print an article)"
        )
    config = configured(arguments)

    # Imported late: Beam takes seconds to import, and a wrong option should not wait for it.
    from bert_pipeline.corpus.job import build_corpus
    from bert_pipeline.corpus.quality import describe_corpus

    with Progress("pages") as progress:
        manifest = build_corpus(arguments.sources, arguments.output, config, arguments.beam_options, progress.show)
    _report(manifest, "documents", "documents_held_out", "passages", "sentences", "characters_out")
    print(describe_corpus(manifest.counts))
    return 0


def _show_article(arguments: argparse.Namespace) -> int:
    from bert_pipeline.wikipedia.preview import preview_article

    settings = settings_given(arguments)
    templates = settings.pop("templates", "")
    if arguments.output is not None or settings or arguments.beam_options:
        raise UsageError("--show prints one article of a dump; the other options would be ignored")
    if len(arguments.sources) != 1:
        raise UsageError(f"--show needs one dump, found {len(arguments.sources)}")
    print(preview_article(arguments.show, arguments.sources[0].removeprefix("wikipedia:"), templates=templates))
    return 0


def _add_vocab(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "vocab",
        f"Build a vocabulary of exactly the requested size, in BERT's layout. {_AFTER_DASHES}",
    )
    parser.add_argument("corpus", type=path_or_url, metavar="CORPUS", help="a corpus directory")
    parser.add_argument("--output", required=True, type=path_or_url, metavar="DIR")
    parser.add_argument("--cased", action="store_true", help="keep case and accents")
    parser.add_argument(
        "--extend", type=path_or_url, metavar="VOCAB", help="put new words into this vocab.txt's [unused] slots"
    )
    parser.add_argument("--compare", type=path_or_url, metavar="VOCAB", help="measure this vocab.txt as well")
    parser.add_argument(
        "--special-token", action="append", metavar="TOKEN", help="a token of your own, such as [E1]; repeatable"
    )
    _add_weights(parser)
    left_out = {"do_lower_case", "source_weights", "special_tokens"}
    add_configuration(
        parser, "bert_pipeline.vocabulary.wordpiece:VocabularyConfig", special=_special, left_out=left_out
    )
    parser.set_defaults(run=_run_vocab, beam_options=[])


def _add_weights(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--source-weights",
        dest="weights",
        action="extend",
        nargs="+",
        metavar="NAME=W",
        help="how often the training documents of a source count, such as books=2; NAME is the first part of document "
        "ids, and 0 leaves a source out (default: 1 for each)",
    )


def _special(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of the options --source-weights, --cased, --special-token and --masking-mix."""
    from bert_pipeline.corpus.mixture import parse_weights

    settings: dict[str, Any] = {}
    if arguments.weights:
        settings["source_weights"] = parse_weights(arguments.weights)
    if getattr(arguments, "cased", False):
        settings["do_lower_case"] = False
    if getattr(arguments, "special_token", None):
        settings["special_tokens"] = tuple(arguments.special_token)
    if getattr(arguments, "masking_mix", None) is not None:
        settings["masking_mix"] = arguments.masking_mix
    return settings


def _run_vocab(arguments: argparse.Namespace) -> int:
    from bert_pipeline.step import make
    from bert_pipeline.vocabulary.job import build_vocabulary
    from bert_pipeline.vocabulary.quality import describe_scripts

    config = configured(arguments)
    with Progress("shards") as progress:
        others = {"extend_vocabulary": arguments.extend, "compare_vocabulary": arguments.compare}
        options = {"beam_options": arguments.beam_options, "progress": progress.show}
        inputs = {"corpus": arguments.corpus, **others}
        manifest = make("vocabulary", build_vocabulary, arguments.output, config, inputs, **options)
    _report(manifest, "vocab_size", "words", "distinct_words", "added_words", "alphabet")

    # Both are measured on the same documents.
    for title, name in (("this vocabulary", "quality"), ("the reference", "reference_quality")):
        if name in manifest.counts:
            quality = manifest.counts[name]
            print(
                f"on {manifest.counts['quality_on']} documents, {title}: {quality['tokens_per_word']:.3f} tokens per "
                f"word, {quality['unk_share']:.3%} [UNK], {quality['whole_words_share']:.1%} of words whole"
            )
            print(f"  [UNK] by script: {describe_scripts(quality)} tokens")
    for size, quality in manifest.counts.get("quality_by_size", {}).items():
        tokens = f"{quality['tokens_per_word']:.3f} tokens per word"
        print(f"with {int(size):,} entries it would be {tokens}, {quality['unk_share']:.3%} [UNK]")
    return 0


def _add_instances(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "instances",
        "Build pre-training instances from a corpus: sentence pairs or rows of text, with masks if they are static. "
        f"With --show alone, print instances of an existing directory. {_AFTER_DASHES}",
    )
    parser.add_argument(
        "corpus", type=path_or_url, metavar="CORPUS", help="a corpus directory; of instances for --show alone"
    )
    parser.add_argument("--vocab", type=path_or_url, metavar="DIR", help="a directory with vocab.txt and its case")
    parser.add_argument("--cased", dest="case", action=argparse.BooleanOptionalAction, help=CASED_HELP)
    parser.add_argument("--output", type=path_or_url, metavar="DIR")
    _add_weights(parser)
    parser.add_argument(
        "--masking-mix",
        metavar="MASK/SAME/RND",
        help="percentages of [MASK], same and random (default: 80/10/10; the paper's others: 100/0/0, 80/0/20, "
        "80/20/0, 0/20/80, 0/0/100)",
    )
    parser.add_argument("--show", type=int, metavar="N", help="print N instances as text, with masks and labels")
    left_out = {"source_weights"}
    add_configuration(parser, "bert_pipeline.instances.pairs:InstancesConfig", special=_special, left_out=left_out)
    parser.set_defaults(run=_run_instances, beam_options=[])


def _run_instances(arguments: argparse.Namespace) -> int:
    from bert_pipeline.instances.masking import MaskingConfig
    from bert_pipeline.instances.pairs import InstancesConfig

    if arguments.show is not None and arguments.show < 1:
        raise UsageError(f"--show {arguments.show}: expected a number of instances, 1 or more")
    # `--show` alone reads an existing directory, and needs no vocabulary.
    if arguments.show is not None and arguments.output is None and arguments.vocab is None:
        settings = settings_given(arguments) | ({} if arguments.case is None else {"cased": arguments.case})
        if settings or arguments.beam_options:
            raise UsageError(f"--show alone only prints, so {', '.join(settings) or 'Beam options'} would be ignored")
        return _show_instances(arguments.corpus, arguments.show)
    if arguments.vocab is None or arguments.output is None:
        missing = "--vocab DIR" if arguments.vocab is None else "--output DIR"
        raise UsageError(f"{missing} is missing: instances need a corpus, a vocabulary and an output directory")
    # Whether masks are static follows from the format too, so the other settings are resolved first.
    of_masks = {"masking_mix", *(field.name for field in dataclasses.fields(MaskingConfig))}
    others = {name: value for name, value in settings_given(arguments).items() if name not in of_masks}
    ignored = sorted(name for name in of_masks if getattr(arguments, name) is not None)
    if ignored and not from_mapping(InstancesConfig, others, where="").has_static_masks:
        raise UsageError(
            f"{', '.join('--' + name.replace('_', '-') for name in ignored)}: masks are dynamic, drawn in training; "
            "ask for --masking static, or set this in the pre-training's configuration"
        )
    config = configured(arguments)
    from bert_pipeline.instances.job import build_instances
    from bert_pipeline.step import make
    from bert_pipeline.vocabulary.tokenizer import Tokenizer

    if arguments.case is not None:  # instances that are reused are not compared with it
        Tokenizer.from_directory(arguments.vocab, cased=arguments.case).check_case(arguments.case, arguments.vocab)
    with Progress("shards") as progress:
        inputs = {"corpus": arguments.corpus, "vocabulary": arguments.vocab}
        options = {"beam_options": arguments.beam_options, "progress": progress.show, "cased": arguments.case}
        manifest = make("instances", build_instances, arguments.output, config, inputs, **options)
    _report(manifest, "documents", "instances", "tokens", "random_next")
    return _show_instances(arguments.output, arguments.show) if arguments.show else 0


def _show_instances(directory: Path, count: int) -> int:
    from bert_pipeline.instances.job import show_instances

    for text in show_instances(directory, count):
        print(text)
    return 0


def _add_sample(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "sample",
        "Generate the sample: an invented encyclopedia as a dump, and the files of every task about it.",
    )
    parser.add_argument("--output", required=True, type=local_path, metavar="DIR")
    parser.add_argument(
        "--seed", type=int, default=1, metavar="N", help="seed of the encyclopedia (default: %(default)s)"
    )
    parser.add_argument("--num-articles", type=int, default=1200, metavar="N", help="default: %(default)s")
    parser.set_defaults(run=_run_sample)


def _run_sample(arguments: argparse.Namespace) -> int:
    from bert_pipeline.sample import generate_sample

    _report(generate_sample(arguments.output, seed=arguments.seed, num_articles=arguments.num_articles))
    return 0


def _add_task(subparsers: Subparsers) -> None:
    description = "Describe a task of your own: `bert task init FILE` writes the YAML file that `bert finetune` takes."
    parser = add_command(subparsers, "task", description)
    parser.add_argument("action", choices=("init",), help="write the description of a training file")
    parser.add_argument("file", type=local_path, metavar="FILE", help="CSV, TSV, JSON lines, Parquet, CoNLL columns")
    parser.add_argument("--output", type=local_path, metavar="FILE", help="default: beside FILE, by its folder's name")
    parser.add_argument("--text", action="append", default=[], metavar="COLUMN", help="the texts; twice for a pair")
    parser.add_argument("--label", action="append", default=[], metavar="COLUMN", help="the labels; several of 0 and 1")
    parser.add_argument("--kind", choices=("classification", "regression"), default="", help="if labels are numbers")
    parser.set_defaults(run=_run_task)


def _run_task(arguments: argparse.Namespace) -> int:
    from bert_pipeline.tasks.describe import describe_task

    output, lines = describe_task(arguments.file, arguments.output, arguments.text, arguments.label, arguments.kind)
    print(output, *lines, sep="\n")
    return 0


def _add_triviaqa(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "convert-triviaqa",
        "Convert TriviaQA's Wikipedia part to SQuAD's form, for the fine-tuning that precedes SQuAD's in the paper. A "
        "context is the start of a document that contains an answer.",
    )
    parser.add_argument("questions", type=local_path, metavar="FILE", help="wikipedia-train.json")
    parser.add_argument(
        "--evidence", required=True, type=local_path, metavar="DIR", help="the documents: evidence/wikipedia"
    )
    parser.add_argument("--output", required=True, type=local_path, metavar="FILE", help="train.json")
    parser.set_defaults(run=_run_triviaqa)


def _run_triviaqa(arguments: argparse.Namespace) -> int:
    from bert_pipeline.tasks.triviaqa import convert_triviaqa

    counts = convert_triviaqa(arguments.questions, arguments.evidence, arguments.output)
    print(f"{arguments.output}: {', '.join(f'{count:,} {what}' for what, count in counts.items())}")
    return 0


def _report(manifest: "Manifest", *names: str) -> None:
    """Print the path of the result and its main counts."""
    counts = ", ".join(
        count_of(manifest.counts[name], name.replace("_", " ")) for name in names if name in manifest.counts
    )
    print(f"{manifest.directory}: {counts or f'{len(manifest.files)} files'}")
