"""Time budgets: the clock decides once, and a stopped training repeats its decisions."""

import signal

import pytest
from small_training import assert_same_training, configuration, read_events, stop_after, train, train_events
from two_ranks import run_pretraining

from bert_model.pretraining.config import PhaseConfig, PretrainingConfig
from bert_model.pretraining.fast_exam import FastExam
from bert_model.pretraining.phases import Timetable, load_phases
from bert_model.training.schedule import trapezoid_at
from bert_pipeline.configuration import from_mapping
from bert_pipeline.errors import ConfigurationError
from bert_pipeline.manifest import load_manifest

SECONDS_A_STEP = 1.0


def trapezoid(data, steps=(10, 10), **changes):
    """The two phases with one warm-up and a decay in the last quarter."""
    mapping = configuration(data, schedule="trapezoid", decay_share=0.25, **changes)
    for phase, count in zip(mapping["phases"], steps):
        phase["steps"] = count
    mapping["phases"][1]["warmup_steps"] = 0
    return mapping


class Machine:
    """A machine on which every step takes as long."""

    def __init__(self):
        self.now = 1e6

    def train(self, mapping, output, stop=None, **options):
        def after_step(step):
            self.now += SECONDS_A_STEP
            if stop is not None:
                stop(step)

        return train(mapping, output, after_step=after_step, clock=lambda: self.now, **options)


@pytest.fixture
def budgeted(data):
    return trapezoid(data, budget="20s", checkpoint_interval_steps=4, keep_last=1)


def test_phase_without_instances_is_refused_with_both_remedies(data):
    mapping = configuration(data)
    mapping["phases"][1]["instances"] = ""
    with pytest.raises(ConfigurationError, match=r"phases.1.instances: not given; name .*, or fewer phases by phases="):
        load_phases(from_mapping(PretrainingConfig, mapping))


def test_budget_gives_the_bits_of_a_training_with_the_same_steps(data, budgeted, tmp_path):
    result = Machine().train(budgeted, tmp_path / "budget")
    assert (result.status, result.step) == ("finished", 20)
    published = load_manifest(tmp_path / "budget" / "model")
    assert published.counts["steps"] == 20
    assert published.provenance["budget"] == {"phase_ends": [10, 20], "decay_start": 15}
    Machine().train(trapezoid(data), tmp_path / "steps")
    assert_same_training(tmp_path / "budget", tmp_path / "steps")
    rates = [event["train/learning_rate"] for event in train_events(tmp_path / "budget").values()]
    assert rates[:3] == [0.0, 5e-4, 1e-3]
    assert rates[3:16] == [1e-3] * 13
    assert rates[16:] == pytest.approx([8e-4, 6e-4, 4e-4, 2e-4])


def test_passes_end_the_training_if_they_come_before_the_budget(data, budgeted, tmp_path):
    phases, _ = load_phases(from_mapping(PretrainingConfig, budgeted))
    # The text is read as often after sixteen steps of each phase.
    most = sum(16 * phase.config.global_batch_size * phase.passes_per_sample for phase in phases)
    limited = {**budgeted, "max_passes": most}
    Machine().train({**limited, "budget": "1h"}, tmp_path / "passes")
    decided = load_manifest(tmp_path / "passes" / "model").provenance["budget"]
    first, last = decided["phase_ends"]
    read = [steps * phase.config.global_batch_size * phase.passes_per_sample for steps, phase in
            zip((first, last - first), phases)]  # fmt: skip
    assert most - sum(read) == pytest.approx(0, abs=max(read) / min(first, last - first))
    assert sum(read) <= most
    assert decided["decay_start"] < last
    rates = [event["train/learning_rate"] for event in train_events(tmp_path / "passes").values()]
    assert rates[-1] < rates[first] / 2
    # The budget comes first: as without a limit.
    Machine().train({**budgeted, "max_passes": 4 * most}, tmp_path / "both")
    Machine().train(budgeted, tmp_path / "budget")
    assert_same_training(tmp_path / "both", tmp_path / "budget")
    with pytest.raises(ConfigurationError, match="max_passes: found 4 without a budget"):
        from_mapping(PretrainingConfig, {**trapezoid(data), "max_passes": 4.0})


def test_budget_that_is_stopped_twice_gives_the_same_bits(budgeted, tmp_path):
    Machine().train(budgeted, tmp_path / "whole")
    machine, output = Machine(), tmp_path / "stopped"
    assert machine.train(budgeted, output, stop_after(7)).status == "preempted"
    machine.now += 1e5  # a pause is no training
    machine.train(budgeted, output, resume=True, vanish=18)
    assert [event["step"] for event in read_events(output) if event["event"] == "checkpoint"][-1] == 16
    machine.now += 1e5
    assert machine.train(budgeted, output, resume=True).step == 20
    assert_same_training(output, tmp_path / "whole")


def test_exams_of_checkpoints_count_in_the_budget(budgeted, tmp_path, monkeypatch):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"the {number}\t{number} the\n" for number in range(40)))
    machine = Machine()
    began = machine.now

    def metrics(*_, **__):
        machine.now += 2.0
        return {"exam/accuracy": 50.0}

    monkeypatch.setattr(FastExam, "metrics", metrics)
    result = machine.train({**budgeted, "exam": str(pairs)}, tmp_path / "training")
    assert result.step < 18
    assert machine.now - began == pytest.approx(20.0, abs=3.0)


def test_larger_budget_before_the_decay_gives_the_bits_of_a_training_with_the_same_steps(data, budgeted, tmp_path):
    machine, output = Machine(), tmp_path / "training"
    machine.train(budgeted, output, vanish=14)
    larger = {**budgeted, "budget": "40s"}
    with pytest.raises(ConfigurationError, match="budget: was '20s', is '40s'"):
        machine.train(larger, output, resume=True)
    result = machine.train(larger, output, resume=True, allow_changes=True)
    assert (result.status, result.step) == ("finished", 40)
    Machine().train(trapezoid(data, steps=(10, 30)), tmp_path / "steps")
    assert_same_training(output, tmp_path / "steps")


def test_another_choice_forgets_the_best(budgeted, tmp_path, monkeypatch):
    losses = iter([1.0, 1.0, 1.0, 2.0, 3.0, 3.0, 3.0])
    monkeypatch.setattr("bert_model.pretraining.trainer.evaluate", lambda *_, **__: {"held_out/mlm_loss": next(losses)})
    machine, output = Machine(), tmp_path / "training"

    machine.train({**budgeted, "choose": "loss"}, output, vanish=18)
    machine.train(budgeted, output, resume=True, allow_changes=True)
    assert "published_step" not in load_manifest(output / "model").counts


def test_best_loss_on_other_masks_is_forgotten(budgeted, tmp_path, monkeypatch):
    loss = [1.0]
    monkeypatch.setattr("bert_model.pretraining.trainer.evaluate", lambda *_, **__: {"held_out/mlm_loss": loss[0]})
    machine, output = Machine(), tmp_path / "training"

    machine.train({**budgeted, "choose": "loss"}, output, vanish=18)
    loss[0] = 2.0
    harder = {**budgeted, "choose": "loss", "masking": {"masked_lm_prob": 0.4}}
    machine.train(harder, output, resume=True, allow_changes=True)
    assert load_manifest(output / "model").counts["published_step"] > 18


@pytest.mark.parametrize("shares", [(1.0, 1.0), (9.0, 1.0)])
def test_budget_ends_on_time_whatever_a_phase_end_takes(data, shares):
    mapping = trapezoid(data, budget="3h") | {"decay_share": 0.2}
    for phase, share in zip(mapping["phases"], shares):
        phase["share"] = share
    config = from_mapping(PretrainingConfig, mapping)
    now = [0.0]
    phases, _ = load_phases(config)
    budget, step = Timetable(config, phases, {}, clock=lambda: now[0]), 0
    for index in range(2):
        while step < budget.phases[index].end_step:
            budget.decide(step, index, budget.seconds)
            now[0] += 0.5
            step += 1
        now[0] += 60.0  # evaluation, exam and checkpoint
    assert now[0] - 60.0 == pytest.approx(3 * 3600, rel=0.005)


@pytest.mark.parametrize(
    ("stopped", "first", "pace"),
    [
        (700.0, 4.0, 4.0),  # on a slower machine
        (700.0, 30.0, 0.5),  # after a step that compiles
        (749.0, 10.0, 0.5),  # the decay begins with the third step
    ],
)
def test_decay_ends_on_time_after_a_resume(data, stopped, first, pace):
    config = from_mapping(PretrainingConfig, trapezoid(data, budget="1000s"))
    now = [0.0]
    phases, _ = load_phases(config)
    budget, step = Timetable(config, phases, {}, clock=lambda: now[0]), 0

    def train_until(seconds, pace):
        nonlocal step
        while now[0] < seconds and step < budget.phases[-1].end_step:
            budget.decide(step, int(step >= budget.phases[0].end_step), budget.seconds)
            now[0] += pace
            step += 1

    train_until(stopped, 0.5)
    state = budget.state()
    now[0] = 0.0  # the other machine's clock
    budget = Timetable(config, budget.phases, state, clock=lambda: now[0])
    train_until(0.1, first)
    train_until(2000.0, pace)
    assert state["seconds"] + now[0] == pytest.approx(1000.0, abs=16.0)


@pytest.mark.parametrize("budget", ["10s", "40s"])
def test_another_budget_is_refused_once_the_rate_decays(budgeted, tmp_path, budget):
    machine, output = Machine(), tmp_path / "training"
    message = f"budget: found {budget}, but since step 15 .* 20 s of training; .* --from$"
    machine.train(budgeted, output, vanish=18)
    for _ in range(2):  # of the finished run, too
        with pytest.raises(ConfigurationError, match=message):
            machine.train({**budgeted, "budget": budget}, output, resume=True, allow_changes=True)
        # The run is as it was.
        assert machine.train(budgeted, output, resume=True).step == 20


def test_smaller_budget_without_time_for_the_decay_is_refused(budgeted, tmp_path):
    machine, output = Machine(), tmp_path / "training"
    machine.train(budgeted, output, vanish=13)
    with pytest.raises(ConfigurationError, match=r"found 14s, but after 12 s of training less than its decay_share"):
        machine.train({**budgeted, "budget": "14s"}, output, resume=True, allow_changes=True)
    assert machine.train({**budgeted, "budget": "18s"}, output, resume=True, allow_changes=True).step == 18


def test_ranks_decide_alike_and_a_killed_one_is_resumed(data, tmp_path):
    mapping = trapezoid(data, budget="3s")
    codes, _, _ = run_pretraining(mapping, tmp_path / "training", fail=(1, 5, "kill"))
    assert codes[1] == -signal.SIGKILL
    codes, reports, _ = run_pretraining(mapping, tmp_path / "training", resume=True)
    assert codes == [0, 0], reports
    assert reports[0] == reports[1]
    assert reports[0]["status"] == "finished"
    steps = train_events(tmp_path / "training")
    assert list(steps) == list(range(1, reports[0]["step"] + 1))

    # An uninterrupted training with the steps that the clock decided has the same bits.
    decided = load_manifest(tmp_path / "training" / "model").provenance["budget"]
    first, last = decided["phase_ends"]
    uninterrupted = trapezoid(data, steps=(first, last - first))
    uninterrupted["decay_share"] = 1 - decided["decay_start"] / last
    assert run_pretraining(uninterrupted, tmp_path / "uninterrupted")[0] == [0, 0]
    assert_same_training(tmp_path / "training", tmp_path / "uninterrupted")


def test_batch_grows_during_the_warm_up(data, tmp_path):
    phase = PhaseConfig(warmup_steps=4, global_batch_size=16, initial_batch_size=4)
    assert [phase.samples_in(step) for step in range(7)] == [0, 4, 12, 24, 40, 56, 72]
    mapping = trapezoid(data, steps=(6, 2))
    mapping["phases"][0] |= {"warmup_steps": 4, "initial_batch_size": 4}
    Machine().train(mapping, tmp_path / "training")
    seen = [
        event["metrics"]["train/tokens_seen"]
        for event in read_events(tmp_path / "training")
        if event["event"] == "train"
    ]
    assert seen[0] <= 4 * 16 < seen[1]

    # A stop during the growth changes nothing.
    machine, stopped = Machine(), {**mapping, "checkpoint_interval_steps": 2}
    machine.train(stopped, tmp_path / "stopped", vanish=3)
    machine.train(stopped, tmp_path / "stopped", resume=True)
    assert_same_training(tmp_path / "stopped", tmp_path / "training")

    mapping["phases"][0]["initial_batch_size"] = 5
    with pytest.raises(ConfigurationError, match="initial_batch_size: found 5, expected a divisor"):
        from_mapping(PretrainingConfig, mapping)
    mapping["phases"][0] |= {"initial_batch_size": 4, "warmup_steps": 0}
    with pytest.raises(ConfigurationError, match="and warmup_steps in which the batch grows"):
        from_mapping(PretrainingConfig, mapping)


def test_trapezoid_warms_up_keeps_its_rate_and_decays():
    rates = [trapezoid_at(step, peak=1.0, warmup_steps=2, decay_start=5, end=9) for step in range(9)]
    assert rates == [0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budget": "3 hours"}, "budget: found '3 hours'"),
        ({"budget": "0h"}, "budget: found '0h'"),
        ({"budget": "3h", "schedule": "phase"}, "with schedule=phase, expected .* schedule=trapezoid"),
    ],
)
def test_unusable_budget_is_refused(data, changes, message):
    with pytest.raises(ConfigurationError, match=message):
        from_mapping(PretrainingConfig, {**trapezoid(data), **changes})


def test_only_the_first_phase_of_a_trapezoid_warms_up(data):
    mapping = trapezoid(data)
    mapping["phases"][1]["warmup_steps"] = 1
    with pytest.raises(ConfigurationError, match=r"phases\.1\.warmup_steps: found 1, expected 0"):
        from_mapping(PretrainingConfig, mapping)
