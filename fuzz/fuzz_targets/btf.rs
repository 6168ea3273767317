//! A `.BTF` section: an error, or types that can be asked for anything.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tracer::image::btf::Btf;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(btf) = Btf::parse(bytes) {
        for path in ["list", "name", "mem[0].base", "core_layout.text_size"] {
            let _ = btf.field("module", path);
        }
        let _ = btf.enumerator("module_state", "MODULE_STATE_LIVE");
    }
});
