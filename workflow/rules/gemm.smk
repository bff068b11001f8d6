# SPDX-License-Identifier: Apache-2.0
"""Time of the linear layers. Without a GPU the records say what is missing."""


rule measure_gemm:
    input:
        library=rules.build_kernels.output.library,
        shapes=repository_path("resources", "paper", "model_shapes.csv"),
    output:
        result_path("records", "gemm", "{model}.jsonl"),
    log:
        log_path("gemm", "{model}.log"),
    conda:
        "../../environment.yml"
    resources:
        gpu=1,
    params:
        m=config["gemm"]["m"],
        backends=config["gemm"]["backends"],
        seed=config["seed"],
        # A record that was skipped is measured again when this changes.
        capability=CAPABILITY,
    script:
        "../scripts/gemm.py"
