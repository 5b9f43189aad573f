# clawweb. `make help` lists the targets; each does its own set-up and may be repeated.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= $(shell command -v python3.11 || command -v python3)
LOCK ?=
BIN := .venv/bin
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help
help:  ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: install
install:  ## .venv from the lock (LOCK=cpu or LOCK=cuda overrules the search for a GPU)
	@$(PYTHON) requirements/install.py $(LOCK)

# exec: a signal to make's child must reach the process that owns the servers.
.PHONY: run
run: install  ## Start everything; Ctrl-C stops it (ARGS="--parts web,valkey" for some of it)
	@exec $(BIN)/python manage.py up $(ARGS)

.PHONY: check
check: install  ## Lint, types, import contracts, missing migrations
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict rollouts training
	$(BIN)/lint-imports
	$(BIN)/python manage.py makemigrations --check --dry-run

# As many units at once as there are cores; then what needs the one running system. What fails in one hides nothing of the next.
# --dist load keeps the order that the tests come in: those that empty the database come last.
AT_ONCE = -n logical --maxprocesses 8 --dist load
UNITS = -m "not stack and not browser" $(AT_ONCE)
SYSTEM = -m "stack or browser"
PYTEST = $(BIN)/python -m pytest
ON_SERVICES = PYTHONPATH=. $(BIN)/python tests/services.py
.PHONY: test
test: install  ## Everything that must hold: checks, units, the real servers, the browser
	@$(BIN)/python tests/prepare.py & prepared=$$!; \
	$(MAKE) --no-print-directory check; checked=$$?; wait $$prepared && exit $$checked
ifdef TESTS
	$(PYTEST) $(TESTS)
else
	@failed=; $(PYTEST) $(UNITS) || failed=1; $(PYTEST) $(SYSTEM) || failed=1; \
	$(ON_SERVICES) $(AT_ONCE) -m "db or queue" tests/clawweb || failed=1; test -z "$$failed"
endif

.PHONY: test-services
test-services: install  ## Everything on PostgreSQL and Redis, from the system's packages; forty minutes
	@$(BIN)/python tests/prepare.py
ifdef TESTS
	$(ON_SERVICES) $(TESTS)
else
	@failed=; $(ON_SERVICES) $(UNITS) || failed=1; $(ON_SERVICES) $(SYSTEM) || failed=1; test -z "$$failed"
endif

.PHONY: test-cluster
test-cluster: install  ## Two web processes, three workers, two model servers; six minutes
	@$(BIN)/python tests/prepare.py
	TESTS_CLUSTER=1 $(BIN)/python -m pytest tests/stack/test_cluster.py

.PHONY: test-bases
test-bases: install  ## Other families of base models, a server each; ten minutes
	TESTS_BASES=1 $(BIN)/python -m pytest tests/stack/test_bases.py

LANGUAGES = --locale de
MESSAGES = $(LANGUAGES) --no-location --no-wrap --no-obsolete --ignore static/vendor/* --ignore tests/* --ignore bench/* --ignore .venv/* --ignore var/*
.PHONY: messages
messages: install  ## Collect the texts that people read, and compile their translations (GNU gettext)
	$(BIN)/python manage.py makemessages --domain django $(subst *,\*,$(MESSAGES))
	$(BIN)/python manage.py makemessages --domain djangojs $(subst *,\*,$(MESSAGES))
	$(BIN)/python manage.py compilemessages $(LANGUAGES)

.PHONY: lock
lock: install  ## Resolve requirements/*.in anew into the two locks
	$(BIN)/python requirements/lock.py

.PHONY: sbom
sbom: install  ## What it is made of: var/sbom.json (CycloneDX), docs/licenses.md
	$(BIN)/python requirements/supply.py sbom

.PHONY: audit
audit: install  ## Known vulnerabilities of the pinned packages; asks PyPI
	$(BIN)/python requirements/supply.py audit

.PHONY: bench-everyday
bench-everyday: install  ## Five users rate 32 turns each through the real system; takes hours
	PYTHONPATH=. $(BIN)/python bench/everyday/run.py $(ARGS)

.PHONY: bench-personas
bench-personas: install  ## Simulated people and every recipe, side by side (ARGS="--stage 2": the best on all); takes days, resumes
	PYTHONPATH=. $(BIN)/python bench/personas/run.py $(ARGS)

.PHONY: bench-trainer
bench-trainer: install  ## One update against TRL's and a plain peft loop's: speed and memory; an hour and more (ARGS="--shapes short": ten minutes)
	PYTHONPATH=. $(BIN)/python bench/trainer/run.py $(ARGS)

.PHONY: bench-gateway
bench-gateway: install  ## What the gateway adds to vLLM: first token, request, CPU per token; ten minutes
	PYTHONPATH=. $(BIN)/python bench/gateway/run.py $(ARGS)

.PHONY: bench-load
bench-load: install  ## Users chat, rate and train at once; chat beside a training job; five minutes
	PYTHONPATH=. $(BIN)/python bench/load/run.py $(ARGS)

.PHONY: bench-soak
bench-soak: install  ## 200 sockets for ten minutes: fails when memory, files or clients grow
	PYTHONPATH=. $(BIN)/python bench/load/soak.py $(ARGS)

.PHONY: chaos
chaos: install  ## Parts are killed while people chat and rate; then every promise is checked; half an hour
	PYTHONPATH=. $(BIN)/python bench/chaos/run.py $(ARGS)

.PHONY: bench-chat
bench-chat: install  ## A fast reply in a chat of 2,000 turns: opening, typing, long tasks, memory; two minutes
	PYTHONPATH=. $(BIN)/python bench/chat/run.py $(ARGS)

.PHONY: screenshots
screenshots: install  ## Pictures of every page into docs/screenshots, both themes, two widths; five minutes
	PYTHONPATH=. $(BIN)/python -m tests.screenshots
