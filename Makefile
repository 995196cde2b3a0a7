# `make demo` and `make test` do all the set-up by themselves.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
TESTS  ?= tests
WORKERS ?= 4
#: How many of the slowest tests are named at the end.
SLOWEST ?= 10
# Images of Python forbid it to keep compiled code; each of the thousand processes of a run would compile anew what it
# loads, and each worker of pytest rewrite the assertions of all tests.
unexport PYTHONDONTWRITEBYTECODE
#: The tests of the edit loop: rooms that neither wait nor start processes, without Spark, kills, and what is slow.
QUICK := tests/ack_modes tests/test_holdfast.py tests/test_rooms.py \
  $(addprefix tests/broker_adapter/,selectors urls amqp/messages amqp/proton_engine amqp/security server/access gateways group server/workers) \
  $(addprefix tests/broker_adapter/engine/,check clients commands cycle operations queues records regions rules store) \
  $(addprefix tests/broker_adapter/test_,answers.py clock.py destination.py envelope.py errors.py settings.py wording.py) \
  tests/broker_adapter/failover/test_rules.py tests/broker_adapter/amqp/test_sasl.py \
  tests/broker_adapter/amqp/client/test_commits.py tests/broker_adapter/engine/test_broker_state.py \
  tests/broker_adapter/server/links/test_coordinator.py tests/broker_adapter/server/test_protocol.py \
  tests/broker_adapter/server/cli/test_terminal.py tests/sdk/aio/test_loop_bridge.py tests/sdk/aio/test_faces.py tests/sdk/messages tests/sdk/receiving tests/sdk/regions/test_cache.py \
  tests/sdk/test_lifecycle.py tests/spark_connector/driver/test_worker_python.py tests/spark_connector/regions/test_rows.py \
  tests/spark_connector/spool/test_messages.py tests/spark_connector/test_options.py \
  tests/spark_connector/test_offsets.py

.PHONY: setup demo demo-sites demo-group test again quick coverage check format docs bench walk bench-group bench-geode bench-kafka bench-peers interop soak soak-sites soak-group torture simulate interrupts cancellations clean preflight

setup: $(READY)

# What cannot come from the Python registry is checked first, and named in one line with the way to get it.
preflight:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  || { echo "missing: Python 3.11 or newer as '$(PYTHON)'; get it (Debian: apt-get install python3 python3-venv) or name it: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null \
	  || { echo "missing: the venv module of Python; get it (Debian: apt-get install python3-venv)"; exit 1; }
	@java -version 2>&1 | awk -F'[".]' '/version/ { v = ($$2 == 1) ? $$3 : $$2; ok = (v >= 17) } END { exit !ok }' \
	  || { echo "missing: Java 17 or newer on the PATH, for Spark; get it (Debian: apt-get install openjdk-17-jre-headless)"; exit 1; }
	@command -v $${CC:-cc} >/dev/null 2>&1 \
	  || { echo "missing: a C compiler, to build python-qpid-proton; get it (Debian: apt-get install build-essential)"; exit 1; }
	@$(PYTHON) -c 'import os, sysconfig; p = os.path.join(sysconfig.get_paths()["include"], "Python.h"); raise SystemExit(not os.path.exists(p))' \
	  || { echo "missing: the C headers of Python, to build python-qpid-proton; get them (Debian: apt-get install python3-dev)"; exit 1; }
	@printf '#include <openssl/ssl.h>\n' | $${CC:-cc} -E - >/dev/null 2>&1 \
	  || { echo "missing: the OpenSSL headers, to build python-qpid-proton; get them (Debian: apt-get install libssl-dev)"; exit 1; }

$(READY): pyproject.toml constraints.txt
	@$(MAKE) --no-print-directory preflight
	@echo "setting up $(VENV) (once; about a minute) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@PIP_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install --quiet -e '.[spark,group,samples,dev]'
	@touch $(READY)

demo: $(READY)
	@$(BIN)/python -m samples.demo

demo-sites: $(READY)
	@$(BIN)/python -m samples.demo.sites

demo-group: $(READY)
	@$(BIN)/python -m samples.demo.group --etcd "$$($(BIN)/python -c 'from tests.interop import install; print(install.etcd())')"

test: $(READY)
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=$(SLOWEST) $(TESTS)

# What failed in the last run, once more and alone: for CI.  More than a few are no accident.
again: $(READY)
	@$(BIN)/python -c 'import json; n = len(json.load(open(".pytest_cache/v/cache/lastfailed"))); \
	  print(f"{n} failed; at most 5 are run again, alone"); raise SystemExit(n > 5)'
	@$(BIN)/python -m pytest --last-failed --last-failed-no-failures none $(TESTS)

quick: $(READY)
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m 'not interop and not spark and not crash and not slow' $(QUICK)

coverage: $(READY)
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --cov-report=term-missing:skip-covered \
	  $(addprefix --cov=,$(or $(ROOM),ack_modes broker_adapter holdfast sdk spark_connector)) $(or $(addprefix tests/,$(ROOM)),$(TESTS))

check: $(READY)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(READY)
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: $(READY)
	@$(BIN)/python docs/generate.py

bench: $(READY)
	@$(BIN)/python -m benchmarks $(ARGS)

walk: $(READY)
	@$(BIN)/python -m benchmarks.walk

bench-group: $(READY)
	@$(BIN)/python -m benchmarks.groups $(ARGS)

bench-geode: $(READY)
	@$(BIN)/python -m benchmarks.geode $(ARGS)

bench-kafka: $(READY)
	@$(BIN)/python -m benchmarks.kafka $(ARGS)

bench-peers: $(READY)
	@$(BIN)/python -m benchmarks.peers $(ARGS)

interop: $(READY)
	@echo "fetching what the interop tests need, into .interop (once; a minute or two) ..."
	@$(BIN)/python -m tests.interop.install || true
	@$(BIN)/python -m pytest -m 'interop or not interop' $(or $(INTEROP),tests/interop)

soak: $(READY)
	@$(BIN)/python -m tests.faults.soak --seconds $(or $(SECONDS),600)

soak-sites: $(READY)
	@$(BIN)/python -m tests.faults.soak_sites --seconds $(or $(SECONDS),600)

soak-group: $(READY)
	@$(BIN)/python -m tests.faults.group_soak --rounds $(or $(ROUNDS),200) $(if $(SEED),--seed $(SEED))

torture: $(READY)
	@$(BIN)/python -m tests.torture --histories $(or $(HISTORIES),10000) $(if $(SEED),--seed $(SEED))

simulate: $(READY)
	@$(BIN)/python -m tests.broker_adapter.group.simulation --histories $(or $(HISTORIES),100000) $(if $(SEED),--seed $(SEED))

interrupts: $(READY)
	@$(BIN)/python -m tests.sdk.interrupted_calls --handlers $(or $(HANDLERS),10000) $(if $(SEED),--seed $(SEED))

cancellations: $(READY)
	@$(BIN)/python -m tests.sdk.aio.cancellations --cancellations $(or $(CANCELLATIONS),10000) $(if $(SEED),--seed $(SEED))

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
