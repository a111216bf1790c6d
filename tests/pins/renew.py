"""`python -m tests.pins.renew [--cases] [NAME…]`: write the pins, all or those named, as the present code makes them.

What a step makes is written only if its version is a new one; with `--cases` also otherwise, for pins of more cases.
"""

import sys
import tempfile
from pathlib import Path

from tests.pins.test_pins import DATA, PINS, what_to_do

if __name__ == "__main__":
    names = [name for name in sys.argv[1:] if name != "--cases"]
    with tempfile.TemporaryDirectory() as folder:
        for name in names or PINS:
            pinned, now = (DATA / name).read_text(encoding="utf-8"), PINS[name](Path(folder))
            problem = "" if now == pinned or "--cases" in sys.argv else what_to_do(name, pinned, now)
            if problem:
                sys.exit(problem)
            (DATA / name).write_text(now, encoding="utf-8")
            print(f"written: {DATA / name}; read the difference before you commit it")
