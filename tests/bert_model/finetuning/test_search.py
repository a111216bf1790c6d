"""The search treats every initialization alike, decides on dev, and prefers usable trials to collapsed ones."""

import pytest
import tiny_tasks

from bert_model.finetuning.results import summarize
from bert_model.finetuning.search import (
    Initialization,
    Setting,
    Trial,
    TrialResult,
    choose_setting,
    initializations_of,
    search,
)
from bert_pipeline.errors import ConfigurationError, TrainingError

PRETRAINED = Initialization("pretrained", "pretrained")


def result_of(trial, score, *, collapsed=False, diverged=False):
    return TrialResult(
        trial=trial,
        scores={} if diverged else {"dev": {"accuracy": score}},
        main_score=float("-inf") if diverged else score,
        collapsed=collapsed,
        diverged=diverged,
        steps=1,
    )


def make_result(learning_rate, score, *, seed=1, **outcome):
    return result_of(Trial(PRETRAINED, Setting(learning_rate, 8, 1.0), seed), score, **outcome)


def run_search(config, score):
    """Search with scores that are a function of the trial; return the results and the trials that were run."""
    trials = []

    def run_trials(batch):
        trials.extend(batch)
        return [result_of(trial, score(trial)) for trial in batch]

    return search(config, run_trials), trials


def test_grid_trains_every_setting_with_every_seed_and_chooses_by_mean():
    config = tiny_tasks.configuration(learning_rates=[1e-4, 1e-3], seeds=[1, 2, 3])
    # The first rate is better with the first seed alone, the second one on average.
    scores = {1e-4: [99, 0, 0], 1e-3: [60, 70, 80]}
    (result,), trials = run_search(config, lambda trial: scores[trial.setting.learning_rate][trial.seed - 1])
    assert len(trials) == 6
    assert result.setting.learning_rate == 1e-3
    assert result.values("dev", "accuracy") == [60, 70, 80]
    assert result.best.trial.seed == 3


def test_first_seed_search_trains_other_seeds_at_chosen_setting_only():
    config = tiny_tasks.configuration(learning_rates=[1e-4, 1e-3, 1e-2], seeds=[1, 2, 3], search="first_seed")
    (result,), trials = run_search(config, lambda trial: 50 + trial.setting.learning_rate)
    assert len(trials) == 3 + 2
    assert [trial.setting.learning_rate for trial in trials if trial.seed != 1] == [1e-2, 1e-2]
    assert [chosen.trial.seed for chosen in result.chosen] == [1, 2, 3]


@pytest.mark.parametrize("procedure", ["grid", "first_seed"])
def test_initializations_are_searched_alike_and_long_training_inherits(procedure):
    config = tiny_tasks.configuration(
        learning_rates=[1e-4, 1e-3], seeds=[1, 2, 3], search=procedure, compare_random=True, epochs=[1.0, 2.0]
    )

    # Pre-trained weights are best at the high rate for two epochs, random ones at the low rate for one.
    def score(trial):
        return trial.setting.learning_rate * trial.setting.epochs * (trial.initialization.weights == "pretrained")

    results, trials = run_search(config, score)

    def settings_of(name, *, seed):
        return [trial.setting for trial in trials if trial.initialization.name == name and trial.seed == seed]

    assert settings_of("pretrained", seed=1) == settings_of("random", seed=1)
    assert len(settings_of("pretrained", seed=1)) == 4
    for seed in (2, 3):
        expected = settings_of("random", seed=1) if procedure == "grid" else [Setting(1e-4, 8, 1.0)]
        assert settings_of("random", seed=seed) == expected
    assert [result.setting for result in results] == [
        Setting(1e-3, 8, 2.0),
        Setting(1e-4, 8, 1.0),
        Setting(1e-4, 8, 4.0),
    ]
    assert [settings_of("random_x4", seed=seed) for seed in (1, 2, 3)] == [[Setting(1e-4, 8, 4.0)]] * 3
    assert [chosen.trial.seed for chosen in results[2].chosen] == [1, 2, 3]


def test_random_initializations_are_searched_only_if_configured():
    def names(**overrides):
        return [item.name for item in initializations_of(tiny_tasks.configuration(**overrides))]

    assert names() == ["pretrained"]
    assert names(compare_random=True) == ["pretrained", "random", "random_x4"]
    assert names(compare_random=True, random_step_multiple=0) == ["pretrained", "random"]


def test_collapsed_setting_is_not_chosen_however_well_it_scores():
    results = [make_result(1e-2, 90, collapsed=True), make_result(1e-4, 60), make_result(1e-3, 55)]
    assert choose_setting(results).learning_rate == 1e-4


def test_collapsed_setting_is_chosen_if_there_is_no_other():
    assert choose_setting([make_result(1e-2, 50, collapsed=True)]).learning_rate == 1e-2


def search_of(results):
    config = tiny_tasks.configuration(
        learning_rates=[1e-3], seeds=[result.trial.seed for result in results], epochs=[1.0]
    )
    (found,) = search(config, lambda trials: list(results))
    return found


def test_best_trial_is_a_usable_one_although_a_collapsed_one_scores_more():
    found = search_of([make_result(1e-3, 80, seed=1, collapsed=True), make_result(1e-3, 70, seed=2)])
    assert found.best.trial.seed == 2
    assert not found.degenerate
    assert found.values("dev", "accuracy") == [80, 70]  # the mean hides nothing


def test_error_names_the_remedy_if_every_trial_diverged():
    with pytest.raises(TrainingError, match="give lower learning rates"):
        search_of([make_result(1e-3, 0, diverged=True)])


def test_trial_names_are_file_names_of_initialization_setting_and_seed():
    assert Trial(PRETRAINED, Setting(5e-5, 32, 3.0), 1).name == "pretrained-5e-05-32-3-1"
    random = Initialization("random_x4", "random", 4)
    assert Trial(random, Setting(1e-3, 16, 12.0, "last"), 7).name == "random_x4-last-0.001-16-12-7"


def test_summary_gives_sample_deviation_best_and_median():
    assert summarize([1.0, 2.0, 6.0]) == {
        "values": [1.0, 2.0, 6.0],
        "mean": 3.0,
        "sd": 2.645751,
        "best": 6.0,
        "median": 2.0,
    }
    assert summarize([5.0])["sd"] == 0.0


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("learning_rates", [], "learning_rates"),
        ("seeds", [1, 1], "seeds"),
        ("epochs", [0.0], "epochs"),
        ("max_seq_length", 4, "max_seq_length: found 4, expected at least 8"),
        ("gradient_accumulation", 3, "divisor of the batch size 8"),
        ("warmup_share", 1.0, "warmup_share"),
        ("search", "best", "search"),
        ("learning_rate", 1e-3, "did you mean 'learning_rates'"),
        ("window_pooling", "max", "window_pooling: found max without windows; give a stride"),
    ],
)
def test_configuration_names_the_key_that_is_wrong(key, value, message):
    with pytest.raises(ConfigurationError, match=message):
        tiny_tasks.configuration(**{key: value})
