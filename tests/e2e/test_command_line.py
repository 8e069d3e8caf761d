"""`kubectl deepseek status` and `logs` with real pods. (`submit` is in test_admission.)"""

import pytest
from conftest import Apply, Command
from jobs import script

pytestmark = pytest.mark.e2e

TALK = (
    "import os, time\nfor line in range(5): print('line', line, 'of', os.environ['RANK'], flush=True); time.sleep(0.3)"
)
FAIL = (
    "import os, sys\nrank = os.environ['RANK']\nprint('here is', rank, flush=True)\nsys.exit(3 if rank == '1' else 0)"
)


def test_following_a_rank_ends_with_the_job(apply: Apply, deepseek: Command, namespace: str) -> None:
    job = apply(script("talk", TALK))
    job.wait_state("Running")
    followed = deepseek("logs", "talk", "-n", namespace, "--rank", "1", "--follow")
    assert followed.stdout.splitlines() == [f"[rank 1] line {line} of 1" for line in range(5)]
    watched = deepseek("status", "talk", "-n", namespace, "--watch")
    assert "Complete" in watched.stdout.splitlines()[-1]
    every = deepseek("logs", "talk", "-n", namespace, "--rank", "all").stdout
    assert "[rank 0] line 4 of 0" in every and "[rank 1] line 4 of 1" in every and "[slot 1] [agent]" in every


def test_a_failed_job_tells_what_failed_and_what_to_type(apply: Apply, deepseek: Command, namespace: str) -> None:
    body = script("fail", FAIL)
    del body["metadata"]["labels"]
    apply(body)
    watched = deepseek("status", "fail", "-n", namespace, "--watch", check=False)
    assert watched.returncode == 1 and "Failed" in watched.stdout.splitlines()[-1]
    shown = deepseek("status", "fail", "-n", namespace).stdout
    assert "RankFailed" in shown and "ended with exit code 3" in " ".join(shown.split())
    assert "ciuic.io/watchdog" in shown, "the watchdog is off: the next step says how to turn it on"
    failed = deepseek("logs", "fail", "-n", namespace, "--rank", "failed")
    assert failed.stdout.splitlines() == ["[rank 1] here is 1"]
    assert failed.stderr.startswith("rank 1, RankFailed: ")


def test_a_job_that_is_not_there(deepseek: Command, chart: None) -> None:
    result = deepseek("status", "nowhere", check=False)
    assert result.returncode == 1
    assert result.stderr.startswith("error: there is no DeepSeekJob nowhere in namespace default;")
