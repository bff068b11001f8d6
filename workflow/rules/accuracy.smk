# SPDX-License-Identifier: Apache-2.0
"""Token perplexity of every model, text and row that the configuration names."""


rule accuracy:
    input:
        own_path("accuracy.jsonl"),


rule choices:
    input:
        compared_choices,


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
    threads: 2
    resources:
        gpu=int(DEVICE == "cuda"),
    params:
        evaluated=evaluated,
        dtype=config["accuracy"]["dtype"],
        integer_windows=config["accuracy"]["integer_check_windows"],
        seed=config["seed"],
        device=DEVICE,
    script:
        "../scripts/evaluate.py"
