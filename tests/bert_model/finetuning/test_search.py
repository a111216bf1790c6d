"""The search treats every start alike, chooses on dev, and never chooses a collapsed run over a sound one."""

import pytest
import tiny_tasks

from bert_model.finetuning.search import Run, Setting, arms_of, choose_setting, search, summary
from bert_pipeline.errors import ConfigurationError, TrainingError


def make_run(learning_rate, score, *, seed=1, collapsed=False, diverged=False, start="pretrained"):
    return Run(
        start=start,
        setting=Setting(learning_rate, 8, 1.0),
        seed=seed,
        scores={} if diverged else {"dev": {"accuracy": score}},
        main_score=float("-inf") if diverged else score,
        collapsed=collapsed,
        diverged=diverged,
        steps=1,
    )


class Trials:
    """Stands for the training: the score of a trial is a function of what was asked."""

    def __init__(self, score):
        self.score, self.asked = score, []

    def __call__(self, asked):
        self.asked += [(arm.name, setting, seed) for arm, setting, seed in asked]
        return [
            Run(
                start=arm.name,
                setting=setting,
                seed=seed,
                scores={"dev": {"accuracy": self.score(arm, setting, seed)}},
                main_score=self.score(arm, setting, seed),
                collapsed=False,
                diverged=False,
                steps=1,
            )
            for arm, setting, seed in asked
        ]


def searched(config, score):
    trials = Trials(score)
    return search(config, arms_of(config), config.learning_rates, trials), trials


def test_grid_trains_every_setting_with_every_seed_and_chooses_by_the_mean():
    config = tiny_tasks.configuration(learning_rates=[1e-4, 1e-3], seeds=[1, 2, 3])
    # The first rate is better with the first seed alone, the second one on average.
    (result,), trials = searched(
        config, lambda arm, s, seed: {1e-4: [99, 0, 0], 1e-3: [60, 70, 80]}[s.learning_rate][seed - 1]
    )
    assert len(trials.asked) == 6
    assert result.setting.learning_rate == 1e-3
    assert result.values("dev", "accuracy") == [60, 70, 80]
    assert result.best.seed == 3


def test_first_seed_search_trains_the_other_seeds_at_the_chosen_setting_only():
    config = tiny_tasks.configuration(learning_rates=[1e-4, 1e-3, 1e-2], seeds=[1, 2, 3], search="first_seed")
    (result,), trials = searched(config, lambda arm, s, seed: 50 + s.learning_rate)
    assert len(trials.asked) == 3 + 2
    assert [setting.learning_rate for _, setting, seed in trials.asked if seed != 1] == [1e-2, 1e-2]
    assert [run.seed for run in result.chosen] == [1, 2, 3]


@pytest.mark.parametrize("procedure", ["grid", "first_seed"])
def test_both_starts_get_the_same_search_and_the_long_one_four_times_the_chosen_epochs(procedure):
    config = tiny_tasks.configuration(
        learning_rates=[1e-4, 1e-3], seeds=[1, 2, 3], search=procedure, compare_starts=True, epochs=[1.0, 2.0]
    )
    # Pre-trained weights are best at the high rate for two epochs, random ones at the low rate for one.
    results, trials = searched(config, lambda arm, s, seed: s.learning_rate * s.epochs * (arm.start == "pretrained"))

    def of(name, *, seed):
        return [setting for arm, setting, asked_seed in trials.asked if arm == name and asked_seed == seed]

    assert of("pretrained", seed=1) == of("random", seed=1)
    assert len(of("pretrained", seed=1)) == 4
    for seed in (2, 3):
        expected = of("random", seed=1) if procedure == "grid" else [Setting(1e-4, 8, 1.0)]
        assert of("random", seed=seed) == expected
    assert [result.setting for result in results] == [
        Setting(1e-3, 8, 2.0),
        Setting(1e-4, 8, 1.0),
        Setting(1e-4, 8, 4.0),
    ]
    assert [of("random_x4", seed=seed) for seed in (1, 2, 3)] == [[Setting(1e-4, 8, 4.0)]] * 3
    assert [run.seed for run in results[2].chosen] == [1, 2, 3]


def test_search_does_not_run_random_weights_unasked():
    assert [arm.name for arm in arms_of(tiny_tasks.configuration())] == ["pretrained"]
    arms = arms_of(tiny_tasks.configuration(compare_starts=True, random_step_multiple=0))
    assert [arm.name for arm in arms] == ["pretrained", "random"]


def test_setting_whose_runs_all_collapsed_is_not_chosen_however_well_it_scores():
    runs = [make_run(1e-2, 90, collapsed=True), make_run(1e-4, 60), make_run(1e-3, 55)]
    assert choose_setting(runs).learning_rate == 1e-4


def test_collapsed_setting_is_chosen_when_there_is_no_other():
    assert choose_setting([make_run(1e-2, 50, collapsed=True)]).learning_rate == 1e-2


def test_best_run_is_a_sound_one_although_a_collapsed_one_scores_more():
    config = tiny_tasks.configuration(learning_rates=[1e-3], seeds=[1, 2])
    runs = [make_run(1e-3, 80, seed=1, collapsed=True), make_run(1e-3, 70, seed=2)]
    config_arms = arms_of(config)
    (result,) = search(config, config_arms, (1e-3,), lambda asked: [_at(runs, seed) for _, _, seed in asked])
    assert result.best.seed == 2
    assert not result.degenerate
    assert result.values("dev", "accuracy") == [80, 70]  # the mean hides nothing


def _at(runs, seed):
    run = next(run for run in runs if run.seed == seed)
    return Run(**{**{f: getattr(run, f) for f in run.__dataclass_fields__}, "setting": Setting(1e-3, 8, 6.0)})


def test_diverged_everywhere_is_an_error_that_says_what_to_change():
    config = tiny_tasks.configuration(learning_rates=[1e-3], seeds=[1])
    diverged = make_run(1e-3, 0, diverged=True)
    with pytest.raises(TrainingError, match="give lower learning rates"):
        search(config, arms_of(config), (1e-3,), lambda asked: [diverged])


def test_summary_gives_sample_deviation_best_and_median():
    assert summary([1.0, 2.0, 6.0]) == {
        "values": [1.0, 2.0, 6.0],
        "mean": 3.0,
        "sd": 2.645751,
        "best": 6.0,
        "median": 2.0,
    }
    assert summary([5.0])["sd"] == 0.0


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("learning_rates", [], "learning_rates"),
        ("seeds", [1, 1], "seeds"),
        ("epochs", [0.0], "epochs"),
        ("gradient_accumulation", 3, "divisor of the batch size 8"),
        ("warmup_share", 1.0, "warmup_share"),
        ("search", "best", "search"),
        ("learning_rate", 1e-3, "did you mean 'learning_rates'"),
    ],
)
def test_configuration_names_the_key_that_is_wrong(key, value, message):
    with pytest.raises(ConfigurationError, match=message):
        tiny_tasks.configuration(**{key: value})
