//! The guest's text and how it is changed: what is to stand where ([`edit`]), what stands where now and stood there
//! before ([`sites`], and in the guest's memory the [`journal`]), and the three ways to write it, each with its proof: while nobody executes anything ([`poke`]),
//! while the guest runs and somebody serves breakpoints ([`live`]), and, of what lies in one word, while it runs and nobody
//! knows of it ([`atomic`]). Who wants what is decided in `points`.

pub mod atomic;
pub mod edit;
pub mod frozen;
pub mod journal;
pub mod live;
pub mod poke;
pub mod sites;
pub mod word;
