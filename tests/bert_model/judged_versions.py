"""Scores and facts of versions as the promotion gates see them, made up for the tests."""

from bert_model.registry.versions import FINETUNED, TaskScore, VersionFacts


def task_score(task="sst2", mean=80.0, **changes):
    values = {
        "task": task,
        "metric": f"{task}/dev/accuracy",
        "mean": mean,
        "sd": 1.0,
        "num_seeds": 3,
        "num_examples": 300,
        "data_sha256": "t" * 64,
        "dev_sha256": "d" * 64,
        "configuration_sha256": "c" * 64,
        "degenerate": False,
        "version": 1,
    }
    return TaskScore(**{**values, **changes})


def version_facts(*scores, version=2, kind=FINETUNED, **changes):
    values = {"name": "bert-tiny", "version": version, "kind": kind, "licence": "Apache-2.0", **changes}
    return VersionFacts(scores=scores, **values)
