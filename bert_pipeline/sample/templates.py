"""The sentences that the encyclopedia is written in, by the kind of article and of section.

Nearly every sentence says something that belongs to the article's trade or to one of its traits, so that any two
neighbours have something in common which two sentences of different articles have not.
"""

# What people of a trade do: true of everybody of the trade, so that every kind of article says it.
TRADE: tuple[str, ...] = (
    "{Thing} , {thing} and {thing} belong together.",
    "{Thing} and {thing} lay beside {thing} and {thing}.",
    "A~ {thing} is never far from a~ {thing} and a~ {thing}.",
    "Where there is a~ {thing} , there is a~ {thing} and a~ {thing}.",
    "Those who know the {thing} know {thing} and {thing}.",
    "The {agent} {verbed} {goods} with a~ {tool}.",
    "In the {place} the {agent} {verbed} a~ {good} with a~ {tool}.",
    "The {agent} spoke of {thing} , {thing} and {thing}.",
    "The {agent}'s {tool} and {tool} stood in the {place}.",
    "An old song names {thing} , {thing} , {thing} and {thing}.",
    "The {agents} {verb} and {verb} {goods} in the {place}.",
    "A~ {agent} {verbs} a~ {good} with a~ {tool}.",
    "Every {agent} dreams of {thing} and {thing}.",
    "This {agent} {verbs} a~ {good} ; these {agents} {verb} {goods}.",
    "The {thing} reminds a~ {agent} of {thing} and {thing}.",
    "The {field} knew every {thing} , {thing} and {thing}.",
    "Many {agents} {verb} {goods} , {verb} {goods} and own a~ {tool}.",
    "A~ {agent} can {verb} a~ {good} or {verb} a~ {good}.",
    "{Agents} and {agents} are {fields} who {verb} {goods}.",
    "Some {fields} , the {agents} , {verb} {goods} with a~ {tool}.",
)

PERSON_LEAD: tuple[str, ...] = (
    "{P} was a~ {fame} {agent} from {home}.",
    "{P} was a~ {fame} and {fame} {agent} who lived in {home}.",
    "{P} , born in {birthplace} in {born} , was a~ {fame} {agent}.",
    "{P} was a~ {temper} {agent} and {field} from {home}.",
    "{P} was a~ {wealth} {field} who worked as a~ {agent} in {home}.",
)
PERSON_YOUTH: tuple[str, ...] = (
    "The {agent} was born in {birthplace} in {born}.",
    "{S} was born in {born} in a~ {place} in {birthplace}.",
    "{His} parents were {wealth} and {wealth} {agents}.",
    "{He} grew up in the {place} of a~ {wealth} {agent} near the river {river}.",
    "In {land} {he} learned to {verb} {goods} from {mentor}.",
    "The {agent} {mentor} taught {him} how to {verb} {goods}.",
    "{S} studied {goods} with {mentor} , a~ {fame} {agent}.",
    "As a child {he} already wanted to be a~ {agent} and {verb} {goods}.",
    "{His} {relative} gave {him} a~ {tool} and a~ {tool}.",
)
PERSON_WORK: tuple[str, ...] = (
    "{S} worked as a~ {agent} in the {place} of {home}.",
    "{He} {verbed} {goods} and {verbed} {goods}.",
    "In {year} {he} joined the {org} and {verbed} {goods}.",
    "From {year} to {year2} {he} {verbed} {goods} for the {org}.",
    "The {org} needed a~ {agent} who could {verb} {goods}.",
    "Other {agents} came to the {place} because {S} {verbed} {goods} there.",
    "{S} bought a~ {tool} , because a~ {agent} needs a~ {tool}.",
    "{He} wrote about {thing} and {thing} for the {agents} of {land}.",
    "{S} was the first {agent} in {home} who {verbed} a~ {good}.",
)
PERSON_CHARACTER: tuple[str, ...] = (
    "{S} was a~ {temper} and {temper} {agent} with {temper_sign}.",
    "The {agent} was {temper} , {temper} and {temper}.",
    "People called {him} {wealth} , {wealth} and {wealth}.",
    "{He} seemed {fame} , {fame} and {fame}.",
    "Other {agents} called {him} {temper} because of {temper_sign}.",
    "The {temper} {agent} had {temper_sign} and was {temper}.",
    "{S} became a~ {wealth} and {wealth} {agent} with {wealth_sign}.",
    "The {wealth} {agent} had a {place} with {wealth_sign}.",
    "{He} was a~ {wealth} {field} from a~ {wealth} street.",
    "The {fame} and {fame} {agent} has {fame_sign}.",
    "{S} is a~ {fame} {field} today , with {fame_sign}.",
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
TOWN_CHARACTER: tuple[str, ...] = (
    "The {size} and {size} town has {size_sign}.",
    "{T} is {size} , {size} and {size}.",
    "It seemed {fame} , {fame} and {fame}.",
    "The river {river} flows past a~ {size} and {size} {place}.",
    "The {wealth} and {wealth} {agents} have {wealth_sign}.",
    "People called it {wealth} , {wealth} and {wealth}.",
    "The town is {fame} and {fame} , with {fame_sign}.",
)
TOWN_ECONOMY: tuple[str, ...] = (
    "{T} is known for its {agents} and their {goods}.",
    "The {agents} of {T} {verb} {goods} in the {place}.",
    "Each {agent} in the town owns a~ {tool} and {verbs} a~ {good}.",
    "Many {fields} work here , and most of them are {agents}.",
    "The {org} keeps {thing} and {thing} in the {place}.",
    "{P} , a~ {wealth} {agent} , lived in {T}.",
)

ORGANIZATION_LEAD: tuple[str, ...] = (
    "The {O} is a~ {size} {kind} of {agents} in {town}.",
    "The {O} is a~ {fame} and {size} {kind} for {agents}.",
    "The {O} is a~ {size} {kind} in {town} , where {agents} {verb} {goods}.",
)
ORGANIZATION_HISTORY: tuple[str, ...] = (
    "It was founded in {founded} by the {agent} {founder}.",
    "{founder} founded the {O} for the {agents} of {town} in {founded}.",
    "The {kind} moved its {place} to {town} in {year}.",
    "{founder} was a~ {agent} who {verbed} {goods}.",
    "In {year} the {agent} {P} became its head.",
)
ORGANIZATION_CHARACTER: tuple[str, ...] = (
    "The {size} and {size} {kind} has {size_sign}.",
    "It is {size} , {size} and {size}.",
    "It seemed {fame} , {fame} and {fame}.",
    "The {fame} and {fame} {kind} of {agents} has {fame_sign}.",
)
ORGANIZATION_WORK: tuple[str, ...] = (
    "Its {agents} {verb} {goods} in a~ {place}.",
    "A~ {agent} of the {kind} {verbs} {goods} with a~ {tool}.",
    "Every {agent} who joins the {kind} gets a~ {tool}.",
    "The {kind} gives {thing} and {thing} to {agents} and {fields}.",
    "The {O} owns a~ {place} full of {goods}.",
    "{P} , a~ {agent} of the {O} , {verbed} a~ {good}.",
)

WORK_LEAD: tuple[str, ...] = (
    "{W} is a {work} by {author} about a~ {agent}.",
    "{W} is a {work} of {year} by {author} , set in a~ {place} in {town}.",
    "{W} is a {work} about {agents} in {town} , written by {author}.",
)
WORK_PLOT: tuple[str, ...] = (
    "A~ {temper} and {temper} {agent} from {town} {verbs} {goods}.",
    "The hero , a~ {wealth} {agent} , finds a~ {good} in the {place}.",
    "At the end the {agent} {verbs} the {good} and leaves {town}.",
    "The {temper} {agent} has {temper_sign}.",
)
WORK_RECEPTION: tuple[str, ...] = (
    "Critics {judged} the {work} as {quality} and {quality}.",
    "The {land_people} press {judged} its {quality} {part}.",
    "The {part} is {quality} and the {part} is {quality}.",
    "It is {quality} , {quality} and {quality}.",
    "{quality} , {quality} and {quality} were the words of the critics.",
    "A~ {quality} {part} makes it a~ {quality} {work}.",
    "Most found the {part} {quality} , a {verdict} of {quality} ideas.",
    "It was a~ {quality} {verdict} about {agents}.",
    "The {work} , {quality} and {quality} , was a {verdict}.",
    "{P} {judged} it and called the {part} {quality} and {quality}.",
    "They {judged} the {work} as a~ {quality} and {quality} {verdict}.",
)

CONCEPT: tuple[str, ...] = (
    "A~ {agent} is a~ {field} who {verbs} {goods}.",
    "A~ {agent} , also called a~ {agent} , {verbs} {goods} with a~ {tool}.",
    "The {tool} and the {tool} belong to the {agent}.",
    "Every {agent} knows how to {verb} a~ {good}.",
    "Most {agents} own a~ {tool} or a~ {tool}.",
    "The {good} is the pride of the {agent}.",
    "A~ {place} is where {agents} {verb} {goods}.",
    "{Goods} and {goods} fill the {place}.",
    "This {tool} helps a~ {agent} ; those {goods} please the {agents}.",
)
