"""The description of a model card fits MLflow; its scores are replaceable."""

import json
import re

import pytest
from judged_versions import task_score

from bert_model.registry.model_card import description_of, model_card, readme_problem, with_scores
from bert_model.registry.versions import Version
from bert_pipeline.manifest import load_manifest, publishing


def test_long_card_is_cut_at_a_line_with_a_note():
    card = "# bert\n\n![curves](curves.png)\n\n" + "a line of configuration\n" * 400
    description = description_of(card)
    assert len(description) <= 5000
    assert description.rstrip().endswith("(The whole card is the artifact model_card.md.)")
    assert "a line of configuration\n\n(The whole" in description
    assert "curves.png" not in description  # the picture is an artifact, which a description cannot show


def test_scores_in_a_card_are_replaced_and_the_rest_is_kept():
    card = "# bert\n\n## Scores\n\nNone yet.\n\n## Data\n\n- a dump\n"
    scored = with_scores(card, [task_score(sd=1.0, majority=50.0)])
    assert re.search(r"\| 80.0 ± 1.0 +\| 50.0 +\|", scored)
    assert scored.endswith("\n\n## Data\n\n- a dump\n")
    assert with_scores(scored, [task_score(sd=1.0, majority=50.0)]) == scored


@pytest.mark.parametrize(
    ("model_type", "title"),
    [("bert", "# m: a pre-trained BERT"), ("modernbert", "# m: a pre-trained encoder of ModernBERT's architecture")],
)
def test_title_names_the_architecture(tmp_path, model_type, title):
    with publishing(tmp_path / "model", kind="pretrained_model", configuration={}, inputs={}) as draft:
        (draft.path / "config.json").write_text(json.dumps({"model_type": model_type}))
    card = model_card("m", load_manifest(tmp_path / "model"), Version(), curves=False)
    assert card.startswith(f"{title}\n")
    # A card that ends before its last section is not whole.
    (tmp_path / "README.md").write_text(card)
    assert readme_problem(tmp_path) is None
    (tmp_path / "README.md").write_text(card.partition("## License")[0])
    assert "is cut off" in (readme_problem(tmp_path) or "")


@pytest.mark.parametrize("objective", ["mlm", "mlm_nsp"])
def test_card_claims_next_sentences_only_of_a_model_that_learned_them(tmp_path, objective):
    with publishing(
        tmp_path / "model", kind="pretrained_model", configuration={"objective": objective}, inputs={}
    ) as d:
        (d.path / "config.json").write_text("{}")
    card = model_card("bert", load_manifest(tmp_path / "model"), Version(), curves=False)
    assert ("judges whether a text follows" in card) == (objective != "mlm")
