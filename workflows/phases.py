"""The phases of a whole run, and the assets of each: what `workflows.run`, the jobs and the console share."""

PHASES = ("data", "pretraining", "finetuning", "report")
PHASE_ASSETS = {
    "data": ("dump", "corpus", "vocabulary", "instances"),
    "pretraining": ("pretrained_model", "registered_pretrained_model"),
    "finetuning": ("task_data", "finetuned_model", "registered_task_model"),
    "report": ("report", "promotion_decision"),
}
DUMP_ASSETS = PHASE_ASSETS["data"] + PHASE_ASSETS["pretraining"]
"""From a dump to a registered pre-trained model: all on the partition `dump`."""
TASK_ASSETS = PHASE_ASSETS["finetuning"]
"""On the partitions `dump` × `task`."""
ON_REQUEST = ("predictions",)
"""Made from files of the user's own, for a task, with whichever version is champion: no phase of a run."""
ASSETS = (*DUMP_ASSETS, *TASK_ASSETS, *PHASE_ASSETS["report"], *ON_REQUEST)

JOB_TAG = "job"
JOBS = {
    "retrain": DUMP_ASSETS,
    "evaluate_tasks": TASK_ASSETS,
    "write_report": PHASE_ASSETS["report"],
    "predict": ON_REQUEST,
}
"""The jobs in the UI, and the assets that each makes."""


def job_tags(asset: str) -> dict[str, str]:
    """The tag of an asset that names its job, to select by in the UI: `tag:job=retrain`."""
    return {JOB_TAG: next(job for job, assets in JOBS.items() if asset in assets)}


def asset_of_step(step: str) -> str:
    """The asset that a step makes or checks: a check's step is called asset_check."""
    return next((name for name in ASSETS if step == name or step.startswith(f"{name}_")), step)
