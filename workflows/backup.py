"""`python -m workflows.backup`: Dagster's and MLflow's databases, artifacts and predictions, while they are in use."""

import argparse
import functools
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path

from bert_pipeline.errors import BertError, exit_code_of
from workflows.defs.upkeep import create_backup, parts_elsewhere, restore_backup
from workflows.lib.resources import BertHome


def main(argv: Sequence[str] | None = None) -> int:
    """Create or restore a backup; return 0, or the exit code of the error that is printed."""
    parser = argparse.ArgumentParser(prog="python -m workflows.backup", description=(__doc__ or "").partition(": ")[2])
    subparsers = parser.add_subparsers(dest="command", required=True)
    for name, words in (
        ("create", "write a backup of BERT_HOME into a new directory"),
        ("restore", "make BERT_HOME, which must not hold anything yet, from a backup"),
    ):
        subparser = subparsers.add_parser(name, help=words, description=words)
        subparser.add_argument("directory", type=Path, help="the backup")
    arguments = parser.parse_args(argv)
    return exit_code_of(functools.partial(_run, arguments), "workflows.backup")


def _run(arguments: argparse.Namespace) -> int:
    home = BertHome()
    try:
        if arguments.command == "create":
            manifest = create_backup(home, arguments.directory)
            for sentence in parts_elsewhere(home).values():
                print(sentence, file=sys.stderr)
        else:
            manifest = restore_backup(arguments.directory, home)
    except sqlite3.Error as error:
        raise BertError(str(error)) from error
    written = arguments.directory if arguments.command == "create" else home.path
    size = sum(entry["bytes"] for entry in manifest.files.values())
    print(f"{written}: {len(manifest.files):,} files, {size:,} bytes, of {manifest.provenance['home']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
