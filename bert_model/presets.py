"""Whole-run presets: one YAML file that configures corpus, vocabulary, model and tasks."""

import argparse
import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from pydantic import NonNegativeInt, PositiveInt

from bert_model.finetuning.config import FinetuningConfig, task_configuration
from bert_model.pretraining.config import INITIAL_SIZE, PretrainingConfig
from bert_model.registry.promotion import GateConfig
from bert_pipeline.configuration import Share, configuration, from_mapping, override, read_yaml
from bert_pipeline.corpus.splits import CorpusConfig
from bert_pipeline.errors import ConfigurationError, UsageError, suggest
from bert_pipeline.exam.pairs import ExamConfig
from bert_pipeline.instances.pairs import InstancesConfig
from bert_pipeline.tasks.catalogue import NAME_PATTERN, TASKS, Task
from bert_pipeline.vocabulary.wordpiece import VocabularyConfig

PRESETS_DIRECTORY = Path(__file__).parent / "presets"

MISSPELLED = 0.75
"""Similarity (difflib's ratio) to the name of a paper's task from which a name is that of no other task."""


@configuration
class SampleConfig:
    """How large the generated sample encyclopedia is."""

    num_articles: PositiveInt = 1200
    """Number of articles."""


@configuration
class BeamConfig:
    """Where the Beam jobs of the data run."""

    runner: str = ""
    """Beam's runner, such as FlinkRunner; "" is this machine."""
    options: dict[str, str | int | float | bool] = field(default_factory=dict)
    """Its options by name, such as flink_master: "host:8081"; true for an option without a value."""

    @property
    def arguments(self) -> tuple[str, ...]:
        """The same as arguments after `--` on the command line."""
        flags = {"runner": self.runner or False, **self.options}
        return tuple(
            f"--{name}" if value is True else f"--{name}={value}" for name, value in flags.items() if value is not False
        )


@configuration
class LaunchConfig:
    """On how many machines and processes a pre-training runs."""

    processes_per_node: NonNegativeInt = 0
    """Ranks on each machine; 0 takes one for each GPU, or one where there is none."""
    nodes: PositiveInt = 1
    """Number of machines."""
    rendezvous_endpoint: str = ""
    """host:port where the machines meet; needed with more than one."""
    threads_per_process: NonNegativeInt = 1
    """CPU threads of each rank; 0 leaves the choice to the libraries."""

    def __post_init__(self) -> None:
        if self.nodes > 1 and not self.rendezvous_endpoint:
            raise ConfigurationError(
                f"rendezvous_endpoint: found none for {self.nodes} nodes, expected host:port of one of them"
            )


@configuration
class TaskRunsConfig:
    """How every task is fine-tuned and what the result is compared with."""

    default: dict[str, Any] = field(default_factory=dict)
    """Fine-tuning settings of all tasks."""
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What differs for a task, by its name."""
    comparison: bool = True
    """Fine-tune from random weights too, with the same search; and for `random_step_multiple` times the steps."""
    dev_fraction: Share = 0.0
    """Where a task has one file only: the share of it that becomes the dev set ("own split"); 0 skips the task."""

    def __post_init__(self) -> None:
        for task in self.tasks:
            # Any other name may be that of a task of one's own, unless it is a misspelled one of the paper's.
            is_misspelled = bool(difflib.get_close_matches(task, TASKS, cutoff=MISSPELLED))
            if task not in TASKS and (is_misspelled or not NAME_PATTERN.fullmatch(task)):
                raise ConfigurationError(f"tasks: unknown task {task!r}{suggest(task, TASKS)}")
            self.for_task(task)
        self.for_task("")

    def for_task(self, task: str | Task) -> FinetuningConfig:
        """Return the settings of one task: the paper's, overridden by `default`, overridden by the task's own."""
        name = task if isinstance(task, str) else task.name
        settings = {"compare_random": self.comparison, **self.default, **self.tasks.get(name, {})}
        return task_configuration(task or "default", settings)


@configuration
class RunPreset:
    """Everything that a run from dump to scores needs to know."""

    name: str
    """The preset's name, taken from its file."""
    description: str = ""
    """What the preset is for, in a sentence."""
    sample: SampleConfig = field(default_factory=SampleConfig)
    """The generated sample, where the dump is one."""
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    """Dump to documents."""
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    """Documents to vocabulary."""
    instances: InstancesConfig = field(default_factory=InstancesConfig)
    """Documents to training instances; `max_seq_length` comes from the phases of pre-training."""
    exam: ExamConfig | None = None
    """Held-out documents to minimal pairs, which the pre-training is examined on; without this section there are
    none."""
    pretraining: PretrainingConfig
    """The pre-training."""
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    """Machines and processes of the pre-training."""
    finetuning: TaskRunsConfig = field(default_factory=TaskRunsConfig)
    """The fine-tunings."""
    promotion: GateConfig = field(default_factory=GateConfig)
    """The gates of promotion."""
    beam: BeamConfig = field(default_factory=BeamConfig)
    """Where the Beam jobs run."""
    beam_options: tuple[str, ...] = ()
    """More options of the Beam jobs, as after `--` on the command line."""

    def __post_init__(self) -> None:
        if self.instances.pairs == "none" and self.pretraining.objective == "mlm_nsp":
            raise ConfigurationError(
                "instances.pairs: found 'none' with pretraining.objective='mlm_nsp', which learns next sentences from "
                "pairs; expected 'next_sentence', or objective 'mlm'"
            )
        if self.instances.max_seq_length != InstancesConfig.max_seq_length:
            raise ConfigurationError(
                f"instances.max_seq_length: found {self.instances.max_seq_length}; set that of each phase instead"
            )

    @property
    def beam_arguments(self) -> tuple[str, ...]:
        """All options of the Beam jobs, as after `--` on the command line."""
        return (*self.beam.arguments, *self.beam_options)

    @property
    def sequence_lengths(self) -> tuple[int, ...]:
        """Lengths of the instances that the phases of pre-training need, without duplicates, in order."""
        return tuple(dict.fromkeys(phase.max_seq_length for phase in self.pretraining.phases))


def preset_names() -> tuple[str, ...]:
    """Return the names of the presets in the package."""
    return tuple(sorted(path.stem for path in PRESETS_DIRECTORY.glob("*.yaml")))


def preset_path(name_or_path: str) -> Path:
    """Return the file of a preset by name or path; raise UsageError with the nearest known name."""
    if name_or_path in preset_names():
        return PRESETS_DIRECTORY / f"{name_or_path}.yaml"
    path = Path(name_or_path)
    if path.is_file():
        return path
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        raise UsageError(f"preset {name_or_path}: no such file; give a YAML file or one of {', '.join(preset_names())}")
    raise UsageError(f"preset {name_or_path!r} is not known{suggest(name_or_path, preset_names())}")


def load_preset(name_or_path: str) -> RunPreset:
    """Read a preset by name or path; raise ConfigurationError with key, value and reason."""
    path = preset_path(name_or_path)
    return preset_from_mapping(read_yaml(path), name=path.stem)


def preset_from_mapping(mapping: Mapping[str, Any], *, name: str) -> RunPreset:
    """Build a preset from plain YAML values."""
    if "pretraining" in mapping:
        mapping = {**mapping, "pretraining": _of_architecture(mapping["pretraining"])}
    return from_mapping(RunPreset, {"name": name, **mapping}, where=f"preset {name}")


def _of_architecture(section: Any, assignments: Sequence[str] = ()) -> Any:
    """Return a section `pretraining` with assignments; before them those that it has for its architecture."""
    if not isinstance(section, Mapping):  # refused by its class, as is a model that is no mapping
        return section
    own = section.get("architectures", {})
    plain = {key: value for key, value in section.items() if key != "architectures"}
    model = override(plain, assignments).get("model")
    architecture = model.get("architecture", "bert") if isinstance(model, Mapping) else "bert"
    return override(plain, [*own.get(architecture, ()), *assignments])


def with_phases_in(config: PretrainingConfig, directories: Mapping[int, Path | str]) -> PretrainingConfig:
    """Return `config` with the instance directory of each phase, by its sequence length."""
    phases = tuple(
        dataclasses.replace(phase, instances=str(directories[phase.max_seq_length])) for phase in config.phases
    )
    return dataclasses.replace(config, phases=phases)


def load_configuration(reference: str, assignments: Sequence[str] = ()) -> PretrainingConfig:
    """Read a pre-training configuration from a YAML file or a preset, with `key=value` overrides.

    Of a whole-run preset the section `pretraining` is read.
    """
    path = preset_path(reference)
    mapping = read_yaml(path)
    section = mapping.get("pretraining", mapping)
    return from_mapping(PretrainingConfig, _of_architecture(section, assignments), where=path.name)


def pretraining_configuration(arguments: argparse.Namespace) -> Any:
    """Return the configuration that the command line of a pre-training states; without `--config` its class.

    UsageError if `--optimizer-state` or `--cased` is given without `--from`.
    """
    if arguments.config is None:
        return PretrainingConfig
    start = []
    if arguments.start:
        state = arguments.optimizer_state or "fresh"
        start = [f"initial_model={arguments.start}", f"initial_optimizer={state}", f"model.preset={INITIAL_SIZE}"]
    elif arguments.optimizer_state or arguments.cased is not None:
        raise UsageError("--optimizer-state, --cased: need --from MODEL, which they are about; none was given")
    return load_configuration(arguments.config, [*start, *arguments.assignments])
