"""The published files of the tasks: where they are, and the hashes by which a copy is recognized."""

from typing import NamedTuple

DOWNLOAD_KIND = "task_files"
"""Kind of the artifact that `bert download` writes."""


class RemoteFile(NamedTuple):
    """A file of a fixed content on a site."""

    path: str
    """Path on the site; its last part is the name of the file."""
    size: int
    sha256: str

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


def _remote_files(table: str) -> tuple[RemoteFile, ...]:
    """Parse lines of path, size and sha256."""
    rows = (line.split() for line in table.strip().splitlines())
    return tuple(RemoteFile(path, int(size), sha256) for path, size, sha256 in rows)


OFFICIAL_FILES: dict[str, tuple[str, tuple[RemoteFile, ...]]] = {
    "glue": (
        "https://dl.fbaipublicfiles.com",
        _remote_files("""
glue/data/CoLA.zip 376971 f212fcd832b8f7b435fb991f101abf89f96b933ab400603bf198960dfc32cbff
glue/data/SST-2.zip 7439277 d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa
glue/data/STS-B.zip 802872 e60a6393de5a8b5b9bac5020a1554b54e3691f9d600b775bd131e613ac179c85
glue/data/QQP-clean.zip 41696084 40e7c862c04eb26ee04b67fd900e76c45c6ba8e6d8fab4f8f1f8072a1a3fbae0
glue/data/MNLI.zip 312783507 e7c1d896d26ed6caf700110645df426cc2d8ebf02a5ab743d5a5c68ac1c83633
glue/data/QNLIv2.zip 10627589 e634e78627a29adaecd4f955359b22bf5e70f2cbd93b493f2d624138a0c0e5f5
glue/data/RTE.zip 697150 6bf86de103ecd335f3441bd43574d23fef87ecc695977a63b82d5efb206556ee
glue/data/WNLI.zip 28999 ae0e8e4d16f4d46d4a0a566ec7ecceccfd3fbfaa4a7a4b4e02848c0f2561ac46
glue/data/AX.tsv 222257 0e13510b1bb14436ff7e2ee82338f0efb0133ecf2e73507a697dc210db3f05fd
senteval/senteval_data/msr_paraphrase_train.txt 1047044 60a9b09084528f0673eedee2b69cb941920f0b8cd0eeccefc464a98768457f89
senteval/senteval_data/msr_paraphrase_test.txt 441275 a04e271090879aaba6423d65b94950c089298587d9c084bf9cd7439bd785f784
glue/data/mrpc_dev_ids.tsv 6222 971d7767d81b997fd9060ade0ec23c4fc31cbb226a55d1bd4a1bac474eb81dc7
"""),
    ),
    "squad": (
        "https://rajpurkar.github.io",
        _remote_files("""
SQuAD-explorer/dataset/train-v1.1.json 30288272 3527663986b8295af4f7fcdff1ba1ff3f72d07d61a20f487cb238a6ef92fd955
SQuAD-explorer/dataset/dev-v1.1.json 4854279 95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9
SQuAD-explorer/dataset/train-v2.0.json 42123633 68dcfbb971bd3e96d5b46c7177b16c1a4e7d4bdef19fb204502738552dede002
SQuAD-explorer/dataset/dev-v2.0.json 4370528 80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8
"""),
    ),
    "swag": (
        "https://raw.githubusercontent.com",
        _remote_files("""
rowanz/swagaf/master/data/train.csv 28243333 5748b51126ac255c5a6f26e1ba473b51116d6c822aeb25e63ecba282c9d0e610
rowanz/swagaf/master/data/val.csv 7893588 c0497b2cd7f3e6b7df995524b1853f62285d60d110d659b19545ca80b2903234
rowanz/swagaf/master/data/test.csv 7817885 a689a1a4e892a65ca625c1f0fcf77bcce004b59ad1caeb134ca5ec080a711cb6
"""),
    ),
}
"""Suite -> its official site and files, with the sizes and hashes published in the dataset_infos.json files of
huggingface/datasets and in url_checksums/ of tensorflow/datasets."""
