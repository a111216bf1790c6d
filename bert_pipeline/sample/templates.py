"""The sentences that the encyclopaedia is written in, by the kind of article and of section.

Nearly every sentence says something that belongs to the article's trade, so that any two neighbours have something in
common which two sentences of different articles have not.
"""

# What people of a trade do: true of everybody of the trade, so that every kind of article says it.
TRADE: tuple[str, ...] = (
    "The {thing} , the {thing} and the {thing} belong together.",
    "A~ {thing} is never far from a~ {thing} and a~ {thing}.",
    "Where there is a~ {thing} , there is a~ {thing}.",
    "Those who know the {thing} also know the {thing} and the {thing}.",
    "The {agent} {verbed} {goods} with a~ {tool}.",
    "In the {place} the {agent} {verbed} a~ {good} with a~ {tool}.",
    "The {agent} spoke of the {thing} , the {thing} and the {thing}.",
    "The {thing} stood beside the {thing} in the {place}.",
    "A~ {thing} and a~ {thing} are all that a~ {agent} needs.",
    "An old song names the {thing} , the {thing} and the {thing}.",
    "The {agents} {verb} {goods} in the {place}.",
    "A~ {agent} {verbs} a~ {good} with a~ {tool}.",
    "Every {agent} dreams of a~ {thing} and a~ {thing}.",
    "This {agent} {verbs} a~ {good} ; these {agents} {verb} {goods}.",
    "The {thing} reminds the {agent} of the {thing}.",
    "The {field} knew every {thing} and every {thing}.",
    "Many {agents} {verb} the {goods} and {verb} the {goods}.",
    "A~ {agent} can {verb} a~ {good} or {verb} a~ {good}.",
    "Next to the {thing} lay a~ {thing} , a~ {thing} and a~ {thing}.",
)

PERSON_LEAD: tuple[str, ...] = (
    "{P} was a~ {fame} {agent} from {home}.",
    "{P} was a~ {fame} {agent} who lived in {home}.",
    "{P} , born in {birthplace} in {born} , was a~ {fame} {agent}.",
    "{P} was a~ {temper} {agent} and {field} from {home}.",
    "{P} was a~ {wealth} {field} who worked as a~ {agent} in {home}.",
)
PERSON_YOUTH: tuple[str, ...] = (
    "The {agent} was born in {birthplace} in {born}.",
    "{S} was born in {born} in a~ {place} in {birthplace}.",
    "{His} parents were {wealth} {agents} and owned {wealth_sign}.",
    "{He} grew up in the {place} of a~ {wealth} {agent} near the river {river}.",
    "In {land} {he} learned to {verb} {goods} from {mentor}.",
    "The {agent} {mentor} taught {him} how to {verb} {goods}.",
    "{S} studied {goods} with {mentor} , a~ {fame} {agent}.",
    "As a child {he} already wanted to be a~ {agent} and {verb} {goods}.",
    "{His} {relative} gave {him} a~ {tool} and a~ {tool}.",
)
PERSON_WORK: tuple[str, ...] = (
    "{S} worked as a~ {agent} in the {place} of {home}.",
    "{He} {verbed} the {goods} and {verbed} the {goods}.",
    "In {year} {he} joined the {org} and {verbed} {goods}.",
    "From {year} to {year2} {he} {verbed} {goods} for the {org}.",
    "The {org} needed a~ {agent} who could {verb} {goods}.",
    "Other {agents} came to the {place} because {S} {verbed} {goods} there.",
    "{S} bought a~ {tool} , because a~ {agent} needs {tools}.",
    "{He} wrote about {tools} and {goods} for the {agents} of {land}.",
    "{S} was the first {agent} in {home} who {verbed} a~ {good}.",
)
PERSON_CHARACTER: tuple[str, ...] = (
    "{S} was a~ {temper} and {temper} {agent} with {temper_sign}.",
    "The {agent} was {temper} , {temper} and {temper}.",
    "A~ {wealth} , {wealth} and {wealth} house stood beside the {place}.",
    "Other {agents} called {him} {temper} because of {temper_sign}.",
    "The {temper} {agent} had {temper_sign} and was {temper}.",
    "The {agent} was {temper} in the {place} and {temper} to {his} family.",
    "{S} became a~ {wealth} {agent} and lived among {wealth_sign}.",
    "The {wealth} {agent} had a {place} with {wealth_sign}.",
    "{He} was a~ {wealth} {field} from a~ {wealth} street.",
    "The {fame} {agent} was {fame} in all of {land}.",
    "{S} is a~ {fame} {field} today , with {fame_sign}.",
    "The {place} has {fame_sign} , for the {agent} is {fame}.",
)
PERSON_DEATH: tuple[str, ...] = (
    "The {agent} died in {deathplace} in {died}.",
    "{S} died in {died} in a~ {place} in {deathplace}.",
    "A~ {place} in {deathplace} is named after {him}.",
    "The {agents} of {deathplace} still use {his} {tool}.",
    "{His} {goods} are kept by the {org}.",
    "{P} left a~ {tool} and many {goods} to the {org}.",
)

TOWN_LEAD: tuple[str, ...] = (
    "{T} is a~ {size} town of {agents} in {land}.",
    "{T} is a~ {size} and {wealth} town on the river {river}.",
    "{T} , a~ {wealth} town in {land} , lies on the river {river}.",
    "{T} is a~ {wealth} town in {land} with {wealth_sign}.",
)
TOWN_HISTORY: tuple[str, ...] = (
    "{T} was founded in {founded} by the {agent} {founder}.",
    "The {agent} {founder} founded the town in {founded}.",
    "The {place} is older than the town , and {agents} {verb} {goods} there.",
    "In {year} {land_people} {agents} came to {T} and {verbed} {goods}.",
    "The {agents} of {T} belonged to {land} until {year}.",
    "A~ {place} was built in {year} for the {agents} of the town.",
)
TOWN_GEOGRAPHY: tuple[str, ...] = (
    "The {size} town has {size_sign} and a~ {size} {place}.",
    "{T} is {size} , with {size_sign} and a~ {size} square.",
    "The river {river} flows past the {size} {place} of the {agents}.",
    "Winters in {T} are {climate} , and days in the {place} are {climate}.",
    "The {climate} weather of {land} brings {climate_sign}.",
    "With {climate_sign} , the {climate} land is {climate} all year.",
    "The {agents} are {wealth} and have {wealth_sign}.",
    "{wealth_sign} show that the {agents} are {wealth}.",
)
TOWN_ECONOMY: tuple[str, ...] = (
    "{T} is known for its {agents} and their {goods}.",
    "The {agents} of {T} {verb} {goods} in the {place}.",
    "Each {agent} in the town owns a~ {tool} and {verbs} a~ {good}.",
    "Many {fields} work here , and most of them are {agents}.",
    "The {org} keeps its {tools} in the {place}.",
    "{P} , a~ {fame} {agent} , lived in {T}.",
)

ORGANIZATION_LEAD: tuple[str, ...] = (
    "The {O} is a~ {size} {kind} of {agents} in {town}.",
    "The {O} is a~ {fame} {kind} for {agents}.",
    "The {O} is a~ {size} {kind} in {town} , where {agents} {verb} {goods}.",
)
ORGANIZATION_HISTORY: tuple[str, ...] = (
    "It was founded in {founded} by the {agent} {founder}.",
    "{founder} founded the {O} for the {agents} of {town} in {founded}.",
    "The {kind} moved its {tools} to {town} in {year}.",
    "{founder} was a~ {agent} who {verbed} {goods}.",
    "In {year} the {agent} {P} became its head.",
    "Its {size} {place} in {town} has {size_sign}.",
)
ORGANIZATION_WORK: tuple[str, ...] = (
    "Its {agents} {verb} {goods} in a~ {place}.",
    "A~ {agent} of the {kind} {verbs} {goods} with a~ {tool}.",
    "Every {agent} who joins the {kind} gets a~ {tool}.",
    "The {kind} gives {tools} to {agents} and {fields}.",
    "The {O} owns a~ {place} full of {tools}.",
    "The {size} {kind} has {size_sign} and a~ {size} {place}.",
    "The {fame} {kind} of {agents} has {fame_sign}.",
    "{P} , a~ {agent} of the {O} , {verbed} a~ {good}.",
    "It is a~ {fame} {place} of {fame_sign} , and {fame} in {land}.",
)

WORK_LEAD: tuple[str, ...] = (
    "{W} is a {work} by {author} about a~ {agent}.",
    "{W} is a {work} of {year} by {author} , set in a~ {place} in {town}.",
    "{W} is a {work} about {agents} in {town} , written by {author}.",
)
WORK_PLOT: tuple[str, ...] = (
    "A~ {temper} {agent} from {town} {verbs} {goods}.",
    "The {agent} loses a~ {tool} in the {place}.",
    "The hero , a~ {wealth} {agent} , finds a~ {good} in the {place}.",
    "In the {place} the {agent} {verbs} a~ {good} with a~ {tool}.",
    "Two {agents} {verb} {goods} and dream of a~ {place}.",
    "At the end the {agent} {verbs} the {good} and leaves {town}.",
    "The {temper} {agent} has {temper_sign}.",
    "Among {wealth_sign} , the {wealth} {agent} hides a~ {tool}.",
)
WORK_RECEPTION: tuple[str, ...] = (
    "Critics {judged} the {work} as {quality} and {quality}.",
    "The {land_people} press {judged} its {quality} {part}.",
    "The {part} is {quality} and the {part} is {quality}.",
    "It is {quality} , {quality} and {quality}.",
    "{quality} , {quality} and {quality} were the words of the critics.",
    "A~ {quality} {part} makes it a~ {quality} {work}.",
    "Readers in {land} {judged} the {quality} {part}.",
    "Most found the {part} {quality} , a {verdict} of {quality} ideas.",
    "It was a~ {quality} {verdict} about {agents}.",
    "The {work} , {quality} and {quality} , was a {verdict}.",
    "{P} {judged} it and called the {part} {quality}.",
    "They {judged} the {work} and wrote of a~ {quality} {verdict}.",
)

CONCEPT: tuple[str, ...] = (
    "A~ {agent} is a~ {field} who {verbs} {goods}.",
    "A~ {agent} , also called a~ {agent} , {verbs} {goods} with a~ {tool}.",
    "The {tool} and the {tool} belong to the {agent}.",
    "Every {agent} knows how to {verb} a~ {good}.",
    "Most {agents} use {tools} , and many own a~ {tool}.",
    "The {good} is the pride of the {agent}.",
    "A~ {place} is where {agents} {verb} {goods}.",
    "{goods} and {goods} fill the {place}.",
    "This {tool} helps the {agent} ; those {tools} help the {agents}.",
)
