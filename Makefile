# Everything is a one-line target; `make check` before each commit, `make test` before each merge.
SHELL := /bin/bash
.DEFAULT_GOAL := help
export PYTHONPATH := $(CURDIR)/operator:$(CURDIR)/trainer_image:$(CURDIR)/tests:$(CURDIR)/tests/e2e
IN_VENV = PATH="$$(python3 tools/python_environment.py)/bin:$$PATH"

.PHONY: help setup check types test gen images demo demo-down bench soak

help:       ## this list
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed 's/: .*## /\t/' | expand -t 14

setup:      ## the Python environment, in the cache folder
	@python3 tools/python_environment.py >/dev/null

check: setup ## lint, types, import contracts, unit, contract and sim tests: under 30 s
	$(IN_VENV) tools/check

test: setup ## every test level but soak and bench, on the local Kubernetes
	$(IN_VENV) tools/test

gen: setup  ## write what is generated from the models: CRD, docs, install.yaml
	$(IN_VENV) python -m tools.gen

images: setup ## build both images into the local cluster
	python3 deploy/localcluster build-image operator && python3 deploy/localcluster build-image trainer

demo: setup ## a cluster, the chart, a job that trains, loses a rank and goes on
	$(IN_VENV) python -m tools.demo

demo-down:  ## remove the demo and the local cluster
	python3 deploy/localcluster down

bench: setup ## the measurements of docs/benchmarks.md
	$(IN_VENV) python -m tools.bench

soak: setup ## the long tests
	$(IN_VENV) python -m pytest -m soak
