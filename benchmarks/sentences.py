"""Sentence segmentation: accuracy on annotated cases, and speed, of the candidate libraries.

`python -m benchmarks.sentences CASES TEXT`: CASES in the format of sentencex's own tests (text, a line "---", one
sentence per line; cases separated by "==="), TEXT any running English text.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.harness import PeerEnvironment, describe_machine, markdown_table, program, working_directory
from bert_pipeline.wikipedia.sentences import split_sentences

PEERS = ("blingfire", "pysbd")
NEEDED = ("numpy",)
"""Imported by blingfire, but not among its requirements."""

_PROGRAM = """
import json, sys, time
cases, text, name = json.load(sys.stdin)
if name == "pysbd":
    import pysbd
    split = pysbd.Segmenter(language="en", clean=False).segment
else:
    import blingfire
    split = lambda text: blingfire.text_to_sentences(text).split("\\n")
found = [split(case) for case in cases]
start = time.process_time()
for paragraph in text:
    split(paragraph)
print(json.dumps([found, time.process_time() - start]))
"""


def read_cases(path: Path) -> list[tuple[str, list[str]]]:
    """Return the text and the expected sentences of each case."""
    cases = []
    for block in path.read_text(encoding="utf-8").split("\n===\n"):
        lines = [line for line in block.strip("\n").split("\n") if not line.startswith("# ")]
        text, _, expected = "\n".join(lines).partition("\n---\n")
        if expected:
            cases.append((text, [line.strip() for line in expected.strip().split("\n")]))
    return cases


def run_ours(texts: Sequence[str], paragraphs: Sequence[str]) -> tuple[list[list[str]], float]:
    """Return the sentences of each text, and the processor seconds for the paragraphs."""
    found = [split_sentences(text, "en") for text in texts]
    start = time.process_time()
    for paragraph in paragraphs:
        split_sentences(paragraph, "en")
    return found, time.process_time() - start


def run_peer(name: str, peer: PeerEnvironment) -> Callable[..., tuple[list[list[str]], float]]:
    """Return a function like `run_ours` for a library in its own environment."""

    def run(texts: Sequence[str], paragraphs: Sequence[str]) -> tuple[list[list[str]], float]:
        document = json.dumps([texts, paragraphs, name])
        done = subprocess.run([peer.python, "-c", _PROGRAM], input=document, capture_output=True, text=True, check=True)
        found, seconds = json.loads(done.stdout)
        return found, seconds

    return run


def render(cases: Sequence[tuple[str, list[str]]], paragraphs: Sequence[str], peer: PeerEnvironment) -> str:
    """Return the table, the most accurate first."""
    size = _megabytes(paragraphs)
    contestants = {"sentencex": run_ours, **({} if peer.problem else {name: run_peer(name, peer) for name in PEERS})}
    rows = []
    for name, run in contestants.items():
        # pysbd is hundreds of times slower: a twentieth of the text is enough for its rate.
        measured = paragraphs[: len(paragraphs) // 20] if name == "pysbd" else paragraphs
        found, seconds = run([text for text, _ in cases], measured)
        rate = _megabytes(measured) / max(seconds, 1e-6)
        correct = sum(
            [part.strip() for part in parts if part.strip()] == expected for parts, (_, expected) in zip(found, cases)
        )
        title = f"{name} {peer.versions.get(name, '')}".rstrip()
        rows.append((correct, [title, f"{correct} of {len(cases)}", f"{rate:.1f}"]))
    header = ("library", "cases as marked", f"MB/s of {size:.1f} MB of English")
    return markdown_table(header, [cells for _, cells in sorted(rows, reverse=True)], rule=["---"] * 3)


def _megabytes(paragraphs: Sequence[str]) -> float:
    return sum(len(paragraph.encode()) for paragraph in paragraphs) / 1e6


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = program("sentences", __doc__)
    parser.add_argument("cases", type=Path, metavar="CASES")
    parser.add_argument("text", type=Path, metavar="TEXT")
    args = parser.parse_args(arguments)
    peer = PeerEnvironment(working_directory("sentences") / "environment", (*PEERS, *NEEDED))
    if peer.problem:
        print(f"the peers could not be installed: {peer.problem}", file=sys.stderr)
    paragraphs = [line for line in args.text.read_text(encoding="utf-8").split("\n") if line.strip()]
    print(describe_machine(("sentencex",)))
    print(render(read_cases(args.cases), paragraphs, peer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
