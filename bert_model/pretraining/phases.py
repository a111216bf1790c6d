"""Phases of a run: each phase of the configuration with its instances and its position in the run."""

import dataclasses
import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bert_model.pretraining.config import PhaseConfig, PretrainingConfig
from bert_model.pretraining.data import InstanceSplit
from bert_model.training.metrics_log import DataInput
from bert_pipeline.errors import ConfigurationError, TrainingError
from bert_pipeline.instances.masking import SINGLE_PIECES, MaskingConfig, continuing
from bert_pipeline.storage import is_remote
from bert_pipeline.vocabulary.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

UNDECIDED = 1 << 40
"""End of a phase that the clock has not decided yet: beyond all steps."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A phase of the configuration with its data and its position in the run."""

    index: int
    config: PhaseConfig
    masking: MaskingConfig
    train: InstanceSplit
    held_out: InstanceSplit
    first_step: int = 0
    end_step: int = 0
    """Step after its last update; `UNDECIDED` if the clock will decide it."""
    first_position: int = 0
    """Samples of the same instances that earlier phases have consumed; this phase continues after them."""

    def batch_size_at(self, step: int) -> int:
        """Return the number of instances in the update of `step`, over all ranks."""
        return self.position_at(step + 1) - self.position_at(step)

    @property
    def data(self) -> DataInput:
        """The instances, as an input of the run."""
        return {
            "name": f"instances-{self.config.max_seq_length}",
            "kind": "instances",
            "sha256": self.train.manifest.sha256,
            "context": "training",
            "num_rows": self.train.num_instances,
        }

    def position_at(self, step: int) -> int:
        """Return the position in the data before the update of `step`."""
        return self.first_position + self.config.samples_in(step - self.first_step)

    def passes_before(self, step: int) -> float:
        """Return the passes over the text that this phase's updates before `step` make."""
        return self.config.samples_in(step - self.first_step) * self.passes_per_sample

    @property
    def passes_per_sample(self) -> float:
        """Part of the text, of 1, that an instance holds: with a dupe_factor the instances hold it several times."""
        manifest = self.train.manifest
        return float(manifest.configuration.get("dupe_factor", 1)) / self.train.num_instances


def load_phases(config: PretrainingConfig) -> tuple[list[Phase], Tokenizer]:
    """Open the instances of every phase; raise if they do not fit the phases or one another."""
    phases: list[Phase] = []
    tokenizer: Tokenizer | None = None
    for index, phase in enumerate(config.phases):
        where = f"phases.{index}"
        if not phase.instances:
            raise ConfigurationError(f"{where}.instances: not given; name an instance directory")
        train, held_out = InstanceSplit(phase.instances, "train"), InstanceSplit(phase.instances, "held_out")
        train.check_fits(max_seq_length=phase.max_seq_length, where=where)
        first = train.read(train.groups[0])
        if config.objective == "mlm_nsp" and (first.segment_b_start == first.lengths).all():
            raise ConfigurationError(
                f"{where}.instances: {phase.instances} holds rows of text without pairs, and objective=mlm_nsp learns "
                "next sentences from pairs; give objective=mlm, or instances made with --pairs next_sentence"
            )
        if not held_out.num_instances:
            logger.warning("%s: no held-out instances, so the phase is not evaluated", phase.instances)
        # One vocabulary throughout: that of the first phase.
        phase_tokenizer = Tokenizer.from_directory(phase.instances)
        for split in (train, held_out):
            split.check_vocabulary(phase_tokenizer)
        if tokenizer is None:
            tokenizer = phase_tokenizer
        elif tokenizer.sha256 != phase_tokenizer.sha256:
            raise ConfigurationError(
                f"{where}.instances: {describe_vocabularies('phase 0', tokenizer, where, phase_tokenizer)}"
            )

        masking = config.masking_of(phase)
        joins = masking.whole_word_masking and not first.is_masked
        if joins and not continuing(first.input_ids, phase_tokenizer, first.continues_word).any():
            logger.warning("%s: %s", phase.instances, SINGLE_PIECES)
        phases.append(Phase(index=index, config=phase, masking=masking, train=train, held_out=held_out))
    assert tokenizer is not None
    ends = list(itertools.accumulate(phase.steps for phase in config.phases))
    return place_phases(phases, [UNDECIDED] * len(ends) if config.budget else ends), tokenizer


def with_own_copies(phases: list[Phase], config: PretrainingConfig) -> list[Phase]:
    """Return rank 0's phases; those with instances in a store read this rank's copy, as its host may be another."""
    if not any(is_remote(phase.instances) for phase in config.phases):
        return phases
    own, _ = load_phases(config)
    for phase, copy in zip(phases, own):
        if copy.train.manifest.sha256 != phase.train.manifest.sha256:
            raise TrainingError(f"{copy.config.instances}: replaced while the ranks were starting; start again")
    return own


def place_phases(phases: Sequence[Phase], ends: Sequence[int]) -> list[Phase]:
    """Return the phases with their steps and positions, given the step after which each of them ends."""
    placed: list[Phase] = []
    consumed: dict[str, int] = {}  # samples of each instance directory that the phases so far consume
    first_step = 0
    for phase, end in zip(phases, ends):
        # A later phase on the same instances reads on where the earlier one ended.
        key = phase.train.manifest.sha256
        placed.append(
            dataclasses.replace(phase, first_step=first_step, end_step=end, first_position=consumed.get(key, 0))
        )
        consumed[key] = placed[-1].position_at(end)
        first_step = end
    return placed


def warn_of_moved_samples(phases: Sequence[Phase], state: Mapping[str, Any]) -> None:
    """Warn if the phases place the step of a checkpoint's state at another sample than the run was at."""
    step, index, former = state["step"], state["phase"], state["position"]
    if index >= len(phases):
        return
    phase = phases[index]
    if not phase.first_step <= step <= phase.end_step:
        logger.warning(
            f"step {step} was in phase {index} and is in another one now, because the phases have changed; that phase "
            "continues at the sample of this step"
        )
    elif (position := phase.position_at(step)) != former:
        between = "skipped" if position > former else "read again"
        logger.warning(
            f"so far this run read the samples before {former}, now its batch sizes place step {step} at sample "
            f"{position}: those between are {between}"
        )


def data_inputs(phases: Sequence[Phase]) -> list[DataInput]:
    """Return the data sets of a run: the instances of its phases, and the corpora and vocabularies they are made of."""
    inputs: list[DataInput] = []
    for phase in phases:
        inputs.append(phase.data)
        # An artifact is identified by its content, a vocabulary by what decides the ids.
        for name, entry in phase.train.manifest.inputs.items():
            sha256 = entry.get("content_sha256") or entry.get("sha256")
            if sha256:
                inputs.append({"name": name, "kind": name, "sha256": sha256, "context": "source"})
    return [item for index, item in enumerate(inputs) if item not in inputs[:index]]


def describe_vocabularies(one: str, tokenizer: Tokenizer, other: str, other_tokenizer: Tokenizer) -> str:
    """Return the error text for two vocabularies that differ but must not."""
    return f"two vocabularies: {one} has {tokenizer}, {other} has {other_tokenizer}; use one vocabulary throughout"
