# Every target installs what it is missing, or says how (images/packages).

.DEFAULT_GOAL := help
.PHONY: help build install uninstall guest linux box demo attach-demo linux-demo test test-long mutants lint bench bench-peers bench-linux experiments clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## The VMM: target/release/vmm
	images/packages rust build
	cargo build --release --locked -p vmm

# With DESTDIR, below another root.
PREFIX ?= /usr/local
VMM := $(or $(CARGO_TARGET_DIR),target)/release/vmm
PLACE = $(DESTDIR)$(PREFIX)
SHARE = $(PLACE)/share

install: ## What was built, its man pages and completions, into PREFIX (/usr/local)
	@[ -x $(VMM) ] || { echo '$(VMM) is not there: make build' >&2; exit 1; }
	install -d $(PLACE)/bin $(SHARE)/man/man1 $(SHARE)/bash-completion/completions \
	    $(SHARE)/zsh/site-functions $(SHARE)/fish/vendor_completions.d
	rm -rf $(VMM)-install
	$(VMM) man $(VMM)-install
	install -m 644 $(VMM)-install/*.1 $(SHARE)/man/man1
	for shell in bash zsh fish; do $(VMM) completions $$shell >$(VMM)-install/$$shell || exit 1; done
	install -m 644 $(VMM)-install/bash $(SHARE)/bash-completion/completions/vmm
	install -m 644 $(VMM)-install/zsh $(SHARE)/zsh/site-functions/_vmm
	install -m 644 $(VMM)-install/fish $(SHARE)/fish/vendor_completions.d/vmm.fish
	ln -sf vmm.1 $(SHARE)/man/man1/exotrace.1
	ln -sf vmm $(SHARE)/bash-completion/completions/exotrace
	ln -sf vmm.fish $(SHARE)/fish/vendor_completions.d/exotrace.fish
	install -m 755 $(VMM) $(PLACE)/bin/vmm
	ln -sf vmm $(PLACE)/bin/exotrace

uninstall: ## Removes what `make install` put into PREFIX
	rm -rf $(VMM)-install
	$(PLACE)/bin/vmm man $(VMM)-install
	for page in $(VMM)-install/*.1; do rm -f $(SHARE)/man/man1/$${page##*/}; done
	rm -f $(SHARE)/bash-completion/completions/vmm $(SHARE)/zsh/site-functions/_vmm \
	    $(SHARE)/fish/vendor_completions.d/vmm.fish $(PLACE)/bin/vmm $(PLACE)/bin/exotrace \
	    $(SHARE)/man/man1/exotrace.1 $(SHARE)/bash-completion/completions/exotrace \
	    $(SHARE)/fish/vendor_completions.d/exotrace.fish

guest: ## The bundled guest: images/out/guest.elf
	images/packages rust build
	images/guest/build.sh
	images/foreign/build.sh

linux: ## A stock Linux as a guest: images/out/linux
	images/packages build box
	images/linux/build.sh

box: ## An emulated machine with a complete KVM, for images/box/run
	images/packages box
	images/box/prepare

demo: build guest ## Trace a running guest, switched on and off from outside
	tests/demo

attach-demo: build guest ## Trace the guest of a QEMU, and leave nothing of ours
	images/packages box
	tests/attach-demo

linux-demo: build linux ## Trace a stock Linux: its boot, and the files that it opens
	tests/linux-demo

test: ## Everything that CI checks: lints, unit tests, guests on /dev/kvm, guests in the box
	tests/run

test-long: ## What takes long: a stock Linux with every function hooked, three times; storms of changes
	tests/run --long

mutants: ## Small changes that a test must notice (docs/mutants.md); half an hour
	images/packages rust build
	cargo run --locked -p tests --bin mutants -- $(MUTANTS)

lint: ## Format, clippy, documentation
	images/packages rust build
	tests/lint

bench: build guest ## The table of costs, on /dev/kvm
	cargo run --release --locked -p tests --bin bench -- images/out/bench.json

bench-peers: build guest ## What an event costs here and with other tools
	images/packages peers
	cargo run --release --locked -p tests --bin peers -- images/out/bench-peers.json

bench-linux: build linux ## What tracing a stock Linux costs, in time and in instructions
	images/packages test
	tests/bench-linux

experiments: build guest ## What the seeds measured, on /dev/kvm: images/out/experiments
	images/guest/build.sh --retpoline
	cargo run --release --locked -p tests --bin experiments -- images/out/experiments

clean: ## Removes what was built; downloads stay in images/cache
	cargo clean
	rm -rf guest/target images/out
