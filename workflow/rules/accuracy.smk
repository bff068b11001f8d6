# SPDX-License-Identifier: Apache-2.0
"""Perplexity and zero-shot accuracy of every model and row that the configuration names."""


rule accuracy:
    input:
        own_path("accuracy.jsonl"),


rule choices:
    input:
        compared_choices,


rule compare_choices:
    input:
        model=resource_path("models", "{model}", "config.json"),
        calibration=resource_path(
            "texts", config["calibration"]["text"], "calibration.jsonl"
        ),
        text=resource_path("texts", config["accuracy"]["texts"][0], "test.jsonl"),
    output:
        result_path("records", "choices", "{model}.jsonl"),
    log:
        log_path("choices", "{model}.log"),
    benchmark:
        "benchmarks/{machine}/choices-{model}.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        gpu=int(DEVICE == "cuda"),
    params:
        options=config["fmpq"],
        calibration=config["calibration"],
        accuracy=scored_windows,
        seed=config["seed"],
        device=DEVICE,
    script:
        "../scripts/compare_choices.py"


# Every row on more windows and tasks, under config/accuracy_full.yaml.
rule accuracy_full:
    input:
        full_study,


# Whole texts and tasks, under config/accuracy_gpu.yaml.
rule accuracy_gpu:
    input:
        gpu_study,


rule audit_protocol:
    input:
        model=audited_model,
        text=resource_path("texts", config["accuracy"]["texts"][0], "test.jsonl"),
        checkpoint=audited_checkpoint,
    output:
        result_path("records", "protocol", "{case}.jsonl"),
    log:
        log_path("protocol", "{case}.log"),
    benchmark:
        "benchmarks/{machine}/protocol-{case}.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        gpu=int(DEVICE == "cuda"),
    params:
        audited=audited,
        protocol=config["protocol"],
        context=config["accuracy"]["context"],
        dtype=config["accuracy"]["dtype"],
        seed=config["seed"],
        device=DEVICE,
    script:
        "../scripts/audit_protocol.py"


rule compare_kv_caches:
    input:
        model=kv_study_model,
        text=resource_path("texts", config["accuracy"]["texts"][0], "test.jsonl"),
    output:
        result_path("records", "kvcache", "{case}.jsonl"),
    log:
        log_path("kvcache", "{case}.log"),
    benchmark:
        "benchmarks/{machine}/kvcache-{case}.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        gpu=int(DEVICE == "cuda"),
    params:
        study=kv_study,
        dtype=config["accuracy"]["dtype"],
        seed=config["seed"],
        device=DEVICE,
    script:
        "../scripts/compare_kv_caches.py"


rule evaluate:
    input:
        model=evaluated_model,
        text=evaluated_text,
        checkpoint=evaluated_checkpoint,
    output:
        result_path("records", "accuracy", "{case}.jsonl"),
    log:
        log_path("accuracy", "{case}.log"),
    benchmark:
        "benchmarks/{machine}/accuracy-{case}.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        gpu=int(DEVICE == "cuda"),
    params:
        evaluated=evaluated,
        dtype=config["accuracy"]["dtype"],
        task_batch=config["accuracy"]["task_batch"],
        harness=harness_installed(),
        integer_windows=config["accuracy"]["integer_check_windows"],
        seed=config["seed"],
        device=DEVICE,
    script:
        "../scripts/evaluate.py"
