# SPDX-License-Identifier: Apache-2.0
"""FMPQ: a calibrated, packed checkpoint of each model."""


rule quantize:
    input:
        [
            own_path("quantized", model, checkpoint, "layers.json")
            for model, checkpoint in CHECKPOINTS
        ],


rule quantize_model:
    input:
        model=resource_path("models", "{model}", "config.json"),
        text=resource_path("texts", config["calibration"]["text"], "calibration.jsonl"),
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
    threads: 2
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
