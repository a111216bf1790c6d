"""What a dump says of its own wiki: database name, language, and the local names of its namespaces."""

import dataclasses
import html
import re

FILE_NAMESPACE = 6
CATEGORY_NAMESPACE = 14

_CANONICAL = {
    -2: "media", -1: "special", 1: "talk", 2: "user", 3: "user talk", 4: "project", 5: "project talk", 6: "file",
    7: "file talk", 8: "mediawiki", 9: "mediawiki talk", 10: "template", 11: "template talk", 12: "help",
    13: "help talk", 14: "category", 15: "category talk",
}  # fmt: skip
"""https://www.mediawiki.org/wiki/Manual:Namespace: the canonical names are understood in every language."""

_FILE_ALIASES = frozenset(
    {"image", "media", "bild", "datei", "fichier", "imagen", "archivo", "immagine", "imagem", "ficheiro", "plik",
     "grafika", "bestand", "afbeelding", "файл", "изображение", "картинка", "зображення", "слика",
     "датотека", "soubor", "kép", "fájl", "tiedosto", "kuva", "fil", "billede", "dosya", "resim", "αρχείο", "εικόνα",
     "تصویر", "پرونده", "ملف", "صورة", "קובץ", "תמונה", "ファイル", "画像", "文件", "檔案", "图像", "圖像", "파일",
     "그림", "tập tin", "hình", "berkas", "gambar"}
)  # fmt: skip
"""Names of the File namespace that stay valid in old pages; exports list the current name only."""

_CATEGORY_ALIASES = frozenset(
    {"kategorie", "catégorie", "categoría", "categoria", "categorie", "kategoria", "kategori", "kategorija",
     "kategória", "kategorio", "kategooria", "luokka", "thể loại", "категория", "категорія", "категорија", "катэгорыя",
     "κατηγορία", "تصنيف", "رده", "קטגוריה", "श्रेणी", "หมวดหมู่", "カテゴリ", "分类", "分類", "분류"}
)  # fmt: skip
"""Local names of the Category namespace, for exports that say nothing of their wiki."""

_NAMESPACE = re.compile(r'<namespace key="(-?\d+)"[^>/]*>([^<]*)</namespace>')
_DATABASE = re.compile(r"<dbname>([^<]*)</dbname>")
_LANGUAGE = re.compile(r'<mediawiki\b[^>]*?\bxml:lang="([^"]*)"')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Site:
    """One wiki, as far as reading its pages needs it."""

    dbname: str
    """"enwiki"; empty where the export does not say (schema versions before 0.8, hand-made files)."""
    language: str
    """"en"; empty where the export does not say."""
    namespaces: dict[str, int]
    """Lower-case local, canonical and old names of namespaces (without the main one) -> number."""

    def namespace_of(self, title: str) -> int:
        """The namespace that a title's prefix names; 0 when it names none ("Alien: Covenant")."""
        prefix, colon, _ = title.partition(":")
        if not colon:
            return 0
        return self.namespaces.get(prefix.replace("_", " ").strip().lower(), 0)


def read_site(header: str) -> Site:
    """Read the head of an export (all that stands before the first page)."""
    namespaces = {name: key for key, name in _CANONICAL.items()}
    namespaces.update(dict.fromkeys(_FILE_ALIASES, FILE_NAMESPACE))
    namespaces.update(dict.fromkeys(_CATEGORY_ALIASES, CATEGORY_NAMESPACE))
    for key, name in _NAMESPACE.findall(header):
        namespaces[html.unescape(name).strip().lower()] = int(key)
    database = _DATABASE.search(header)
    language = _LANGUAGE.search(header)
    return Site(
        dbname=html.unescape(database[1]).strip() if database else "",
        language=language[1].strip() if language else "",
        namespaces=namespaces,
    )
