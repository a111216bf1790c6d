"""The arguments that `bert pretrain` and `python -m bert_model.pretraining` share; parsing them needs no torch."""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments to a parser."""
    parser.add_argument("--config", required=True, metavar="FILE|PRESET", help="YAML file or name of a preset")
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="the training's directory")
    parser.add_argument(
        "--from", dest="start", metavar="MODEL", help="continue from a model: directory, models:/ URI or hub id"
    )
    parser.add_argument(
        "--optimizer-state",
        choices=("fresh", "restored"),
        help="with --from: fresh (the default), or restored from the training's checkpoint that MODEL is",
    )
    parser.add_argument("--resume", action="store_true", help="go on where the training in DIR stopped")
    parser.add_argument("--allow-changes", action="store_true", help="resume although configuration or data changed")
    parser.add_argument("--experiment", default="pretraining", help="name of the MLflow experiment")
    parser.add_argument("--device", default="", choices=("", "cpu", "cuda"), help="cpu or cuda; default: what is there")
    parser.add_argument("assignments", nargs="*", metavar="key=value", help="configuration, such as phases.0.steps=100")
