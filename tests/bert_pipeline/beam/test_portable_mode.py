"""In Beam's portable mode all jobs give the content of the local mode, across process boundaries."""

from pathlib import Path

import pytest
from portable_beam import portable_beam
from small_corpus import make_documents

from bert_pipeline.corpus.job import build_corpus
from bert_pipeline.corpus.splits import CorpusConfig
from bert_pipeline.errors import ArtifactError
from bert_pipeline.instances.job import build_instances
from bert_pipeline.instances.pairs import InstancesConfig
from bert_pipeline.vocabulary.job import build_vocabulary
from bert_pipeline.vocabulary.wordpiece import VocabularyConfig

pytestmark = pytest.mark.slow

CORPUS = CorpusConfig(name="made", shard_bytes=8_000, pages_per_split=10, held_out_per_mille=100)
VOCABULARY = VocabularyConfig(vocab_size=120, num_unused=5)
INSTANCES = InstancesConfig(max_seq_length=32, dupe_factor=2, format="both", max_predictions_per_seq=4)
LOCAL = ["--workers", "1"]


@pytest.fixture(scope="module")
def portable(tmp_path_factory):
    with portable_beam(tmp_path_factory.mktemp("beam")) as options:
        yield options


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    directory = tmp_path_factory.mktemp("texts")
    for seed in (0, 1):
        documents = make_documents(40, seed=seed)
        text = "\n\n".join("\n".join(document.sentences) for document in documents)
        (directory / f"made-{seed}.txt").write_text(text)
    return [f"text:{directory}"]


def test_portable_mode_gives_content_of_local_mode(portable, sources, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # workers run in another directory, so relative paths must be resolved first
    made = {}
    for name, options in (("local", LOCAL), ("portable", portable)):
        home = Path(name)
        made[name] = [
            build_corpus(sources, home / "corpus", CORPUS, options),
            build_vocabulary(home / "corpus", home / "vocabulary", VOCABULARY, options),
            build_instances(home / "corpus", home / "vocabulary", home / "instances", INSTANCES, options),
        ]
    for local, elsewhere in zip(*made.values()):
        assert elsewhere.content == local.content
        assert elsewhere.provenance["workers"] is None
    assert len(made["portable"][0].files) > 2
    assert {name for name in made["portable"][2].files if name.startswith("held_out/")}


def test_damaged_shard_raises_one_sentence_in_portable_mode(portable, sources, tmp_path):
    build_corpus(sources, tmp_path / "corpus", CORPUS, LOCAL)
    shard = tmp_path / "corpus" / "documents-00001.parquet"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    with pytest.raises(ArtifactError, match=r"documents-00001\.parquet: sha256 is") as caught:
        build_vocabulary(tmp_path / "corpus", tmp_path / "vocabulary", VOCABULARY, portable)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]
