# SPDX-License-Identifier: Apache-2.0
"""FMPQ: a calibrated, packed checkpoint of each model."""


rule quantize:
    input:
        [
            own_path("quantized", model, checkpoint, "layers.json")
            for model, checkpoint in CHECKPOINTS
        ],


# What errors of the calibration tokens cost, for all that are quantized with `end_loss`.
rule weigh_tokens:
    input:
        model=resource_path("models", "{model}", "config.json"),
        text=resource_path("texts", config["calibration"]["text"], "calibration.jsonl"),
    output:
        temp(result_path("token_weights", "{model}.safetensors")),
    log:
        log_path("token_weights", "{model}.log"),
    benchmark:
        "benchmarks/{machine}/token-weights-{model}.tsv"
    conda:
        "../../environment.yml"
    threads: 2
    resources:
        gpu=int(DEVICE == "cuda"),
    params:
        dtype=config["accuracy"]["dtype"],
        calibration=config["calibration"],
        device=DEVICE,
    script:
        "../scripts/weigh_tokens.py"


# One thread: many small steps, which threads only slow down. Models run side by side instead.
rule quantize_model:
    input:
        model=resource_path("models", "{model}", "config.json"),
        text=resource_path("texts", config["calibration"]["text"], "calibration.jsonl"),
        weights=checkpoint_weights,
    output:
        layers=result_path("quantized", "{model}", "{checkpoint}", "layers.json"),
        statistics=result_path(
            "quantized", "{model}", "{checkpoint}", "statistics.safetensors"
        ),
        records=result_path("records", "quantize", "{model}-{checkpoint}.jsonl"),
    log:
        log_path("quantize", "{model}-{checkpoint}.log"),
    benchmark:
        "benchmarks/{machine}/quantize-{model}-{checkpoint}.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        gpu=int(DEVICE == "cuda"),
    params:
        options=checkpoint_options,
        dtype=config["accuracy"]["dtype"],
        calibration=config["calibration"],
        seed=config["seed"],
        device=DEVICE,
    script:
        "../scripts/quantize.py"


# Restored weights take as much as the 16-bit model, so they go when every row has read them.
rule apply_method:
    input:
        model=resource_path("models", "{model}", "config.json"),
        text=resource_path("texts", config["calibration"]["text"], "calibration.jsonl"),
        weights=method_weights,
    output:
        temp(directory(result_path("methods", "{model}", "{method}"))),
    log:
        log_path("methods", "{model}-{method}.log"),
    benchmark:
        "benchmarks/{machine}/method-{model}-{method}.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        gpu=int(DEVICE == "cuda"),
    params:
        settings=method_settings,
        dtype=config["accuracy"]["dtype"],
        calibration=config["calibration"],
        seed=config["seed"],
        device=DEVICE,
    script:
        "../scripts/apply_method.py"


rule memory:
    input:
        MEMORY_RECORDS,


# The model and its checkpoint are removed when they are measured.
rule measure_memory:
    input:
        text=resource_path("texts", config["calibration"]["text"], "calibration.jsonl"),
        shapes=repository_path("resources", "paper", "model_shapes.csv"),
    output:
        result_path("records", "memory", "{model}.jsonl"),
    log:
        log_path("memory", "{model}.log"),
    benchmark:
        "benchmarks/{machine}/memory-{model}.tsv"
    conda:
        "../../environment.yml"
    threads: 2
    resources:
        gpu=int(DEVICE == "cuda"),
    params:
        entry=model_entry,
        windows=config["memory"]["windows"],
        context=config["memory"]["context"],
        projected=config["memory"]["projected"],
        options=config["fmpq"],
        dtype=config["accuracy"]["dtype"],
        seed=config["seed"],
        device=DEVICE,
    script:
        "../scripts/measure_memory.py"
