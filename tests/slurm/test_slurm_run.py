# SPDX-License-Identifier: Apache-2.0
"""The workflow on a real Slurm: who runs when and where, what is told when a job fails, resuming.

All runs but one are started first, beside each other: a time limit is a minute at least, and most
of a run is waiting.
"""

import copy
import itertools
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
from cluster import wait_until
from runner import REPOSITORY, Inputs
from submitting import Submitting, default_resources

pytestmark = pytest.mark.slurm

TEXT = "resources/texts/tiny/test.jsonl"
NO_RETRY = {"retries": 0}
# Seconds until a step that takes a few on an idle machine counts as stuck.
PATIENCE = 300


class Started:
    """A run in the background; its output is read all the time, so that it never waits for that."""

    def __init__(self, workflow: Submitting, target: str) -> None:
        self.workflow = workflow
        self.process = workflow.start(target)
        self._reading = ThreadPoolExecutor(1).submit(self.process.communicate)

    def ended_within(self, seconds: float) -> bool:
        return bool(wait([self._reading], seconds).done)

    def output(self, expect: int) -> str:
        printed, _ = self._reading.result(timeout=PATIENCE)
        assert self.process.returncode == expect, printed
        return printed


def broken_text(inputs: Inputs, folder) -> dict:
    """A configuration whose text is not what it says."""
    folder.mkdir()
    (folder / "broken.jsonl").write_text("not JSON\n", encoding="utf-8")
    config = copy.deepcopy(inputs.config)
    config["texts"]["tiny"]["source"]["path"] = str(folder / "broken.jsonl")
    return config


def whole_config(inputs: Inputs) -> dict:
    """More jobs for a GPU at a time than there are GPUs."""
    config = copy.deepcopy(inputs.config)
    config["accuracy"]["rows"] = ["w16a16", "w16a16-kv4", "fmpq-w4ax"]
    return config


@pytest.fixture(scope="module", autouse=True)
def runs(cluster, inputs, tmp_path_factory):
    """Runs that time out, are cancelled, fail, ask for what there is not, and a whole one."""
    base = tmp_path_factory.mktemp("runs")
    minute = NO_RETRY | default_resources(runtime=1)
    broken = broken_text(inputs, base / "text")
    plans = {
        "timed-out": (TEXT, inputs.config, minute, {"COMET_HANG": "prepare_text"}),
        "cancelled": (TEXT, inputs.config, NO_RETRY, {"COMET_HANG": "prepare_text"}),
        "failed": (TEXT, broken, {"retries": 1}, {}),
        "impossible": (TEXT, inputs.config, NO_RETRY | default_resources(gpu=9), {}),
        "whole": ("report", whole_config(inputs), {}, {"COMET_SLOW": "evaluate"}),
    }
    started = {}
    for name, (target, config, profile, variables) in plans.items():
        workflow = Submitting(base / name, config, profile, **variables)
        started[name] = Started(workflow, target)
    yield started
    for run in started.values():
        run.process.kill()


def test_an_impossible_request_shows_the_sbatch_line(runs):
    output = runs["impossible"].output(expect=1)
    assert "Requested node configuration is not available" in output
    (line,) = [line for line in output.splitlines() if "sbatch --parsable" in line][:1]
    assert "--gpus=9" in line
    assert not runs["impossible"].workflow.spans()


def test_a_cancelled_job_is_reported(cluster, runs):
    run = runs["cancelled"]
    wait_until(
        lambda: run.workflow.started("prepare_text") or run.process.poll() is not None, PATIENCE
    )
    (job,) = cluster.jobs(run.workflow.directory)
    cluster.cancel(job)
    output = run.output(expect=1)
    assert "CANCELLED" in output
    assert f"SLURM-job '{job.number}' failed" in output
    assert len(run.workflow.spans()) == 1


def test_a_failing_job_is_tried_again_and_reported_with_its_log(cluster, runs):
    run = runs["failed"]
    output = run.output(expect=1)
    assert len(run.workflow.spans()) == 2
    assert len(cluster.jobs(run.workflow.directory)) == 2
    assert "logs/resources/text-tiny.log" in output
    reasons = [line for line in output.splitlines() if line.startswith("comet: ")]
    assert any("broken.jsonl:1 is not" in line for line in reasons)
    assert not (run.workflow.directory / TEXT).exists()


@pytest.fixture(scope="module")
def whole(runs) -> Submitting:
    """The whole workflow, finished."""
    runs["whole"].output(expect=0)
    return runs["whole"].workflow


def test_each_job_runs_once(cluster, whole):
    spans = [span for span in whole.spans() if span.job]
    expected = {"prepare_model": 1, "prepare_text": 1, "quantize": 1, "evaluate": 3}
    assert Counter(span.script for span in spans) == expected
    jobs = cluster.jobs(whole.directory)
    assert sorted(job.number for job in jobs) == sorted(span.job for span in spans)
    for job in jobs:
        assert job.fields["JobState"] == "COMPLETED"
        assert (job.fields["NumTasks"], job.fields["Restarts"]) == ("1", "0")


def test_two_jobs_at_a_time_each_on_its_own_gpu(cluster, whole):
    on_gpu = [span for span in whole.spans() if span.script in ("quantize", "evaluate")]
    assert {span.devices for span in on_gpu} == {"0", "1"}
    together = [
        pair
        for pair in itertools.combinations(on_gpu, 2)
        if max(span.start for span in pair) < min(span.end for span in pair)
    ]
    assert together
    assert all(one.devices != other.devices for one, other in together)
    for job in cluster.jobs(whole.directory):
        wants_gpu = job.rule in ("quantize_model", "evaluate")
        assert job.fields["Partition"] == ("gpu" if wants_gpu else "cpu")
        assert job.fields.get("TresPerJob") == ("gres:gpu:a100:1" if wants_gpu else None)
    elsewhere = [span for span in whole.spans() if span.script.startswith("prepare")]
    assert {span.devices for span in elsewhere} == {None}


def comparable(workflow, kind: str) -> dict:
    """Records by backend without what differs between two runs of the same thing."""
    plain = {}
    for record in workflow.records(kind):
        assert record["status"] == "ok", record
        known = {key: record["provenance"][key] for key in ("seed", "comet", "command")}
        plain[record["backend"], record["metric"]] = record | {"provenance": known}
    return plain


def test_the_results_are_those_of_a_local_run(whole, finished_run):
    local = comparable(finished_run, "accuracy")
    submitted = comparable(whole, "accuracy")
    assert local
    assert {key: submitted[key] for key in local} == local
    assert (whole.directory / "results" / "local-tiny" / "report.html").exists()


def test_an_interrupted_run_resumes_despite_the_scheduler(
    cluster, whole, inputs, folder, finished_run
):
    config = copy.deepcopy(inputs.config)
    config["accuracy"]["rows"] = ["fmpq-w4ax"]
    workflow = Submitting(folder, config, COMET_SLOW="evaluate")
    shutil.copytree(whole.directory / "resources", folder / "resources", symlinks=True)
    workflow.interrupt("accuracy", lambda: workflow.started("evaluate"), signal.SIGINT)
    wait_until(lambda: not running(cluster, folder), 30)
    assert [span.script for span in workflow.spans() if span.end and span.job] == ["quantize"]
    before = len(workflow.spans())
    resumed = Started(workflow, "accuracy")
    wait_until(lambda: len(workflow.spans()) > before, PATIENCE)
    with cluster.without_controller():
        wait_until(lambda: workflow.spans()[-1].end, PATIENCE)
    # A status query that failed makes version 2.8 of Snakemake's plugin forget the jobs it asked
    # for; docs/cluster.md says what to do then.
    if not resumed.ended_within(30):
        os.killpg(resumed.process.pid, signal.SIGINT)
        resumed.output(expect=1)
        workflow.run("accuracy")
    assert [span.script for span in workflow.spans() if span.end and span.job].count(
        "quantize"
    ) == 1
    found, local = comparable(workflow, "accuracy"), comparable(finished_run, "accuracy")
    assert found == {key: local[key] for key in found}


def running(cluster, folder) -> list:
    states = ("RUNNING", "PENDING", "COMPLETING")
    return [job for job in cluster.jobs(folder) if job.fields["JobState"] in states]


def test_a_job_over_its_time_is_reported(cluster, runs):
    run = runs["timed-out"]
    output = run.output(expect=1)
    assert "TIMEOUT" in output
    (job,) = cluster.jobs(run.workflow.directory)
    assert job.fields["JobState"] == "TIMEOUT"
    assert f"SLURM-job '{job.number}' failed" in output


def test_a_node_is_asked_what_will_run_there(cluster):
    page = (REPOSITORY / "docs" / "cluster.md").read_text(encoding="utf-8")
    (line,) = [line for line in page.splitlines() if line.startswith("srun ")]
    command = line.replace("comet doctor", f"{sys.executable} -m comet.cli doctor --no-network")
    done = subprocess.run(
        shlex.split(command), cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    assert "fig9" in done.stdout
