# SPDX-License-Identifier: Apache-2.0
"""How to get what a machine lacks: the words of skipped records, of errors and of ``comet doctor``.

Each is the part of a message behind the reason, and stands on its own. Nothing is imported here, so
that every module may use them.
"""

GPU = "run the same command on a machine with an NVIDIA GPU; skipped records are then replaced"
REQUIREMENTS = "pip install -r requirements.txt"
TORCH = f"install the requirements: {REQUIREMENTS}"
TORCH_CUDA = "install a torch with CUDA: pip install -r {requirements}"
DRIVER = "use a driver {driver} or newer, or the other torch: pip install -r {requirements}"
OLD_DRIVER = (
    "update the driver: requirements-cuda12.txt needs {oldest} or newer, requirements.txt {newest}"
)
NVCC_DRIVER = (
    "name a CUDA toolkit of 12.4 to 12.9 in CUDA_HOME, such as a module of the cluster "
    "(docs/cluster.md)"
)
ARCHITECTURE = "name it in the config key kernels.architectures"
OLD_GPU = "use an Ampere GPU (A100) or a newer one"
COUNTERS_MISSING = (
    "install Nsight Compute, a part of the CUDA toolkit, or name its program in COMET_NCU"
)
COUNTERS_REFUSED = (
    "run as root or with CAP_SYS_ADMIN, or load the driver with options nvidia "
    "NVreg_RestrictProfilingToAdminUsers=0"
)
VLLM_KERNELS = "unpack vllm 0.24 and set COMET_VLLM_SITE to its folder"
VLLM_PLUGINS = "unset it, or add comet to it"
VLLM = (
    "install vLLM 0.24 and comet in an environment of their own (python3.12 -m venv vllm; "
    "vllm/bin/pip install -r requirements-vllm.txt) and set COMET_VLLM_PYTHON to its python"
)
TENSORRT_LLM_BENCH = (
    "install TensorRT-LLM in an environment of its own (python -m venv trtllm; "
    "trtllm/bin/pip install tensorrt_llm) and set COMET_TRTLLM_BENCH to its trtllm-bench"
)
QSERVE = "import what it measures elsewhere: comet bench serving --recorded FILE"
TENSORRT_LLM = (
    "install TensorRT-LLM in an environment of its own (python -m venv trtllm; "
    "trtllm/bin/pip install tensorrt_llm) and set COMET_TRTLLM_PYTHON to its python"
)
GATED = "accept its licence on the hub and log in with `hf auth login`, or declare a local folder"
NOT_ON_HUB = "check the name, or log in with `hf auth login`"
HUB = "connect to a network, or declare a local folder"
WHEEL = "connect to a network, or put the wheel into {folder}"
DISK = "free space, or set the config keys results and resources to folders of a larger disk"
MODEL_MEMORY = "use a device with more memory, or leave them out of the config key accuracy.models"
SMOKE = "say: snakemake --cores all smoke --configfile config/smoke.yaml"
CHOICES = "say: snakemake --cores all choices --configfile config/choices.yaml"
STUDY = "say: snakemake --cores all {target} report --configfile config/{target}.yaml"
NAME_MODEL = "name one of resources/paper/model_shapes.csv there (config/README.md)"
BUSY = (
    "end it, choose another GPU with CUDA_VISIBLE_DEVICES, or allow it with the config key "
    "gpu.busy: share (--busy-gpu share)"
)
CONFIG = "correct the configuration, or put what it names there (config/README.md)"
DEVICE = "run on a machine with an NVIDIA GPU, or say --config device=cpu"
