"""What a local worker process runs: Beam's harness, without its chatter on standard error."""

import logging
import sys
from collections.abc import Sequence


def main(argv: Sequence[str]) -> None:
    """Run Beam's worker; its connection to the job stands in the environment."""
    # A handler must be there before Beam is imported: it logs while it is, and would install one that prints all.
    logging.getLogger().addHandler(logging.NullHandler())
    from apache_beam.runners.worker import sdk_worker_main

    logging.getLogger("apache_beam").setLevel(logging.WARNING)
    sdk_worker_main.main(argv)


if __name__ == "__main__":
    main(sys.argv)
