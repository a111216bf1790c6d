"""`python -m workflows.doctor`: what a home needs from its operator, on one page."""

import argparse
import sys
from collections.abc import Sequence

from bert_pipeline.errors import UsageError, exit_code_of
from workflows.lib.doctor import examine, page_of, repair
from workflows.lib.instance import database_errors, open_instance
from workflows.lib.resources import BertHome


def main(argv: Sequence[str] | None = None) -> int:
    """Print the page of BERT_HOME; return 1 if it has a problem."""
    description = "Print what was left behind in BERT_HOME, its settings, versions, disk, last backup and ports, each "
    description += "problem with an exclamation mark."
    parser = argparse.ArgumentParser(prog="python -m workflows.doctor", description=description)
    parser.add_argument("--repair", action="store_true", help="first repair what is safe: see docs/operations.md")
    arguments = parser.parse_args(argv)
    return exit_code_of(lambda: _examine(arguments.repair), "workflows.doctor")


def _examine(is_repaired: bool) -> int:
    home = BertHome()
    if not home.path.is_dir():
        raise UsageError(f"{home.path}: there is no home; set BERT_HOME")
    with database_errors(), open_instance(home) as instance:
        if is_repaired:
            repair(home, instance, print)
        findings = examine(home, instance)
    print(page_of(findings))
    return int(any(finding.is_problem for finding in findings))


if __name__ == "__main__":
    sys.exit(main())
