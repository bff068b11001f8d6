# SPDX-License-Identifier: Apache-2.0
"""Input and parameter functions of the rules that watch kernels."""


def variant_defines(wildcards):
    return VARIANTS[wildcards.variant]


def wanted_profile(wildcards):
    """Joined profile records; a configuration without any is told what to name."""
    if not KINDS["profile"]:
        raise WorkflowError(
            "the key profile.models names no model; name one of resources/paper/model_shapes.csv"
        )
    return own_path("profile.jsonl")


def profile_settings(wildcards):
    return {key: value for key, value in config["profile"].items() if key != "models"}


SERVING = {job.name: job for job in serving_jobs(config["serving"]["runs"])}


def wanted_serving(wildcards):
    """Joined serving records; a configuration without any is told what to name."""
    if not SERVING:
        raise WorkflowError(
            "the key serving.runs is empty; config/h200.yaml shows what to name"
        )
    return own_path("serving.jsonl")


def serving_job(wildcards):
    return asdict(SERVING[wildcards.start])


def serving_cases_folder(wildcards):
    return str(Path(config["results"], wildcards.machine, "cases", "serving"))


def wanted_attention(wildcards):
    """Joined attention records; a configuration without any is told what to name."""
    if not KINDS["attention"]:
        raise WorkflowError(
            "the key attention.models names no model; config/README.md lists them"
        )
    return own_path("attention.jsonl")


def attention_cases_folder(wildcards):
    folder = Path(config["results"], wildcards.machine, "cases", "attention")
    return str(folder / wildcards.model)


def engine_profiles():
    """Profiled engines of this machine, which the command line makes, else of a reference run."""
    own = Path(own_path("serving-profile.jsonl"))
    return [str(own)] if own.is_file() else reference_files(["serving-profile"])
