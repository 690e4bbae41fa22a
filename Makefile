# Everything that is fetched or built for tests lies under .kivu; cargo's own output under target.

# What the program is compiled for: release, or quick, which keeps nobody waiting.
PROFILE := release
KIVU = target/$(PROFILE)/kivu
BUNDLES := .kivu/bundles
BUNDLE := $(BUNDLES)/minilm
MODELS := $(basename $(notdir $(wildcard models/*.toml)))
PYTHON := .kivu/python/bin/python
# What quality and size are compared with.
PRECISIONS := int8-blocks fp32
S3_PYTHON := .kivu/s3/bin/python
CARGO_LAMBDA := .kivu/lambda/bin/cargo-lambda
FLEET := .kivu/fleet
PACKAGE := target/lambda/kivu-api.zip
DEPLOY := .kivu/deploy/bin
CHECKOV := .kivu/checkov/bin/checkov
PAGE := .kivu/page/bin/python
PEERS := .kivu/peers
DOCUMENT := .kivu/document/bin/python
FUZZ := .kivu/fuzz/bin/cargo-fuzz
AUDIT := .kivu/audit/bin/cargo-deny
LOAD := .kivu/load/bin/oha
MEASURED := .kivu/reliability

.PHONY: help
help: ## What can be made
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

.PHONY: run
run: PROFILE := quick
run: program $(MODELS:%=$(BUNDLES)/%/manifest.toml) ## Serve the models of models/ on http://127.0.0.1:8080
	$(KIVU) serve $(BUNDLES)

.PHONY: test
test: tools ## Set up whatever tests need, then run all of them
	cargo fmt --check
	cargo test --no-run
	cargo run --quiet -- doctor --fix
	for model in $(MODELS); do \
	  cargo run --quiet -- build models/$$model.toml --out $(BUNDLES)/$$model || exit 1; done
	cargo run --quiet -- doctor --fix --function $(shell uname -m | sed s/aarch64/arm64/)
	TEST_PYTHON=$(abspath $(PYTHON)) TEST_CARGO_LAMBDA=$(abspath $(CARGO_LAMBDA)) \
	TEST_DEPLOY=$(abspath $(DEPLOY)) TEST_CHECKOV=$(abspath $(CHECKOV)) TEST_S3_PYTHON=$(abspath $(S3_PYTHON)) \
	  TEST_TRITON=$(abspath $(FLEET)) TEST_PAGE=$(abspath $(PAGE)) \
	  TEST_DOCUMENT=$(abspath $(DOCUMENT)) \
	  TEST_CHROMIUM=$$($(PAGE) tests/page/chromium.py .kivu/chromium) cargo test
# By itself, since it compiles for Lambda, beside which no other test keeps its time.
	$(MAKE) walk

.PHONY: walk
walk: tools ## Deploy to an emulator of AWS, and go through the deployment as a user would
	TEST_WALK=yes TEST_DEPLOY=$(abspath $(DEPLOY)) TEST_CHECKOV=$(abspath $(CHECKOV)) \
	  cargo test --test integration the_template_can_be_deployed_and_used

.PHONY: check
check: lint test ## The tests, and clippy without warnings

.PHONY: lint
lint:
	cargo clippy --all-targets -- --deny warnings

.PHONY: bench
bench: $(PRECISIONS:%=.kivu/precisions/%/manifest.toml)
bench: program $(BUNDLE)/manifest.toml $(BUNDLES)/zero-shot/manifest.toml $(BUNDLES)/translate-en-pt/manifest.toml ## Measure the service against the bare runtime, and draw it
	$(KIVU) bench $(BUNDLE) --zero-shot $(BUNDLES)/zero-shot --translation $(BUNDLES)/translate-en-pt \
	  --compare $(PRECISIONS:%=.kivu/precisions/%) --json .kivu/bench.json --pictures docs/pictures

.kivu/precisions/%/manifest.toml: models/minilm.toml | program
	$(KIVU) build $< --out $(@D) --precision $*

.PHONY: fleet
fleet: program tools $(BUNDLE)/manifest.toml ## Measure what forwarding to Triton costs
	$(FLEET)/bin/python tests/fleet/bench.py $(KIVU) $(BUNDLE)

.PHONY: peers
peers: program $(PEERS)/bin/python $(BUNDLES)/translate-en-pt/manifest.toml $(BUNDLES)/translate-pt-en/manifest.toml ## Measure translation against other engines
	$(PEERS)/bin/python tests/translation/bench.py $(KIVU) $(BUNDLES) $(PEERS)/large

INVOKED := --env KIVU_MODELS=$(abspath $(BUNDLE)) --env KIVU_HOME=$(abspath .kivu) --env KIVU_AUTH__MODE=none

.PHONY: invoke
invoke: tools $(BUNDLE)/manifest.toml ## Send every form of event to the functions under the Lambda emulator
	$(PYTHON) tests/lambda/invoke.py $(CARGO_LAMBDA) tests/lambda --release $(INVOKED)
	$(S3_PYTHON) tests/lambda/invoke_batch.py $(CARGO_LAMBDA) --release $(INVOKED)

.PHONY: package
package: tools $(BUNDLE)/manifest.toml ## The archive to deploy: function, runtime library, model and list of parts
	$(dir $(CHECKOV))python -W ignore functions/parts.py target/kivu.cdx.json
	PATH=$(abspath .kivu/lambda/bin):$$PATH $(CARGO_LAMBDA) lambda build --release --bin api
	$(PYTHON) functions/package.py $(PACKAGE) --bundle $(BUNDLE)
	$(PYTHON) tests/lambda/archive.py $(PACKAGE) tests/lambda/rest_plain.json

# What is deployed, and how: make deploy STACK=kivu PARAMETERS="Memory=1024 Batch=yes"
STACK ?= kivu
ARCHITECTURE ?= arm64
PARAMETERS ?=
PACKED ?= $(BUNDLE)
SAM := PATH=$(abspath .kivu/lambda/bin):$$PATH SAM_CLI_TELEMETRY=0 $(DEPLOY)/sam
OPERATE := $(DEPLOY)/python functions/operate.py $(STACK)

.PHONY: deploy
deploy: tools $(PACKED:%=%/manifest.toml) ## Put it into the AWS account whose credentials are set
	$(KIVU) doctor --fix --function $(ARCHITECTURE)
	$(MAKE) stack

# The same without its preparations.
.PHONY: stack
stack:
	$(SAM) build --parameter-overrides Architecture=$(ARCHITECTURE)
	for function in .aws-sam/build/*Function; do \
	  case $$function in */ApiFunction|*/BatchFunction) bundles="$(PACKED:%=--bundle %)";; *) bundles=;; esac; \
	  $(DEPLOY)/python functions/package.py $$function $$bundles \
	    --library .kivu/$(ARCHITECTURE)/onnxruntime || exit 1; done
	$(SAM) deploy --stack-name $(STACK) --resolve-s3 --capabilities CAPABILITY_IAM --no-confirm-changeset \
	  --no-fail-on-empty-changeset --parameter-overrides Architecture=$(ARCHITECTURE) $(PARAMETERS)

.PHONY: key
key: tools program ## Make a key for a caller: make key NAME=alice
	$(OPERATE) key $(NAME) --kivu $(KIVU)

.PHONY: status
status: tools ## How the deployment is: addresses, alarms, queues
	$(OPERATE) status

.PHONY: logs
logs: tools ## The log of the deployment, as it is written
	$(OPERATE) logs

.PHONY: undeploy
undeploy: tools ## Remove the deployment; buckets with something in them stay
	$(OPERATE) undeploy

# Compiler, linker and emulators for arm64, in a target folder of their own: an arm64 machine needs none of them.
ARM64 := .kivu/arm64
ARM64_CARGO := --config $(ARM64)/cargo.toml --profile emulated --target-dir target/arm64
ARM64_PROGRAMS := target/arm64/aarch64-unknown-linux-gnu/emulated
EMULATORS := $(ARM64)/host/usr/bin
IS_ARM64 := $(filter aarch64,$(shell uname -m))
# As Graviton2, the oldest arm64 processor of Lambda.
EMULATED := $(if $(IS_ARM64),,$(EMULATORS)/qemu-aarch64-static -cpu neoverse-n1 -L $(ARM64)/root)
# The tests of answers, task by task.
GOLDENS := goldens:: classifiers:: translation_graphs:: translation:: bergamot:: processors::

.PHONY: arm64
arm64: arm64-programs $(BUNDLE)/manifest.toml ## Build for arm64, and run that, under emulation on another machine
	cargo test $(ARM64_CARGO) --test integration -- $(GOLDENS)
	python3 tests/arm64/check.py $(ARM64_PROGRAMS) $(KIVU) $(BUNDLE) $(EMULATED)

# What of it fits into every run of the tests: without the models that take minutes under emulation.
.PHONY: arm64-quick
arm64-quick: arm64-programs
	cargo test $(ARM64_CARGO) --test integration -- $(GOLDENS) --skip minilm

.PHONY: arm64-programs
arm64-programs: program $(ARM64)/cargo.toml
	$(KIVU) doctor --fix --function arm64
	cargo test $(ARM64_CARGO) --test integration --no-run
	mkdir -p $(ARM64_PROGRAMS)/lib
	ln -sf $(abspath $(ARM64))/onnxruntime/libonnxruntime.so.* $(ARM64_PROGRAMS)/lib/
	ln -sfn ../lib $(ARM64_PROGRAMS)/deps/lib

.PHONY: avx2
avx2: $(ARM64)/cargo.toml ## Test 8-bit products as on an x86-64 processor without VNNI
	CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="$(abspath $(EMULATORS))/qemu-x86_64-static -cpu Haswell" \
	  cargo test --test integration -- processors::

.PHONY: processors
processors: arm64-programs $(MODELS:%=$(BUNDLES)/%/manifest.toml) $(PRECISIONS:%=.kivu/precisions/%/manifest.toml) ## Measure what other processors answer, under emulation: half an hour
	python3 tests/processors/measure.py $(BUNDLES) .kivu/precisions --json $(MEASURED)/processors.json \
	  "this machine=$(KIVU)" "AVX2 (Haswell)=$(EMULATORS)/qemu-x86_64-static -cpu Haswell $(KIVU)" \
	  "Graviton2 (neoverse-n1)=$(EMULATED) $(ARM64_PROGRAMS)/kivu" \
	  "arm64, all extensions (max)=$(EMULATORS)/qemu-aarch64-static -cpu max -L $(ARM64)/root $(ARM64_PROGRAMS)/kivu"

$(ARM64)/cargo.toml: tests/arm64/setup.py $(CARGO_LAMBDA)
	.kivu/lambda/bin/python $< $(ARM64)

# Seconds for each reader, of those named in READERS or of all.
SECONDS ?= 600
READERS ?=
.PHONY: fuzz
fuzz: $(FUZZ) ## Feed everything that reads bytes from outside with any bytes: make fuzz SECONDS=600
	cd fuzz && PATH=$(abspath $(dir $(FUZZ))):$$PATH cargo +nightly fuzz build --sanitizer none --debug-assertions any
	python3 fuzz/run.py $(SECONDS) $(READERS)

.PHONY: audit
audit: $(AUDIT) ## Licences, sources, duplicates and known faults of what this is made of; the last needs GitHub
	$(AUDIT) check licenses bans sources
	$(AUDIT) check advisories

.PHONY: load
load: program $(LOAD) $(BUNDLE)/manifest.toml ## Send a server more than it can do, and see what becomes of it
	mkdir -p $(MEASURED)
	python3 tests/load/load.py $(KIVU) $(BUNDLE) $(LOAD) --json $(MEASURED)/load.json

# Seconds of mixed traffic.
SOAK ?= 3600
.PHONY: soak
soak: program $(LOAD) $(BUNDLE)/manifest.toml ## The same, mixed, for an hour
	mkdir -p $(MEASURED)
	python3 tests/load/load.py $(KIVU) $(BUNDLE) $(LOAD) --json $(MEASURED)/soak.json --soak $(SOAK)

.PHONY: reliability
reliability: ## Put what fuzz, load and soak measured into docs/reliability.md
	python3 tests/load/table.py $(MEASURED) docs/reliability.md

# The program, and the library that it runs on: fetched where it is missing, checked against its hash each time.
.PHONY: program
program:
	cargo build --profile $(PROFILE) --bin kivu
	$(KIVU) doctor --fix

# The tools of tests and packaging, pinned by version and hash.
.PHONY: tools
tools: $(PYTHON) $(CARGO_LAMBDA) $(DEPLOY)/sam $(CHECKOV) $(S3_PYTHON) $(FLEET)/installed $(PAGE) $(DOCUMENT)

$(PYTHON): tests/clients/requirements.txt
	python3 -m venv .kivu/python
	$@ -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $<
	touch $@

$(S3_PYTHON): tests/s3/requirements.txt
	python3 -m venv .kivu/s3
	$@ -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $<
	touch $@

$(CARGO_LAMBDA): tests/lambda/requirements.txt
	python3 -m venv .kivu/lambda
	.kivu/lambda/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $<
	touch $@

# Triton's backend for models in Python runs a program that is made for one version of Python.
$(FLEET)/installed: tests/fleet/requirements.txt
	python3 -m venv $(FLEET)
	$(FLEET)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --requirement $<
	cd $(FLEET)/lib/python3*/site-packages/pytriton/tritonserver && \
	  cp python_backend_stubs/$$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')/* backends/python/ && \
	  chmod +x bin/tritonserver backends/python/triton_python_backend_stub
	touch $@

$(DEPLOY)/sam: tests/deploy/requirements.txt
	python3 -m venv .kivu/deploy
	$(DEPLOY)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement $<
	touch $@

$(CHECKOV): tests/deploy/checkov.txt
	python3 -m venv .kivu/checkov
	.kivu/checkov/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement $<
	touch $@

$(PAGE): tests/page/requirements.txt
	python3 -m venv .kivu/page
	$@ -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $<
	touch $@

$(PEERS)/bin/python: tests/translation/requirements.txt
	python3 -m venv $(PEERS)
	$@ -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $<
	touch $@

$(DOCUMENT): tests/document/requirements.txt
	python3 -m venv .kivu/document
	$@ -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $<
	touch $@

# Of crates, with the versions that their authors locked.
$(FUZZ):
	cargo install --quiet --locked --root .kivu/fuzz cargo-fuzz --version 0.13.2

$(AUDIT):
	cargo install --quiet --locked --root .kivu/audit cargo-deny --version 0.20.2

$(LOAD):
	cargo install --quiet --locked --root .kivu/load oha --version 1.16.0

$(BUNDLES)/%/manifest.toml: models/%.toml | program
	$(KIVU) build $< --out $(@D)
