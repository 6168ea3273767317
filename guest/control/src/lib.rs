//! Ring 3 of the bundled guest, as far as it is not traced: reads the command line, starts the
//! threads of each workload, prints `calls FUNCTION COUNT` and `checksum WORKLOAD VALUE`.

#![no_std]
#![feature(fn_align)]

mod accidents;
mod bench;
mod catalogue;
mod clock;
mod console;
mod dynfunc;
mod events;
mod hostile;
mod kernel_call;
mod list;
mod locks;
mod many;
mod memory;
mod messages;
mod micro;
mod modules;
mod options;
mod own_patching;
mod spin;
mod tables;
mod workload;

use core::fmt;
use core::panic::PanicInfo;

use catalogue::CATALOGUE;
use console::print;
use options::Options;

/// Statuses that the guest ends with; the kernel has its own, 2 and 3.
mod status {
    pub const GOOD: u8 = 0;
    pub const FAILED: u8 = 1;
}

/// The main thread: the first code in ring 3.
///
/// # Safety
/// `line` and `length` must be the kernel's copy of the command line.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn start(line: *const u8, length: usize, vcpus: u64) -> ! {
    // SAFETY: the kernel passes its copy, which nobody writes again.
    let line: &'static [u8] = unsafe { core::slice::from_raw_parts(line, length) };
    let Ok(line) = core::str::from_utf8(line) else {
        fail(format_args!("guest: the command line is not UTF-8"));
    };
    let options = match Options::parse(line, vcpus) {
        Ok(options) => options,
        Err(word) => fail(format_args!(
            "guest: {word}: a decimal number belongs there"
        )),
    };
    let mut init_is_gone = false;
    for name in options.workloads.split(',') {
        let found = CATALOGUE
            .iter()
            .enumerate()
            .find(|(_, workload)| workload.name == name);
        let Some((place, workload)) = found else {
            fail(format_args!(
                "guest: no workload is called {name}; workload=list shows all"
            ));
        };
        match workload.name {
            "init" if init_is_gone => fail(format_args!(
                "guest: the functions of init are freed by now: name it first"
            )),
            "init" => {}
            _ if !init_is_gone => {
                kernel_call::free_init_text();
                init_is_gone = true;
            }
            _ => {}
        }
        workload::run(place, workload, &options);
    }
    kernel_call::end(status::GOOD)
}

/// Says what is wrong and ends the VM.
fn fail(reason: fmt::Arguments<'_>) -> ! {
    print(reason);
    kernel_call::end(status::FAILED)
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    fail(format_args!("guest: {info}"))
}
