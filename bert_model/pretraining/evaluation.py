"""The held-out measure of a published model, taken anew from its files."""

import json
from pathlib import Path
from typing import Any

from bert_model.model.bert import BertForPreTraining
from bert_model.model.weights import load_model
from bert_model.pretraining.config import PretrainingConfig
from bert_model.pretraining.data import InstanceSplit
from bert_model.pretraining.run_directory import CONFIGURATION_NAME
from bert_model.pretraining.trainer import Phase, Trainer
from bert_model.training.distributed import process_group
from bert_model.training.optimizer import build_optimizer
from bert_pipeline.configuration import from_mapping
from bert_pipeline.errors import ArtefactError
from bert_pipeline.vocabulary.tokenizer import Tokenizer


def measure_held_out(model: Path | str) -> dict[str, float]:
    """Evaluate a training's published model as its last evaluation did: "held_out/mlm_loss" and its companions.

    The configuration and the place of the instances are read from the training's directory around the model.
    ArtefactError when that is gone, ConfigurationError or InputError when model or instances do not fit.
    """
    model = Path(model)
    config = from_mapping(PretrainingConfig, _configuration(model.parent / CONFIGURATION_NAME) | {"compile": False})
    last = config.phases[-1]
    with process_group(config.timeout_seconds) as group:
        weights, _ = load_model(BertForPreTraining, model)
        weights.to(group.device)
        phase = Phase(
            index=len(config.phases) - 1,
            config=last,
            masking=config.masking_of(last),
            train=InstanceSplit(last.instances, "train"),
            held_out=InstanceSplit(last.instances, "held_out"),
            first_step=0,
            first_position=0,
        )
        trainer = Trainer(
            config,
            phases=[phase],
            model=weights,
            optimizer=build_optimizer(weights, config.optimizer, last.learning_rate),
            vocabulary=Tokenizer.from_directory(model),
            group=group,
            tracker=None,
            saver=None,
            should_stop=lambda: False,
        )
        return trainer.evaluate(phase)


def _configuration(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))["configuration"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtefactError(f"{path}: the training's configuration cannot be read ({error})") from None
