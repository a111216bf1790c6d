"""English names of languages, as in {{lang-xx}} of the English Wikipedia, and codes of Wikipedias."""

_ROWS = """
aa Afar|ab Abkhazian|af Afrikaans|ain Ainu|ak Akan|akk Akkadian|akz Alabama|ale Aleut|aln Gheg Albanian
als Tosk Albanian|am Amharic|an Aragonese|ang Old English|ar Arabic|arc Aramaic|arn Mapuche|ary Moroccan Arabic
arz Egyptian Arabic|as Assamese|ast Asturian|av Avar|ay Aymara|az Azerbaijani|ba Bashkir|bal Balochi|ban Balinese
bar Bavarian|be Belarusian|ber Berber|bg Bulgarian|bh Bihari|bi Bislama|bm Bambara|bn Bengali|bo Standard Tibetan
br Breton|brh Brahui|bs Bosnian|bua Buryat|ca Catalan|ce Chechen|ceb Cebuano|ch Chamorro|cho Choctaw|chr Cherokee
chy Cheyenne|ckb Central Kurdish|cmn Mandarin|co Corsican|cop Coptic|cr Cree|crh Crimean Tatar|cs Czech|csb Kashubian
cu Church Slavonic|cv Chuvash|cy Welsh|da Danish|de German|de-at Austrian German|de-ch Swiss Standard German
dsb Lower Sorbian|dv Maldivian|dz Dzongkha|ee Ewe|egy Ancient Egyptian|el Greek|ell Greek|en English
enm Middle English|eo Esperanto|es Spanish|et Estonian|ett Etruscan|eu Basque|ext Extremaduran|fa Persian|ff Fula
fi Finnish|fil Filipino|fj Fijian|fo Faroese|fr French|frk Frankish|frm Middle French|fro Old French
frp Franco-Provençal|frr North Frisian|frs East Frisian Low Saxon|fur Friulian|fy West Frisian|ga Irish|gag Gagauz
gd Scottish Gaelic|gem Germanic|gez Ge'ez|gl Galician|gmh Middle High German|gn Guarani|goh Old High German|got Gothic
grc Ancient Greek|grc-gre Greek|grc-x-koine Koine Greek|gsw Alemannic German|gu Gujarati|gv Manx|ha Hausa|hak Hakka
haw Hawaiian|hbo Biblical Hebrew|he Hebrew|hi Hindi|hif Fiji Hindi|hit Hittite|hmn Hmong|ho Hiri Motu|hr Croatian
hsb Upper Sorbian|ht Haitian Creole|hu Hungarian|hy Armenian|hyw Western Armenian|hz Herero|ia Interlingua|iba Iban
id Indonesian|ie Interlingue|ig Igbo|ilo Ilocano|inh Ingush|io Ido|is Icelandic|it Italian|iu Inuktitut|ja Japanese
jbo Lojban|jv Javanese|ka Georgian|kaa Karakalpak|kab Kabyle|kbd Kabardian|kg Kongo|ki Kikuyu|kj Kwanyama|kk Kazakh
kl Greenlandic|km Khmer|kn Kannada|ko Korean|kok Konkani|krc Karachay-Balkar|krl Karelian|ks Kashmiri|ku Kurdish
kv Komi|kw Cornish|ky Kyrgyz|la Latin|lad Judaeo-Spanish|lb Luxembourgish|lez Lezgian|lg Luganda|li Limburgish
lij Ligurian|lld Ladin|lmo Lombard|ln Lingala|lo Lao|lt Lithuanian|ltg Latgalian|lv Latvian|lzz Laz|mad Madurese
mai Maithili|mdf Moksha|men Mende|mg Malagasy|mh Marshallese|mi Māori|min Minangkabau|mk Macedonian|ml Malayalam
mn Mongolian|mnc Manchu|mni Meitei|mo Moldovan|moh Mohawk|mr Marathi|ms Malay|mt Maltese|mus Muscogee|my Burmese
myn Mayan|myv Erzya|na Nauruan|nah Nahuatl|nan Min Nan|nap Neapolitan|nb Norwegian Bokmål|nd Northern Ndebele
nds Low German|nds-nl Dutch Low Saxon|ne Nepali|new Newar|ng Ndonga|nl Dutch|nn Norwegian Nynorsk|no Norwegian
nog Nogai|non Old Norse|nr Southern Ndebele|nrf Norman|nso Northern Sotho|nv Navajo|ny Chewa|oc Occitan|oj Ojibwe
om Oromo|or Odia|orv Old East Slavic|os Ossetian|osx Old Saxon|ota Ottoman Turkish|pa Punjabi|pag Pangasinan
pal Middle Persian|pam Kapampangan|pap Papiamento|pcd Picard|pdc Pennsylvania German|peo Old Persian|phn Phoenician
pi Pali|pl Polish|pms Piedmontese|pnb Western Punjabi|pnt Pontic Greek|prg Old Prussian|pro Old Occitan|prs Dari
ps Pashto|pt Portuguese|pt-br Brazilian Portuguese|qu Quechua|rap Rapa Nui|rm Romansh|rn Kirundi|ro Romanian
rom Romani|ru Russian|rue Rusyn|rup Aromanian|rus Russian|rw Kinyarwanda|sa Sanskrit|sah Yakut|sat Santali
sc Sardinian|scn Sicilian|sco Scots|sd Sindhi|se Northern Sami|sg Sango|sga Old Irish|sgs Samogitian|sh Serbo-Croatian
si Sinhala|sk Slovak|sl Slovene|sla Slavic|sm Samoan|sma Southern Sami|smn Inari Sami|sms Skolt Sami|sn Shona
so Somali|sq Albanian|sr Serbian|ss Swazi|st Sotho|stq Saterland Frisian|su Sundanese|sux Sumerian|sv Swedish
sw Swahili|syc Classical Syriac|syr Syriac|szl Silesian|ta Tamil|tcy Tulu|te Telugu|tet Tetum|tg Tajik|th Thai
ti Tigrinya|tk Turkmen|tl Tagalog|tlh Klingon|tn Tswana|to Tongan|tpi Tok Pisin|tr Turkish|ts Tsonga|tt Tatar|tw Twi
ty Tahitian|tyv Tuvan|udm Udmurt|ug Uyghur|uk Ukrainian|ur Urdu|uz Uzbek|ve Venda|vec Venetian|vep Veps|vi Vietnamese
vls West Flemish|vo Volapük|vot Votic|vro Võro|wa Walloon|war Waray|wo Wolof|wuu Wu Chinese|wym Vilamovian|xal Kalmyk
xcl Classical Armenian|xh Xhosa|xmf Mingrelian|xno Anglo-Norman|yi Yiddish|yo Yoruba|yua Yucatec Maya|yue Cantonese
za Zhuang|zea Zeelandic|zh Chinese|zu Zulu|zza Zazaki|sr-cyrl Serbian Cyrillic|sr-latn Serbian|uz-latn Uzbek
sr-cyr Serbian Cyrillic|sr-lat Serbian Latin|sh-cyrl Serbo-Croatian Cyrillic|sh-latn Serbo-Croatian Latin
in Indonesian|he-n Hebrew|heb Hebrew|rus-1 Russian|ltc Middle Chinese|och Old Chinese|okm Middle Korean
ojp Old Japanese|sl-si Slovene|mul Multilingual|und Undetermined
"""

LANGUAGE_NAMES = {
    code: name for code, _, name in (entry.partition(" ") for entry in _ROWS.strip().replace("\n", "|").split("|"))
}
"""Code -> name."""

_CODES = """
aa ab ace ady af ak als alt am ami an ang ann anp ar arc ary arz as ast atj av avk awa ay az azb ba ban bar bat-smg
bbc bcl bdr be be-tarask be-x-old bew bg bh bi bjn blk bm bn bo bpy br bs btm bug bxr ca cbk-zam cdo ce ceb ch cho
chr chy ckb co cr crh cs csb cu cv cy da dag de dga din diq dsb dtp dty dv dz ee el eml en eo es et eu ext fa fat
ff fi fiu-vro fj fo fon fr frp frr fur fy ga gag gan gcr gd gl glk gn gom gor got gpe gsw gu guc gur guw gv ha hak
haw he hi hif ho hr hsb ht hu hy hyw hz ia iba id ie ig igl ii ik ilo inh io is it iu ja jam jbo jv ka kaa kab kbd
kbp kcg kg kge ki kj kk kl km kn knc ko koi kr krc ks ksh ku kus kv kw ky la lad lb lbe lez lfn lg li lij lld lmo
ln lo lrc lt ltg lv mad mai map-bms mdf mg mh mhr mi min mk ml mn mni mnw mo mos mr mrj ms mt mus mwl my myv mzn na
nah nap nds nds-nl ne new ng nia nl nn no nov nqo nr nrm nso nup nv ny oc olo om or os pa pag pam pap pcd pcm pdc
pfl pi pih pl pms pnb pnt ps pt pwn qu rm rmy rn ro roa-rup roa-tara rsk ru rue rw sa sah sat sc scn sco sd se sg
sgs sh shi shn si simple sk skr sl sm smn sn so sq sr srn ss st stq su sv sw syl szl szy ta tay tcy tdd te tet tg
th ti tig tk tl tly tn to tokipona tpi tr trv ts tt tum tw ty tyv udm ug uk ur uz ve vec vep vi vls vo vro wa war
wo wuu xal xh xmf yi yo yue za zea zgh zh zh-classical zh-min-nan zh-yue zu
"""

WIKIPEDIA_CODES = frozenset(_CODES.split())
"""Prefixes of links to articles in other languages: https://meta.wikimedia.org/wiki/List_of_Wikipedias"""
