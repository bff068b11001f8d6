# SPDX-License-Identifier: Apache-2.0
"""Time of the linear layers. Without a GPU the records say what is missing."""


rule build_variant:
    input:
        csrc_sources,
    output:
        library="build/kernels/variants/{variant}/libcomet_kernels.so",
        info="build/kernels/variants/{variant}/build.json",
    log:
        "logs/build/{variant}.log",
    benchmark:
        "benchmarks/build/{variant}.tsv"
    wildcard_constraints:
        variant="|".join(VARIANTS),
    conda:
        "../../environment.yml"
    threads: 2
    params:
        architectures=config["kernels"]["architectures"],
        defines=variant_defines,
    script:
        "../scripts/build_kernels.py"


# A model of the table of shapes, or a suite of comet.speed.cases.
rule measure_gemm:
    input:
        library=rules.build_kernels.output.library,
        variants=variant_libraries,
        shapes=repository_path("resources", "paper", "model_shapes.csv"),
    output:
        result_path("records", "gemm", "{model}.jsonl"),
    log:
        log_path("gemm", "{model}.log"),
    benchmark:
        "benchmarks/{machine}/gemm-{model}.tsv"
    conda:
        "../../environment.yml"
    resources:
        gpu=1,
    params:
        m=gemm_batches,
        backends=gemm_backends,
        seed=config["seed"],
        # Finished cases: a job that was killed goes on where it stopped.
        keep=gemm_cases_folder,
        # A record that was skipped is measured again when this changes.
        capability=CAPABILITY,
    script:
        "../scripts/gemm.py"
