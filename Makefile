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
#: The tests of the edit loop: quick files of each package, without Spark, kills, and what waits.
QUICK := $(addprefix tests/ack_modes/test_,policies.py reliability.py) \
  $(addprefix tests/contracts/test_,damaged_bodies.py transport_receiving.py) \
  $(addprefix tests/test_,docs.py holdfast.py rooms.py) \
  $(addprefix tests/broker_adapter/test_,answers.py clock.py connect.py destination.py errors.py in_process.py \
    mechanisms.py settings.py version.py wording.py) \
  tests/broker_adapter/selectors/test_language.py tests/broker_adapter/urls \
  $(addprefix tests/broker_adapter/failover/test_,rules.py links.py unanswered.py reattach.py commits.py) \
  $(addprefix tests/broker_adapter/engine/test_,admission.py attachments.py backoff.py blocked_sends.py broker_state.py \
    connections.py consumers.py destinations.py directory.py dispatch.py endings.py identities.py limits.py sends.py \
    store.py lmdb_store.py lmdb_reads.py lmdb_room.py store_files.py store_versions.py stores.py transactions.py \
    wait_queues.py) \
  tests/broker_adapter/engine/clients tests/broker_adapter/engine/regions \
  $(addprefix tests/broker_adapter/amqp/test_,amqp_message.py frames.py sasl.py values.py) \
  $(addprefix tests/broker_adapter/amqp/client/test_,commits.py protocol.py transport.py) \
  $(addprefix tests/broker_adapter/amqp/proton_engine/test_,credit.py endpoints.py frame_input.py) \
  tests/broker_adapter/amqp/security \
  $(addprefix tests/broker_adapter/server/test_,consumers.py coordinator.py permissions.py producers.py protocol.py) \
  $(addprefix tests/broker_adapter/server/cli/test_,on_demand.py terminal.py) \
  $(addprefix tests/sdk/test_,checks.py conversion.py end_to_end.py envelopes.py lifecycle.py message.py \
    message_types.py message_values.py) \
  $(addprefix tests/spark_connector/test_,batches.py offsets.py options.py)

.PHONY: setup demo test quick coverage check format docs bench walk bench-geode bench-kafka bench-peers interop soak torture clean preflight

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
	@PIP_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install --quiet -e '.[spark,samples,dev]'
	@touch $(READY)

demo: $(READY)
	@$(BIN)/python -m samples.demo

test: $(READY)
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=$(SLOWEST) $(TESTS)

quick: $(READY)
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m 'not interop and not spark and not crash and not slow' $(QUICK)

coverage: $(READY)
	@$(BIN)/python -m tests.coverage_by_file --workers $(WORKERS) $(TESTS)

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

torture: $(READY)
	@$(BIN)/python -m tests.torture --histories $(or $(HISTORIES),10000) $(if $(SEED),--seed $(SEED))

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
