#!/bin/sh
# Builds the bundled guest into images/out/guest.elf and checks its machine code.
#
# The pinned stable compiler is allowed its unstable flags for the guest only (RUSTC_BOOTSTRAP).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
out=$root/images/out
target=${GUEST_TARGET_DIR:-$root/guest/target}

# Flags of the host's build would replace those of guest/.cargo/config.toml.
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS CARGO_BUILD_RUSTFLAGS CARGO_BUILD_TARGET CARGO_TARGET_DIR
export RUSTC_BOOTSTRAP=1

cd "$root/guest"
# rustc warns on every build that ring 0 without SSE has another ABI for floating point, which it does not
# use. So the output is shown when the build fails; lint.sh shows real warnings.
mkdir -p "$target"
if ! cargo build --release --locked --target-dir "$target" >"$target/build.log" 2>&1; then
    cat "$target/build.log" >&2
    exit 1
fi
elf=$target/x86_64-unknown-linux-gnu/release/guest_kernel

"$here/check.sh" "$elf"
mkdir -p "$out"
cp "$elf" "$out/guest.elf.new"
mv "$out/guest.elf.new" "$out/guest.elf"
echo "images/out/guest.elf"
