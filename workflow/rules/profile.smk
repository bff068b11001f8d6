# SPDX-License-Identifier: Apache-2.0
"""How well the linear layers use the GPU: hardware counters where permitted, NVML readings."""


rule profile:
    input:
        wanted_profile,


rule profile_gemm:
    input:
        library=rules.build_kernels.output.library,
        shapes=repository_path("resources", "paper", "model_shapes.csv"),
    output:
        result_path("records", "profile", "{model}.jsonl"),
    log:
        log_path("profile", "{model}.log"),
    benchmark:
        "benchmarks/{machine}/profile-{model}.tsv"
    conda:
        "../../environment.yml"
    resources:
        gpu=1,
    params:
        profile=profile_settings,
        seed=config["seed"],
        # A record that was skipped is measured again when this changes.
        capability=CAPABILITY,
        ncu=COUNTERS,
    script:
        "../scripts/profile_gemm.py"
