//! The end of a process one of whose threads makes a system call that is not on its list.

use std::ffi::c_void;
use std::fmt::{self, Write};
use std::sync::OnceLock;

use syscalls::Sysno;
use vmm_sys_util::signal::{register_signal_handler, unblock_signal};

use super::filters::HoldError;
use crate::exit_status::ExitStatus;

/// Bytes of the line that is written, at most.
const LINE_MAX: usize = 384;
/// Bytes of a thread's name (prctl(2), `PR_GET_NAME`).
const NAME_BYTES: usize = 16;

/// What is done before the end.
static BEFORE_END: OnceLock<fn()> = OnceLock::new();

/// From now on such a call ends the process with a line that names it and its thread.
pub(super) fn end_with_a_line(before_end: fn()) -> Result<(), HoldError> {
    let _ = BEFORE_END.set(before_end);
    // Whoever started us can have blocked it: the end would come without the line.
    let _ = unblock_signal(libc::SIGSYS);
    register_signal_handler(libc::SIGSYS, end).map_err(HoldError::Handler)
}

/// In a handler: nothing here takes a lock or memory.
extern "C" fn end(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: who asks for a handler of this kind is given the registers of its thread (sigaction(2)), for as long as it
    // runs.
    let context = unsafe { context.cast::<libc::ucontext_t>().as_ref() };
    let register = |which: libc::c_int| {
        let registers = context.map(|context| &context.uc_mcontext.gregs);
        let at = usize::try_from(which).unwrap_or_default();
        registers.and_then(|all| all.get(at)).copied().unwrap_or(-1)
    };
    let mut name = [0_u8; NAME_BYTES];
    // SAFETY: the name and its end fit into 16 bytes (prctl(2)).
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let arguments = [register(libc::REG_RDI), register(libc::REG_RSI)];
    let line = line(&name, register(libc::REG_RAX), arguments);
    // SAFETY: the bytes are valid. That not all of them can be written changes nothing.
    let _ = unsafe { libc::write(2, line.as_bytes().as_ptr().cast(), line.as_bytes().len()) };
    end_now()
}

/// Ends the process as such a call does.
pub(super) fn end_now() -> ! {
    if let Some(before_end) = BEFORE_END.get() {
        before_end();
    }
    // SAFETY: the call does not come back.
    unsafe { libc::_exit(ExitStatus::Confined.code().into()) }
}

/// The first two arguments say what is asked of a device or of the thread itself.
fn line(name: &[u8], number: i64, arguments: [i64; 2]) -> Line {
    let mut line = Line {
        bytes: [0; LINE_MAX],
        length: 0,
    };
    // What does not fit is left out.
    let _ = write_line(&mut line, name, number, arguments);
    line
}

fn write_line(line: &mut Line, name: &[u8], number: i64, arguments: [i64; 2]) -> fmt::Result {
    line.write_str("vmm: the thread ")?;
    let name = name.split(|byte| *byte == 0).next().unwrap_or(name);
    for byte in name {
        line.write_char(char::from(*byte))?;
    }
    let call = usize::try_from(number).ok().and_then(Sysno::new);
    let called = call.map_or("of no name", |call| call.name());
    let [first, second] = arguments;
    write!(
        line,
        " has made the system call {called} ({number}) with {first:#x}, {second:#x}"
    )?;
    line.write_str(
        ", which is not on the list of what it may do (docs/security.md): nothing was done, and the process ends. Please report it; --no-seccomp runs without such lists\n",
    )
}

/// Text in memory that is there already.
struct Line {
    bytes: [u8; LINE_MAX],
    length: usize,
}

impl Line {
    fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            let place = self.bytes.get_mut(self.length).ok_or(fmt::Error)?;
            *place = byte;
            self.length += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use vmm_sys_util::signal::{block_signal, get_blocked_signals};

    use super::*;

    fn said(name: &[u8], number: i64, arguments: [i64; 2]) -> String {
        String::from_utf8(line(name, number, arguments).as_bytes().to_vec()).unwrap()
    }

    #[test]
    fn the_line_names_thread_and_call() {
        let said = [
            said(b"vcpu1\0\0garbage", 16, [7, 0xae80]),
            said(b"", -1, [-1, 0]),
        ];
        let begins =
            "vmm: the thread vcpu1 has made the system call ioctl (16) with 0x7, 0xae80, which";
        assert!(said[0].starts_with(begins), "{said:?}");
        let ends = "--no-seccomp runs without such lists\n";
        assert!(said.iter().all(|one| one.ends_with(ends)), "{said:?}");
        assert!(
            said[1].contains("of no name (-1) with 0xffffffffffffffff, 0x0"),
            "{said:?}"
        );
    }

    #[test]
    fn the_line_comes_also_where_whoever_started_us_has_blocked_its_signal() {
        std::thread::spawn(|| {
            block_signal(libc::SIGSYS).unwrap();
            end_with_a_line(|| {}).unwrap();
            let blocked = get_blocked_signals().unwrap();
            assert!(!blocked.contains(&libc::SIGSYS), "{blocked:?}");
        })
        .join()
        .unwrap();
    }

    #[test]
    fn what_does_not_fit_is_left_out() {
        let long = said(&[b'x'; 2 * LINE_MAX], 41, [0, 0]);
        assert_eq!(long.len(), LINE_MAX);
    }
}
