#!/bin/sh
# Format and lints of the guest's own workspace: what `cargo fmt` and `cargo clippy` are for the host's.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS CARGO_BUILD_RUSTFLAGS CARGO_BUILD_TARGET CARGO_TARGET_DIR
export RUSTC_BOOTSTRAP=1
cd "$root/guest"
cargo fmt --check
cargo clippy --release --locked --target-dir "${GUEST_TARGET_DIR:-$root/guest/target}" -- -D warnings
