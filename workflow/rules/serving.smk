# SPDX-License-Identifier: Apache-2.0
"""End-to-end throughput of serving engines. Without a GPU or an engine the records say so."""


rule serving:
    input:
        wanted_serving,


rule measure_serving:
    input:
        library=rules.build_kernels.output.library,
    output:
        result_path("records", "serving", "{start}.jsonl"),
    log:
        log_path("serving", "{start}.log"),
    benchmark:
        "benchmarks/{machine}/serving-{start}.tsv"
    conda:
        "../../environment.yml"
    resources:
        gpu=1,
    params:
        job=serving_job,
        repeats=config["serving"]["repeats"],
        seed=config["seed"],
        keep=serving_cases_folder,
        # A record that was skipped is measured again when this changes.
        capability=CAPABILITY,
        engines=SERVING_ENGINES,
    script:
        "../scripts/serving.py"
