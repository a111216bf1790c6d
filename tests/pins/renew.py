"""`python -m tests.pins.renew [NAME…]`: write the pins, all or those named, as the present code makes them."""

import sys
import tempfile
from pathlib import Path

from tests.pins.test_pins import DATA, PINS

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:] or PINS:
            (DATA / name).write_text(PINS[name](Path(folder)), encoding="utf-8")
            print(f"written: {DATA / name}; read the difference before you commit it")
