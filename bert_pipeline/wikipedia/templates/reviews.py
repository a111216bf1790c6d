"""Templates that write sentences: what the critics of a film or series said, by the numbers."""

from bert_pipeline.wikipedia.templates.registry import Arguments, register


@register("rotten tomatoes prose, rt prose, rt")
def _share_of_critics(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:Rotten_Tomatoes_prose: share of good reviews, average, number."""
    score, average = arguments.get("score", 1).rstrip("%"), arguments.get("average", 2).removesuffix("/10")
    count, consensus = arguments.get("count", 3), arguments.get("consensus", 4)
    if not score or not count:
        return None
    shown = f"On the review aggregator website Rotten Tomatoes, {score}% of {count} critics' reviews are positive"
    shown += f", with an average rating of {average}/10." if average else "."
    return f'{shown} The website\'s consensus reads: "{consensus}"' if consensus else shown


_ACCLAIM = (
    (81, '"universal acclaim"'), (61, '"generally favorable" reviews'), (40, '"mixed or average" reviews'),
    (20, '"generally unfavorable" reviews'), (0, '"overwhelming dislike"'),
)  # fmt: skip


@register("metacritic film prose, metacritic prose, metacritic tv prose, mc prose")
def _weighted_average(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:Metacritic_film_prose"""
    score, count = arguments.get("score", 1), arguments.get("count", 2)
    if not score.isdecimal() or not count:
        return None
    words = next(words for minimum, words in _ACCLAIM if int(score) >= minimum)
    of_what = "" if "tv" in arguments.name else " the film"
    return (
        f"Metacritic, which uses a weighted average, assigned{of_what} a score of {score} out of 100, based on {count}"
        f" critics, indicating {words}."
    )
