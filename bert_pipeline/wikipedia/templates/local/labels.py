"""What other Wikipedias write before foreign words: {{lang-en|London}} is "англ. London" in the Russian one.

By the language of the wiki: the form, and its names of the languages that its articles quote most; a language that is
not here, and a wiki that is not, shows the words alone.
"""

FORMS = {
    "bg": "на {name}: {text}",
    "de": "{name} {text}",
    "es": "en {name}: {text}",
    "it": "in {name} {text}",
    "ja": "{name}: {text}",
    "ko": "{name}: {text}",
    "nl": "{name}: {text}",
    "pl": "{name} {text}",
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
    "es": """
        en inglés, de alemán, fr francés, la latín, el griego, grc griego antiguo, ru ruso, it italiano, pt portugués,
        ja japonés, ko coreano, zh chino, ar árabe, he hebreo, ca catalán, eu euskera, gl gallego, nl neerlandés,
        pl polaco, sv sueco, tr turco, uk ucraniano, hu húngaro, cs checo, ro rumano, qu quechua, fa persa, ga irlandés
    """,
    "it": """
        en inglese, de tedesco, fr francese, la latino, el greco, grc greco antico, ru russo, es spagnolo,
        pt portoghese, ja giapponese, ko coreano, zh cinese, ar arabo, he ebraico, ca catalano, nl olandese, pl polacco,
        sv svedese, tr turco, uk ucraino, hu ungherese, cs ceco, ro rumeno, sl sloveno, hr croato, sr serbo, fa persiano
    """,
    "ja": """
        en 英語, de ドイツ語, fr フランス語, la ラテン語, el ギリシア語, grc 古代ギリシャ語, ru ロシア語, it イタリア語,
        es スペイン語, ko 朝鮮語, zh 中国語, pt ポルトガル語, nl オランダ語, ar アラビア語, he ヘブライ語,
        sv スウェーデン語, fi フィンランド語, da デンマーク語, no ノルウェー語, pl ポーランド語, cs チェコ語,
        hu ハンガリー語, ro ルーマニア語,
        uk ウクライナ語, tr トルコ語, fa ペルシア語, hi ヒンディー語, th タイ語, vi ベトナム語, ca カタルーニャ語,
        en-short 英, de-short 独, fr-short 仏, la-short 羅, it-short 伊, es-short 西, ru-short 露
    """,
    "ko": """
        en 영어, de 독일어, fr 프랑스어, la 라틴어, el 그리스어, grc 고대 그리스어, ru 러시아어, it 이탈리아어,
        es 스페인어, ja 일본어, zh 중국어, pt 포르투갈어, nl 네덜란드어, ar 아랍어, he 히브리어, vi 베트남어,
        pl 폴란드어, uk 우크라이나어
    """,
    "nl": """
        en Engels, de Duits, fr Frans, la Latijn, el Grieks, grc Oudgrieks, ru Russisch, it Italiaans, es Spaans,
        pt Portugees, ja Japans, zh Chinees, ko Koreaans, ar Arabisch, he Hebreeuws, tr Turks, pl Pools, hu Hongaars,
        cs Tsjechisch, sv Zweeds, da Deens, no Noors, fi Fins, uk Oekraïens
    """,
    "pl": """
        en ang., de niem., fr fr., la łac., el gr., ru ros., it wł., es hiszp., uk ukr., be biał., cs czes., sk słow.,
        ja jap., zh chiń., ko kor., pt port., nl niderl., sv szw., hu węg., ro rum., tr tur., ar arab., he hebr.,
        lt lit.
    """,
    "pt": """
        en inglês, de alemão, fr francês, la latim, el grego, ru russo, it italiano, es castelhano, ar árabe,
        ja japonês, zh chinês, ko coreano, nl neerlandês, sv sueco, he hebraico, ca catalão, hu húngaro,
        uk ucraniano, tr turco
    """,
    "ru": """
        en англ., de нем., fr фр., la лат., el греч., grc др.-греч., it итал., es исп., uk укр., be белор., pl польск.,
        ja яп., ko кор., tr тур., ar араб., he ивр., pt порт., nl нидерл., sv швед., fi фин., cs чеш., bg болг.,
        sr серб., hu венг., zh кит., fa перс., hy арм., ka груз., lt лит., lv латыш., et эст., ro рум., kk каз.,
        az азерб., uz узб., tt тат., sk словацк., hr хорв., da дат., no норв., ca кат., vi вьетн.
    """,
    "sv": """
        en engelska, de tyska, fr franska, la latin, el grekiska, ru ryska, it italienska, es spanska, fi finska,
        pt portugisiska, nl nederländska, da danska, no norska, pl polska, cs tjeckiska, hu ungerska, uk ukrainska,
        ja japanska, zh kinesiska, ko koreanska, ar arabiska, he hebreiska, tr turkiska
    """,
    "uk": """
        en англ., de нім., fr фр., la лат., el грец., grc дав.-гр., it італ., es ісп., ru рос., be біл., pl пол.,
        ja яп., tr тур., ar араб., he івр., pt порт., nl нід., sv швед., fi фін., cs чес., bg болг., sr серб., hu угор.
    """,
    "zh": """
        en 英语, de 德语, fr 法语, la 拉丁语, el 希腊语, grc 古希腊语, ru 俄语, it 意大利语, es 西班牙语, ja 日语,
        ko 韩语, pt 葡萄牙语, nl 荷兰语, ar 阿拉伯语, he 希伯来语, vi 越南语, th 泰语, sv 瑞典语, da 丹麦语,
        no 挪威语, fi 芬兰语, pl 波兰语, cs 捷克语, hu 匈牙利语, uk 乌克兰语, tr 土耳其语, fa 波斯语, ca 加泰罗尼亚语
    """,
}


def labelled_forms(language: str) -> dict[str, str]:
    """Code of a language -> form with its name filled in: {"en": "англ. {text}"}."""
    entries = (entry.split(maxsplit=1) for entry in NAMES.get(language, "").split(",") if entry.strip())
    return {code: FORMS[language].replace("{name}", name.strip()) for code, name in entries}
