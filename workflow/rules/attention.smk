# SPDX-License-Identifier: Apache-2.0
"""Time of decode attention, and memory of the KV cache. Without a GPU the records say so."""


rule attention:
    input:
        wanted_attention,


rule measure_attention:
    input:
        library=rules.build_kernels.output.library,
    output:
        result_path("records", "attention", "{model}.jsonl"),
    log:
        log_path("attention", "{model}.log"),
    benchmark:
        "benchmarks/{machine}/attention-{model}.tsv"
    conda:
        "../../environment.yml"
    resources:
        gpu=1,
    params:
        backends=config["attention"]["backends"],
        seed=config["seed"],
        # Finished cases: a job that was killed goes on where it stopped.
        keep=attention_cases_folder,
        # A record that was skipped is measured again when this changes.
        capability=CAPABILITY,
    script:
        "../scripts/attention.py"
