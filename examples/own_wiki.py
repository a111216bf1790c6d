"""Your own BERT, from a wiki's dump to a model that answers: the whole path in the Python API, to read and to run.

    python examples/own_wiki.py                                     # a generated wiki and its tasks: minutes
    python examples/own_wiki.py simplewiki.xml.bz2 --preset cpu-3h --task stsb --files glue --license cc-by-sa-4.0

Each step publishes a directory, complete or not at all. Run it again after an interruption: finished directories are
reused, the training and the fine-tuning resume.
"""

import argparse
import dataclasses
import logging
from pathlib import Path

from bert_model.finetuning.finetune import finetune
from bert_model.inference.predict import answer_inputs, load_predictor
from bert_model.kinds import kind_of
from bert_model.presets import load_preset, with_phases_in
from bert_model.pretraining.run import pretrain
from bert_model.registry.operations import default_name, promote, register
from bert_model.registry.resolve import resolve_model
from bert_model.zero_shot.exam import take_exam
from bert_model.zero_shot.result import exam_table
from bert_pipeline.corpus.job import build_corpus
from bert_pipeline.exam.job import prepared_exam
from bert_pipeline.exam.ngrams import NGRAM_BASELINE_NAME
from bert_pipeline.exam.pairs import read_pairs_of
from bert_pipeline.instances.job import build_instances
from bert_pipeline.sample import generate_sample
from bert_pipeline.step import make
from bert_pipeline.tasks.task import load_task_data
from bert_pipeline.vocabulary.job import build_vocabulary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dump", nargs="?", type=Path, help="a MediaWiki dump; by default one is generated")
    parser.add_argument("--preset", default="demo", help="a preset's name, or your YAML file (default: demo)")
    parser.add_argument("--task", default="sst2", help="what to fine-tune on (default: sst2)")
    parser.add_argument("--files", type=Path, help="the folder of its files; generated with the dump")
    parser.add_argument("--license", default="", help="of the dump's text: without one, no model becomes champion")
    parser.add_argument("--output", type=Path, default=Path("own_wiki"), help="folder of all results")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    preset, out = load_preset(arguments.preset), arguments.output
    options = preset.beam_arguments

    dump, files = arguments.dump, arguments.files
    if dump is None:
        sample = generate_sample(out / "dump", num_articles=preset.sample.num_articles).path
        (dump,), files = sample.glob("*.xml.bz2"), files or sample / "glue"

    # 1. The dump's prose: articles without lists, tables and headers, each with its sentences.
    corpus = out / "corpus"
    if not corpus.exists():
        build_corpus([str(dump)], corpus, preset.corpus, options)

    # 2. The vocabulary of word pieces, and the instances: pairs of segments of each phase's length.
    vocabulary = out / "vocabulary"
    make("vocabulary", build_vocabulary, vocabulary, preset.vocabulary, {"corpus": corpus}, beam_options=options)
    instances = {length: out / f"instances-{length}" for length in preset.sequence_lengths}
    for length, directory in instances.items():
        settings = dataclasses.replace(preset.instances, max_seq_length=length)
        inputs = {"corpus": corpus, "vocabulary": vocabulary}
        make("instances", build_instances, directory, settings, inputs, beam_options=options)

    # 3. Pre-training in this process; with several, `torchrun -m bert_model.pretraining` does the same.
    model = pretrain(with_phases_in(preset.pretraining, instances), out / "training", resume=True).model
    if model is None:
        raise SystemExit("stopped; run it again to continue")

    # 4. What the model knows before it has seen a label: of two sentences from the corpus' held-out documents, it
    #    should prefer the one that nobody has changed.
    exam = prepared_exam(corpus, out / "exams")
    pairs = read_pairs_of(exam, "reporting")
    print(exam_table(take_exam(model, pairs, ngram_baseline=exam / NGRAM_BASELINE_NAME)))

    # 5. Fine-tuning: a small search, scored on dev by the task's official metric.
    data = load_task_data(arguments.task, files)
    finetune(data, model, out / arguments.task, preset.finetuning.for_task(arguments.task))

    # 6. The registry: a candidate becomes champion if it passes every gate, such as being better than chance.
    name = default_name(out / arguments.task)
    register(out / arguments.task, name, tags={"license": arguments.license} if arguments.license else {})
    decision = promote(name)
    print(decision.table())

    # 7. The registered model answers, as `mlflow models serve` does over HTTP.
    reference = f"models:/{name}@{'champion' if decision.promoted else 'candidate'}"
    predictor = load_predictor(arguments.task, [resolve_model(reference)])
    rows = [kind_of(data.task).fields(example) for example in next(iter(data.dev.values()))[:3]]
    for row, answer in zip(rows, answer_inputs(predictor, rows)):
        print(reference, row, answer)


if __name__ == "__main__":  # the jobs start worker processes, which import this script
    main()
