//! Ten thousand functions, for measuring what patching costs. Written by build.rs.

use crate::opaque;

include!(concat!(env!("OUT_DIR"), "/many.rs"));
