"""Names of namespaces and magic words are read from MediaWiki's PHP files."""

import json
import shutil
from pathlib import Path

import pytest

from benchmarks.mediawiki_names import OUTPUT, read_release

MESSAGES = Path(__file__).parents[1] / "data" / "mediawiki"


def test_names_are_read_from_the_message_files_of_a_release(tmp_path):
    messages = tmp_path / "languages" / "messages"
    (tmp_path / "includes" / "language").mkdir(parents=True)
    shutil.copytree(MESSAGES, messages)
    (tmp_path / "includes/Defines.php").write_text("define( 'MW_VERSION', '1.39.17' );")
    (tmp_path / "includes/language/LanguageCode.php").write_text(
        "const DEPRECATED_LANGUAGE_CODE_MAPPING = [\n'als' => 'gsw', // T25215\n];"
    )
    (messages / "MessagesDe_at.php").write_text("<?php\n$fallback = 'de, en';\n")
    content = read_release(tmp_path)
    assert content["version"] == "MediaWiki 1.39.17"
    assert content["renamed"]["als"] == "gsw"
    assert content["languages"]["de"] == {
        "namespaces": {"medium": -2, "datei": 6, "bild": 6},
        "redirects": ["#WEITERLEITUNG", "#l'autre"],
        "switches": ["__INHALTSVERZEICHNIS__"],
        "cased_switches": ["__VERSTECKTE_KATEGORIE__"],
        "words": {"klein": "lc", "lc": "lc"},
    }
    assert content["languages"]["de-at"] == {"fallback": ["de", "en"]}
    english = content["languages"]["en"]
    assert english["namespaces"] == {"file": 6, "file talk": 7, "project": 4, "project talk": 5}
    assert {"__HIDDENCAT__", "__NOTALK__"} <= set(english["cased_switches"])


def test_other_sources_are_refused(tmp_path):
    (tmp_path / "includes" / "language").mkdir(parents=True)
    (tmp_path / "includes/Defines.php").write_text("")
    (tmp_path / "includes/language/LanguageCode.php").write_text("")
    with pytest.raises(ValueError, match="expected that of MediaWiki"):
        read_release(tmp_path)


def test_names_of_four_hundred_languages_are_stored():
    content = json.loads(OUTPUT.read_text(encoding="utf-8"))
    assert content["version"].startswith("MediaWiki 1.")
    with_files = [code for code, names in content["languages"].items() if 6 in names.get("namespaces", {}).values()]
    assert len(content["languages"]) > 400
    assert len(with_files) > 250
