"""A generated encyclopedia in the MediaWiki export format, and all tasks of the paper about the same invented world."""

from pathlib import Path

from bert_pipeline.errors import ConfigurationError
from bert_pipeline.manifest import Manifest, load_manifest, publishing
from bert_pipeline.sample import ner, squad, swag
from bert_pipeline.sample.articles import write_articles
from bert_pipeline.sample.export import GENERATED_NOTICE, export_pages, write_export
from bert_pipeline.sample.glue import write_glue
from bert_pipeline.sample.splits import make_split
from bert_pipeline.sample.world import World

__all__ = ["GENERATED_NOTICE", "generate_sample"]

MIN_ARTICLES, MAX_ARTICLES = 100, 12_000
"""15 % are organizations, which have at most 1,824 titles: 228 names times eight kinds."""


def generate_sample(output: Path, *, seed: int = 1, num_articles: int = 1200) -> Manifest:
    """Write the sample dump and its task files to `output` as an artifact of kind "sample".

    The content depends on `seed` and `num_articles` alone, to the byte. Raises ConfigurationError for fewer than 100
    articles or more than 12,000, ArtifactError if `output` holds files without a manifest.
    """
    if not MIN_ARTICLES <= num_articles <= MAX_ARTICLES:
        raise ConfigurationError(f"num_articles: found {num_articles}, expected {MIN_ARTICLES} to {MAX_ARTICLES}")
    world = World(seed, num_articles)
    configuration = {"seed": seed, "num_articles": num_articles}
    with publishing(Path(output), kind="sample", configuration=configuration, inputs={}) as draft:
        articles = write_articles(world)
        pages = export_pages(world, articles)
        dump = f"samplewiki-{seed}-pages-articles.xml.bz2"
        write_export(draft.path / dump, pages)
        draft.rows[dump] = len(pages)
        draft.rows |= {f"glue/{name}": rows for name, rows in write_glue(draft.path / "glue", world).items()}
        draft.rows |= _write_tasks(draft.path, world)
        draft.counts |= {"generated": True, "notice": GENERATED_NOTICE, "pages": len(pages), "articles": len(articles)}
    return load_manifest(output, kind="sample")


def _write_tasks(root: Path, world: World) -> dict[str, int]:
    """Write the files of SQuAD, SWAG and CoNLL-2003; return rows by relative path."""
    rows = {}
    for folder in ("squad", "swag", "conll2003"):
        (root / folder).mkdir()
    for version, share in (("1.1", 0.0), ("2.0", 0.4)):
        for name in ("train", "dev"):
            topics = squad.read_topics(make_split(world, f"squad{version}", name), 300, impossible_share=share)
            path = f"squad/{name}-v{version}.json"
            rows[path] = squad.write_squad(root / path, "1.1" if version == "1.1" else "v2.0", topics)
    for file, name, count in (("train", "train", 150), ("val", "dev", 100), ("test", "test", 50)):
        continuations = swag.continuations(make_split(world, "swag", name), count)
        path = f"swag/{file}.csv"
        rows[path] = swag.write_swag(root / path, continuations, labelled=file != "test")
    for file, name in (("train", "train"), ("testa", "dev"), ("testb", "test")):
        path = f"conll2003/eng.{file}"
        rows[path] = ner.write_conll(root / path, ner.documents(make_split(world, "ner", name), 300))
    return rows
