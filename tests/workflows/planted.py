"""Secrets planted in the environment, and a search for them in the output of a run."""

from pathlib import Path
from urllib.parse import quote

SECRETS = {
    "MLFLOW_TRACKING_USERNAME": "planted-user-3f81",
    "MLFLOW_TRACKING_PASSWORD": "planted-tracking-77b0",
    "MLFLOW_TRACKING_TOKEN": "planted-bearer-a5d2",
    "BERT_FAILURE_WEBHOOK": "http://127.0.0.1:9/services/planted-webhook-e94c",
    "PGPASSWORD": "planted-postgres-18f3",
    "BERT_POSTGRES_PASSWORD": "planted-dagster-postgres-6d0e",
    "HF_TOKEN": "planted-hub-c0de",
    "AWS_SECRET_ACCESS_KEY": "planted-bucket-42aa",
}
"""Environment variables that hold secrets in a real installation, with values that occur nowhere else."""


def leaks(directory: Path, words: list[str]) -> list[str]:
    """Return the words found in files below a directory, including databases and logs, plain or URL-quoted."""
    wanted = {form.encode() for word in words for form in (word, quote(word, safe=""))}
    found = []
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            found += [f"{path}: {word.decode()}" for word in sorted(wanted) if word in data]
    return found
