# Every target installs what it is missing, or says how (images/packages).

.DEFAULT_GOAL := help
.PHONY: help build guest linux box demo linux-demo test test-long mutants lint bench bench-linux experiments clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## The VMM: target/release/vmm
	images/packages rust build
	cargo build --release --locked -p vmm

guest: ## The bundled guest: images/out/guest.elf
	images/packages rust build
	images/guest/build.sh

linux: ## A stock Linux as a guest: images/out/linux
	images/packages build box
	images/linux/build.sh

box: ## An emulated machine with a complete KVM, for images/box/run
	images/packages box
	images/box/prepare

demo: build guest ## Trace a running guest, switched on and off from outside
	tests/demo

linux-demo: build linux ## Trace a stock Linux: its boot, and the files that it opens
	tests/linux-demo

test: ## Everything that CI checks: lints, unit tests, guests on /dev/kvm, guests in the box
	tests/run

test-long: ## What takes long: a stock Linux with every function hooked, three times
	tests/run --long

mutants: ## Small changes that a test must notice (docs/mutants.md); half an hour
	images/packages rust build
	cargo run --locked -p tests --bin mutants -- $(MUTANTS)

lint: ## Format, clippy, documentation
	images/packages rust build
	tests/lint

bench: build guest ## The table of costs, on /dev/kvm
	cargo run --release --locked -p tests --bin bench -- images/out/bench.json

bench-linux: build linux ## What tracing a stock Linux costs
	tests/bench-linux

experiments: build guest ## What the seeds measured, on /dev/kvm: images/out/experiments
	images/guest/build.sh --retpoline
	cargo run --release --locked -p tests --bin experiments -- images/out/experiments

clean: ## Removes what was built; downloads stay in images/cache
	cargo clean
	rm -rf guest/target images/out
