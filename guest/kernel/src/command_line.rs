//! The kernel's own few keys of the command line; the workloads' keys are read in ring 3.

use crate::layout::{self, COMMAND_LINE_SIZE};

const BOOT_PARAMS_COMMAND_LINE: u64 = 0x228;

/// What the kernel itself wants to know.
pub struct Settings {
    /// `vcpus=N`: vCPUs to wait for, the boot vCPU included.
    pub vcpus: u64,
    /// `tick=MICROSECONDS`: how long a thread runs before another may.
    pub tick: u64,
    /// `ring=0`: threads run in ring 0.
    pub threads_in_ring_0: bool,
}

/// Copies the loader's command line to where ring 3 can read it.
pub fn copy(boot_params: u64) -> &'static [u8] {
    let field = (boot_params + BOOT_PARAMS_COMMAND_LINE) as *const u32;
    // SAFETY: boot_params lies in the first GiB, which is mapped, by the boot protocol.
    let source = u64::from(unsafe { field.read_unaligned() });
    let target = layout::command_line_start();
    let mut length = 0;
    while source != 0 && length < COMMAND_LINE_SIZE - 1 {
        // SAFETY: the protocol promises a NUL-terminated string; it lies in the first GiB too.
        let byte = unsafe { *(source as *const u8).wrapping_add(length) };
        if byte == 0 {
            break;
        }
        // SAFETY: link.ld reserves COMMAND_LINE_SIZE bytes, and no thread runs yet.
        unsafe { *(target as *mut u8).wrapping_add(length) = byte };
        length += 1;
    }
    // SAFETY: these bytes were just written, and nobody writes them again.
    unsafe { core::slice::from_raw_parts(target as *const u8, length) }
}

/// Reads the kernel's keys.
pub fn parse(line: &[u8]) -> Settings {
    Settings {
        vcpus: number(line, b"vcpus=")
            .unwrap_or(1)
            .clamp(1, layout::MAX_VCPUS as u64),
        tick: number(line, b"tick=").unwrap_or(5000).max(100),
        threads_in_ring_0: number(line, b"ring=") == Some(0),
    }
}

/// The decimal number after the last `key` that starts a word.
fn number(line: &[u8], key: &[u8]) -> Option<u64> {
    let mut found = None;
    for word in line.split(|&byte| byte == b' ') {
        let Some(digits) = word.strip_prefix(key) else {
            continue;
        };
        let mut value: u64 = 0;
        for &digit in digits {
            if !digit.is_ascii_digit() {
                return None;
            }
            value = value.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'));
        }
        found = Some(value);
    }
    found
}
