"""The names of countries by their codes: those of ISO 3166-1 and of the Olympic Committee."""

_NAMES = """
    AFG Afghanistan; ALB Albania; DZA ALG Algeria; AND Andorra; AGO ANG Angola; ARG Argentina; ARM Armenia
    AUS Australia; AUT Austria; AZE Azerbaijan; BHS BAH Bahamas; BHR BRN Bahrain; BGD BAN Bangladesh; BRB BAR Barbados
    BLR Belarus; BEL Belgium; BLZ Belize; BEN Benin; BTN BHU Bhutan; BOL Bolivia; BIH Bosnia and Herzegovina
    BWA BOT Botswana; BRA Brazil; BGR BUL Bulgaria; BFA BUR Burkina Faso; BDI Burundi; KHM CAM Cambodia; CMR Cameroon
    CAN Canada; TCD CHA Chad; CHL CHI Chile; CHN PRC China; COL Colombia; COG CGO Republic of the Congo
    CRI CRC Costa Rica; COD Democratic Republic of the Congo; HRV CRO Croatia; CUB Cuba; CYP Cyprus
    CZE Czech Republic; DNK DEN Denmark; DJI Djibouti; DOM Dominican Republic; ECU Ecuador; EGY Egypt
    SLV ESA El Salvador; ERI Eritrea; EST Estonia; ETH Ethiopia; FJI FIJ Fiji; FIN Finland; FRA France; GAB Gabon
    GMB GAM Gambia; GEO Georgia; DEU GER Germany; GDR East Germany; FRG West Germany; GHA Ghana; GRC GRE Greece
    GTM GUA Guatemala; GIN GUI Guinea; GUY Guyana; HTI HAI Haiti; HND HON Honduras; HKG Hong Kong; HUN Hungary
    ISL Iceland; IND India; IDN INA Indonesia; IRN IRI Iran; IRQ Iraq; IRL Ireland; ISR Israel; ITA Italy
    CIV Ivory Coast; JAM Jamaica; JPN Japan; JOR Jordan; KAZ Kazakhstan; KEN Kenya; PRK North Korea; KOR South Korea
    KWT KUW Kuwait; KGZ Kyrgyzstan; LAO Laos; LVA LAT Latvia; LBN LIB Lebanon; LBR Liberia; LBY LBA Libya
    LIE Liechtenstein; LTU Lithuania; LUX Luxembourg; MDG MAD Madagascar; MWI MAW Malawi; MYS MAS Malaysia
    MDV Maldives; MLI Mali; MLT Malta; MRT MTN Mauritania; MUS MRI Mauritius; MEX Mexico; MDA Moldova; MCO MON Monaco
    MNG MGL Mongolia; MNE Montenegro; MAR Morocco; MOZ Mozambique; MMR MYA Myanmar; NAM Namibia; NPL NEP Nepal
    NLD NED Netherlands; NZL New Zealand; NIC NCA Nicaragua; NER NIG Niger; NGA NGR Nigeria; NOR Norway; OMN OMA Oman
    PAK Pakistan; PAN Panama; PNG Papua New Guinea; PRY PAR Paraguay; PER Peru; PHL PHI Philippines; POL Poland
    PRT POR Portugal; PRI PUR Puerto Rico; QAT Qatar; ROU ROM Romania; RUS Russia; RWA Rwanda; SMR San Marino
    SAU KSA Saudi Arabia; SEN Senegal; SRB Serbia; SYC SEY Seychelles; SLE Sierra Leone; SGP SIN Singapore
    SVK Slovakia; SVN SLO Slovenia; SOM Somalia; ZAF RSA South Africa; URS Soviet Union; ESP Spain; LKA SRI Sri Lanka
    SDN SUD Sudan; SSD South Sudan; SUR Suriname; SWE Sweden; CHE SUI Switzerland; SYR Syria; TWN Taiwan
    TJK Tajikistan; TZA TAN Tanzania; THA Thailand; TGO TOG Togo; TON TGA Tonga; TTO TRI Trinidad and Tobago
    TUN Tunisia; TUR Turkey; TKM Turkmenistan; UGA Uganda; UKR Ukraine; ARE UAE United Arab Emirates
    GBR UK United Kingdom; USA US United States; URY URU Uruguay; UZB Uzbekistan; VAT Vatican City; VEN Venezuela
    VNM VIE Vietnam; YEM Yemen; YUG Yugoslavia; ZMB ZAM Zambia; ZWE ZIM Zimbabwe; ENG England; SCO Scotland; WAL Wales
    NIR Northern Ireland; CSA Confederate States of America
"""


def _read_names() -> dict[str, str]:
    names = {}
    for entry in _NAMES.replace("\n", ";").split(";"):
        codes = [word for word in entry.split() if word.isupper()]
        names.update(dict.fromkeys(codes, " ".join(word for word in entry.split() if not word.isupper())))
    return names


COUNTRIES = _read_names()
"""Code -> name in English."""
