//! The other vCPUs: started together, counted as they arrive.

use core::hint::spin_loop;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use locked::Locked;

use crate::apic;
use crate::cpu;
use crate::layout;
use crate::segments;
use crate::trap;
use crate::vcpu;

/// vCPUs whose tables, LAPIC and GS base are set.
static ONLINE: Locked = Locked::new(1);
/// The others may start to schedule.
static GO: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    static ap_limit: AtomicU32;
}

/// A generous wait in TSC ticks: seconds on any machine.
const PATIENCE: u64 = 20_000_000_000;

/// Some of the other vCPUs never arrived.
pub struct MissingVcpus;

/// Starts the others, and returns when `vcpus` in all are online.
pub fn start(vcpus: u64) -> Result<(), MissingVcpus> {
    if vcpus == 1 {
        return Ok(());
    }
    let length = layout::trampoline_end() - layout::trampoline_start();
    // SAFETY: the page is RAM below 1 MiB that nobody uses, mapped at its own address; the code is
    // position-independent within its page.
    unsafe {
        core::ptr::copy_nonoverlapping(
            layout::trampoline_start() as *const u8,
            layout::AP_TRAMPOLINE as *mut u8,
            usize::try_from(length).unwrap_or_default(),
        );
    }
    // SAFETY: boot.s defines it as a 32-bit number; only atomics touch it from now on.
    unsafe { &ap_limit }.store(u32::try_from(vcpus).unwrap_or(1), Ordering::Release);
    apic::start_others();
    let start = cpu::timestamp();
    while ONLINE.load() < vcpus {
        if cpu::timestamp() - start > PATIENCE {
            return Err(MissingVcpus);
        }
        spin_loop();
    }
    Ok(())
}

/// Lets the others schedule.
pub fn release() {
    GO.store(true, Ordering::Release);
}

/// Called by boot.s on each of the others, with its number.
#[unsafe(no_mangle)]
extern "C" fn other_vcpu_main(index: u32) -> ! {
    let index = u64::from(index);
    if segments::set_up(index).is_err() {
        cpu::halt();
    }
    vcpu::set_up(index);
    apic::set_up();
    ONLINE.fetch_add(1);
    while !GO.load(Ordering::Acquire) {
        spin_loop();
    }
    trap::run()
}
