"""`kubectl deepseek lr`: what it draws is what the trainer will do, and a file it can not draw gets a sentence."""

import re
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from ciuic_api.learning_rate import learning_rate
from ciuic_api.training import Training
from ciuic_cli import __main__ as main
from ciuic_cli import plot
from ciuic_cli.curves import plan
from ciuic_cli.errors import CliError

EXAMPLE = Path(__file__).parents[3] / "deploy/examples/deepseekjob.yaml"


def training(**rate: Any) -> Training:
    return Training.model_validate({"steps": 100, "model": {"layers": 4}, "learningRate": {"peak": 1.0, **rate}})


def job_file(tmp_path: Path, *trainings: dict[str, Any] | None) -> str:
    documents = []
    for number, given in enumerate(trainings):
        spec = {"nodes": 1, **({"training": given} if given else {"command": ["python", "x.py"]})}
        metadata = {"name": f"job-{number}"}
        documents.append({"apiVersion": "ciuic.io/v1alpha1", "kind": "DeepSeekJob", "metadata": metadata, "spec": spec})
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    return str(path)


def test_the_series_are_the_rates_of_the_trainer() -> None:
    chosen = training(warmup="LayerWise", warmupSteps=40, curve="Annealing")
    found = plan(chosen, points=100)
    assert [series.label for series in found.series] == ["layer 1", "layer 3", "layer 4"]
    for series, warmup in zip(found.series, (10, 30, 40), strict=True):
        for step, value in zip(found.steps, series.values, strict=True):
            assert value == learning_rate(chosen.learning_rate, step, 100, warmup)
    assert found.at(20) == pytest.approx((found.series[0].values[found.steps.index(20)], 20 / 30, 20 / 40))


def test_what_the_controller_can_make_of_it_is_drawn_too() -> None:
    found = plan(training(adaptive={"floor": 0.25}), points=100)
    assert found.at(50)[1] == found.at(50)[0] * 0.25


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (1, 10), (2, 1), (10**9, 10**9), (5, 100)])
def test_odd_lengths_can_be_drawn(steps: int, warmup: int) -> None:
    found = plan(Training.model_validate({"steps": steps, "learningRate": {"warmupSteps": warmup}}), points=240)
    assert found.steps[0] == 1 and found.steps[-1] == steps
    assert plot.terminal(found, 60, 10).plain and plot.svg(found)


def test_the_terminal_shows_the_shape() -> None:
    """A curve that only falls has its highest dots on the left and its lowest on the right."""
    chosen = training(warmupSteps=0, minRatio=0)
    rows = plot.terminal(plan(chosen, points=100), columns=40, rows=8).plain.splitlines()[:8]
    heights = [next(row for row in range(8) if rows[row].partition("│")[2][column] != " ") for column in range(40)]
    assert heights == sorted(heights) and heights[0] == 0 and heights[-1] == 7
    assert heights[19] in (3, 4), "half way down half way through"


def test_the_svg_holds_every_series(tmp_path: Path) -> None:
    result = CliRunner().invoke(main.app, ["lr", str(EXAMPLE), "--svg", str(tmp_path / "lr.svg")])
    assert result.exit_code == 0, result.output
    root = xml.etree.ElementTree.parse(tmp_path / "lr.svg").getroot()
    (line,) = root.iter("{http://www.w3.org/2000/svg}polyline")
    heights = [float(point.partition(",")[2]) for point in line.attrib["points"].split()]
    assert len(heights) > 200 and min(heights) == pytest.approx(40) and heights[0] > heights[-1]


def test_it_needs_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("ciuic_cli.cluster.connect")
    result = CliRunner().invoke(main.app, ["lr", str(EXAMPLE)])
    assert result.exit_code == 0, result.output
    rates = dict(re.findall(r"^ +([a-z -]+?)  step [\d,]+ +(\S+)$", result.output, re.M))
    assert rates == {
        "first step": "2.100e-07",
        "end of the warm-up": "4.200e-04",
        "half of the rest": "2.100e-04",
        "last step": "4.200e-05",
    }
    assert max(len(line) for line in result.output.splitlines()) <= 80


@pytest.mark.parametrize(
    ("trainings", "words", "sentence"),
    [
        ([None], [], "holds no job with spec.training"),
        (
            [{"steps": 5, "learningRate": {"curv": "Cosine"}}],
            [],
            "spec.training.learningRate.curv .* did you mean curve",
        ),
        ([{"steps": 5, "learningRate": {"curve": "cosine"}}], [], "spec.training.learningRate.curve is 'cosine'"),
        ([{"steps": 5}, {"steps": 6}], ["--svg", "x.svg"], "2 jobs and --svg names one file"),
    ],
)
def test_what_can_not_be_drawn_is_said(
    tmp_path: Path, trainings: list[dict[str, Any] | None], words: list[str], sentence: str
) -> None:
    result = CliRunner().invoke(main.app, ["lr", job_file(tmp_path, *trainings), *words])
    assert isinstance(result.exception, CliError) and re.search(sentence, str(result.exception)), result.exception
