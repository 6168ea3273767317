#!/bin/sh
# Builds the bundled guest into images/out/guest.elf and checks its machine code: build.sh [--retpoline | --bare]
#
# With --retpoline its ring 3 code in Rust calls through pointers as a kernel with retpolines does; the image is
# images/out/guest-retpoline.elf. What it uses of the compiler's own `core` is as it comes, without.
# With --bare its workloads in Rust have no patch sites, as any program; images/out/guest-bare.elf.
#
# The pinned stable compiler is allowed its unstable flags for the guest only (RUSTC_BOOTSTRAP).
set -eu
. "$(dirname "$0")/../plain"
variant=${1:-}
case $variant in
'' | --retpoline | --bare) ;;
*)
    echo "build.sh: $variant: only --retpoline and --bare are known" >&2
    exit 2
    ;;
esac
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
out=$root/images/out
target=${GUEST_TARGET_DIR:-$root/guest/target}

name=guest
set --
if [ "$variant" = --retpoline ]; then
    name=guest-retpoline
    target=$target/retpoline
    flag='"-Zretpoline","-Cunsafe-allow-abi-mismatch=retpoline"'
    # Everything else has to accept that the crates differ, and ring 0 cannot have the thunk's `lfence`.
    set -- --config 'build.rustflags=["-Cunsafe-allow-abi-mismatch=retpoline"]' \
        --config "profile.release.package.workloads.rustflags=[$flag,\"-Zpatchable-function-entry=5\",\"-Zmerge-functions=disabled\"]" \
        --config "profile.release.package.control.rustflags=[$flag,\"-Zmerge-functions=disabled\"]"
fi
if [ "$variant" = --bare ]; then
    name=guest-bare
    target=$target/bare
    set -- --config 'profile.release.package.workloads.rustflags=["-Zmerge-functions=disabled"]'
fi

# What the host is built with would replace what guest/.cargo/config.toml and guest/Cargo.toml say: the guest's code is
# always the same, and tests name places in it.
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS CARGO_BUILD_RUSTFLAGS CARGO_BUILD_TARGET CARGO_TARGET_DIR
unset $(env | sed -n 's/^\(CARGO_PROFILE_[A-Z0-9_]*\)=.*/\1/p')
export RUSTC_BOOTSTRAP=1

cd "$root/guest"
# rustc warns on every build that ring 0 without SSE has another ABI for floating point, which it does not
# use. So the output is shown when the build fails; lint.sh shows real warnings.
mkdir -p "$target"
if ! cargo build --release --locked --target-dir "$target" "$@" >"$target/build.log" 2>&1; then
    cat "$target/build.log" >&2
    exit 1
fi
elf=$target/x86_64-unknown-linux-gnu/release/guest_kernel

"$here/check.sh" "$elf"
mkdir -p "$out"
cp "$elf" "$out/$name.elf.new"
mv "$out/$name.elf.new" "$out/$name.elf"
echo "images/out/$name.elf"
