"""The registry from the UI: decide a promotion by hand, and undo one."""

from typing import Any

import dagster as dg
from pydantic import Field

from bert_model.registry.promotion import GateConfig
from workflows.configuration import config_class, from_launchpad, launchpad_preset
from workflows.defs.promotion import REGISTRY_POOL
from workflows.metadata import readable_failures
from workflows.resources import BertHome

NAME = (str, Field(description="Registered model, such as bert-tiny or bert-tiny-sst2."))

DecisionLaunchpad: Any = config_class(
    GateConfig,
    name="DecisionLaunchpad",
    defaults=launchpad_preset().promotion,
    extra={
        "name": NAME,
        "version": (int, Field(default=0, description="Version to promote; 0 takes the newest.")),
        "dry_run": (bool, Field(default=True, description="Print the decision and change nothing.")),
    },
)


class RollbackLaunchpad(dg.Config):
    """Whose champion goes back."""

    name: str = NAME[1]


@dg.op(pool=REGISTRY_POOL)
def hold_against_gates(context: dg.OpExecutionContext, config: DecisionLaunchpad, home: BertHome) -> None:
    """Hold a version against the gates, and make it champion unless this is a dry run."""
    from bert_model.registry.registry import promote

    home.apply_environment()
    with readable_failures():
        gates = from_launchpad(GateConfig, config)
        decision = promote(config.name, config.version or None, config.dry_run, config=gates)
        context.log.info(f"\n{decision.table()}")
        if not config.dry_run:
            decision.require()


@dg.op(pool=REGISTRY_POOL)
def give_champion_back(context: dg.OpExecutionContext, config: RollbackLaunchpad, home: BertHome) -> None:
    """Give the alias champion back to the version that held it before."""
    from bert_model.registry.registry import rollback

    home.apply_environment()
    with readable_failures():
        version = rollback(config.name)
    context.log.info(f"{version.name} version {version.version} is champion again")


@dg.job(name="promote", description="Print the decision on a version, and promote it where dry_run is off.")
def promote_job() -> None:
    hold_against_gates()


@dg.job(name="rollback", description="Give the alias champion of a registered model back to its former holder.")
def rollback_job() -> None:
    give_champion_back()
