//! A routine that tells the host that a place was reached, by a write to a port that leaves the guest, and continues
//! when the host has seen to it.

use insn::jump::jump;
use terms::addr::Gva;

use super::template::StubError;

/// `out imm8, al`: changes no register and no flag.
const OUT: u8 = 0xe6;
const RETURN: u8 = 0xc3;

/// The routine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Doorbell {
    /// The port.
    pub port: u8,
    /// The routine at which it continues; without one it returns.
    pub go_on: Option<Gva>,
}

impl Doorbell {
    /// Its code at `at`.
    ///
    /// # Errors
    /// [`StubError::OutOfReach`].
    pub fn code(&self, at: Gva) -> Result<Vec<u8>, StubError> {
        let mut code = vec![OUT, self.port];
        match self.go_on {
            None => code.push(RETURN),
            Some(go_on) => {
                let from = at.wrapping_add(code.len() as u64);
                code.extend(jump(from, go_on).ok_or(StubError::OutOfReach {
                    stub: at,
                    what: "the routine after it",
                })?);
            }
        }
        Ok(code)
    }
}
