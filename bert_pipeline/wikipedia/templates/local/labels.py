"""What other Wikipedias write before foreign words: {{lang-en|London}} is "англ. London" in the Russian one.

By the language of the wiki: the form, and its names of the languages that its articles quote most; a language that is
not here, and a wiki that is not, shows the words alone.
"""

FORMS = {
    "bg": "на {name}: {text}",
    "de": "{name} {text}",
    "ja": "{name}: {text}",
    "nl": "{name}: {text}",
    "pt": "em {name}: {text}",
    "ru": "{name} {text}",
    "sv": "{name}: {text}",
    "uk": "{name} {text}",
    "zh": "{name}：{text}",
}

NAMES = {
    "bg": """
        en английски, de немски, fr френски, la латински, el гръцки, grc старогръцки, ru руски, it италиански,
        es испански, ja японски, tr турски, sr сръбски, mk македонски, ar арабски, he иврит, pl полски, ro румънски
    """,
    "de": """
        ar arabisch, bg bulgarisch, cs tschechisch, da dänisch, el griechisch, en englisch, es spanisch, fa persisch,
        fr französisch, grc altgriechisch, he hebräisch, hr kroatisch, hu ungarisch, it italienisch, ja japanisch,
        ko koreanisch, la lateinisch, nl niederländisch, no norwegisch, pl polnisch, pt portugiesisch, ro rumänisch,
        ru russisch, sk slowakisch, sl slowenisch, sr serbisch, sv schwedisch, tr türkisch, uk ukrainisch, zh chinesisch
    """,
    "ja": """
        en 英語, de ドイツ語, fr フランス語, la ラテン語, el ギリシア語, grc 古代ギリシャ語, ru ロシア語, it イタリア語,
        es スペイン語, ko 朝鮮語, zh 中国語, pt ポルトガル語, nl オランダ語, ar アラビア語, he ヘブライ語,
        en-short 英, de-short 独, fr-short 仏, la-short 羅, it-short 伊, es-short 西, ru-short 露
    """,
    "nl": """
        en Engels, de Duits, fr Frans, la Latijn, el Grieks, grc Oudgrieks, ru Russisch, it Italiaans, es Spaans
    """,
    "pt": """
        en inglês, de alemão, fr francês, la latim, el grego, ru russo, it italiano, es castelhano, ar árabe
    """,
    "ru": """
        en англ., de нем., fr фр., la лат., el греч., grc др.-греч., it итал., es исп., uk укр., be белор., pl польск.,
        ja яп., ko кор., tr тур., ar араб., he ивр., pt порт., nl нидерл., sv швед., fi фин., cs чеш., bg болг.,
        sr серб., hu венг.
    """,
    "sv": """
        en engelska, de tyska, fr franska, la latin, el grekiska, ru ryska, it italienska, es spanska, fi finska
    """,
    "uk": """
        en англ., de нім., fr фр., la лат., el грец., grc дав.-гр., it італ., es ісп., ru рос., be біл., pl пол.,
        ja яп., tr тур., ar араб., he івр., pt порт., nl нід., sv швед., fi фін., cs чес., bg болг., sr серб., hu угор.
    """,
    "zh": """
        en 英语, de 德语, fr 法语, la 拉丁语, el 希腊语, grc 古希腊语, ru 俄语, it 意大利语, es 西班牙语, ja 日语,
        ko 韩语, pt 葡萄牙语, nl 荷兰语, ar 阿拉伯语, he 希伯来语, vi 越南语
    """,
}


def labelled_forms(language: str) -> dict[str, str]:
    """Code of a language -> form with its name filled in: {"en": "англ. {text}"}."""
    entries = (entry.split(maxsplit=1) for entry in NAMES.get(language, "").split(",") if entry.strip())
    return {code: FORMS[language].replace("{name}", name.strip()) for code, name in entries}
