//! The guest's text and how it is changed: what is to stand where ([`edit`]), what stands where now and stood there
//! before ([`sites`], and in the guest's memory the [`journal`]), and the two ways to write it, each with its proof: while nobody executes anything ([`poke`]), and
//! while the guest runs and somebody serves breakpoints ([`live`]). Who wants what is decided in `points`.

pub mod edit;
pub mod frozen;
pub mod journal;
pub mod live;
pub mod poke;
pub mod sites;
pub mod word;
