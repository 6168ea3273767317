//! Guests on KVM: whatever works on every KVM, also on one that emulates ring 0. Runs where
//! `vmm doctor` says that tracing works: on `/dev/kvm` or in the box (`tests/run`).
//!
//! One module per subject; a new test goes into the module whose first line fits.
#![cfg(test)]

mod accidents;
mod any;
mod atomic;
mod attach;
mod attach_demo;
mod attach_filtered;
mod attach_killed;
mod attach_memory;
mod attach_reset;
mod attach_together;
mod bad_input;
mod call_values;
mod clients;
mod command_line;
mod compact;
mod control;
mod control_samples;
mod counts;
mod ctf;
mod debug_exits;
mod doctor;
mod documents;
mod dynfunc;
mod events;
mod exports;
mod filters;
mod foreign;
mod graph;
mod graph_storm;
mod half_done;
mod hazard;
mod host_events;
mod hostile;
mod hotplug;
mod html;
mod kill_switch;
mod killed;
mod listing;
mod live;
mod locks;
mod losses;
mod lossless;
mod markers;
mod modules;
mod output;
mod page;
mod parquet;
mod privileges;
mod probes;
mod returns;
mod screen;
mod seccomp;
mod sessions;
mod slices;
mod storm;
mod tables;
mod tail;
mod terminal;
mod top;
mod triggers;
mod values;
mod window;
