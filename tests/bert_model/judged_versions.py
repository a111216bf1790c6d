"""Scores and versions as the promotion gates see them, made up for the tests."""

from bert_model.registry.versions import FINETUNED, RegisteredVersion, TaskScore, Version


def task_score(task="sst2", mean=80.0, num_seeds=3, **changes):
    values = {
        "task": task,
        "metric": f"{task}/dev/accuracy",
        "mean": mean,
        "sd": 0.0,
        "by_seed": dict.fromkeys(range(num_seeds), mean),
        "num_examples": 10_000_000,  # so that no difference is noise
        "data_sha256": "t" * 64,
        "dev_sha256": "d" * 64,
        "configuration_sha256": "c" * 64,
        "degenerate": False,
        "version": 1,
    }
    return TaskScore(**{**values, **changes})


def judged_version(*scores, version=2, kind=FINETUNED, license="Apache-2.0", rolled_back=False, **document):
    tags = {"kind": kind, "license": license, "rolled_back": str(rolled_back).lower()}
    return RegisteredVersion(name="bert-tiny", version=version, tags=tags, document=Version(**document), scores=scores)
