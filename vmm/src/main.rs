//! `vmm`: boots a guest on KVM and traces its functions from outside.

fn main() {}
