//! The hazard of sites that are several instructions: a thread can be preempted between two of
//! them, and wakes up inside whatever was written there. Sites that are one nop have no inside.
//!
//! Drives the `vmm` library itself, because the program never leaves such a site as it is.

use image::Image;
use terms::addr::{Gpa, Gva};
use tests::stepped::{self, NO_TICKS, next_event};
use tests::{guest, patience, scaled};
use tracer::engine::Engine;
use tracer::target::TextMemory;
use tracer::target::{PhysicalMemory, StoppedTarget, TargetMemory};
use vmm::devices::console::ConsoleWriter;
use vmm::loader::KernelFile;
use vmm::machine::Machine;
use vmm::quiesce::Quiesced;
use vmm::vcpu::VcpuEventKind;

/// A function that is nothing but its site of five one-byte nops, and a return.
const FUNCTION: &str = "patchable_empty";
/// Jumps over three bytes, each no instruction in 64-bit mode: harmless to who enters at its start,
/// an exception to who goes on after that, as the operand of any jump can be.
const JUMP: [u8; 5] = [0xeb, 0x03, 0x06, 0x06, 0x06];

struct Trial {
    machine: Machine,
    site: Gva,
    console: ConsoleWriter,
}

impl Trial {
    /// Four threads that call the function all the time; not started yet.
    fn new(normalised: bool, vcpus: u64, rest: &str) -> Self {
        let kernel = KernelFile::read(&guest()).unwrap();
        let image = std::sync::Arc::new(Image::parse(kernel.bytes()).unwrap());
        let site = image.symbols.address_of(FUNCTION).expect("the function");
        let console = ConsoleWriter::start(std::io::sink()).unwrap();
        let cmdline = format!("workload=nops threads=4 {rest}");
        let mut machine = stepped::machine(&kernel, cmdline, vcpus, &console);
        if normalised {
            let mut target = machine.before_start().unwrap();
            assert!(Engine::new(image).normalise(&mut target).unwrap() > 0);
        }
        Self {
            machine,
            site,
            console,
        }
    }

    /// With one vCPU in ring 0, at the function's entry and about to be stepped.
    fn stepped(normalised: bool) -> Self {
        let rest = format!("iterations=1000 ring=0 {NO_TICKS}");
        let mut trial = Self::new(normalised, 1, &rest);
        stepped::start_to(&mut trial.machine, trial.site);
        trial
    }

    /// Where somebody is inside the site who would notice the jump.
    fn inside(&self) -> std::ops::Range<u64> {
        self.site.0 + 2..self.site.0 + 5
    }

    /// Whether a vCPU was taken out of the guest inside the site.
    fn is_inside(&self, quiesced: &Quiesced<'_>) -> bool {
        let inside = self.inside();
        quiesced
            .vcpus()
            .iter()
            .any(|vcpu| inside.contains(&vcpu.rip))
    }

    fn poke(&self, quiesced: &mut Quiesced<'_>, bytes: &[u8]) {
        quiesced.write(self.site, bytes).unwrap();
    }

    /// How the guest ends.
    fn end(self) -> VcpuEventKind {
        let kind = next_event(&self.machine);
        drop(self.machine);
        let _ = self.console.finish(patience());
        kind
    }
}

/// Words in the guest's memory above its kernel's start that lie in `range`: saved instruction
/// pointers of threads that do not run now.
fn saved_pointers(memory: &impl PhysicalMemory, range: &std::ops::Range<u64>) -> usize {
    const START: u64 = 16 << 20;
    const BYTES: usize = 16 << 20;
    let mut bytes = vec![0; BYTES];
    memory.read_physical(Gpa(START), &mut bytes).unwrap();
    let words = bytes
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().unwrap()));
    words.filter(|word| range.contains(word)).count()
}

/// A processor that retires all five nops at once leaves no chance to meet a thread there at random:
/// two single steps bring one there.
#[test]
fn a_thread_inside_a_site_of_five_nops_wakes_up_inside_the_jump() {
    let mut trial = Trial::stepped(false);
    stepped::step(&trial.machine);
    stepped::step(&trial.machine);
    let mut quiesced = trial.machine.quiesce(patience()).unwrap();
    assert!(trial.is_inside(&quiesced));
    trial.poke(&mut quiesced, &JUMP);
    drop(quiesced);
    stepped::go_on(&mut trial.machine);
    // Status 2: an exception that the guest did not expect.
    assert_eq!(trial.end(), VcpuEventKind::GuestExit(2));
}

#[test]
fn nobody_is_ever_inside_a_site_that_was_made_one_nop() {
    let rest = format!("tick=100 iterations={}", scaled(2_000_000));
    let mut trial = Trial::new(true, 2, &rest);
    trial.machine.start().unwrap();
    let mut nop = [0; 5];
    let mut mapped = false;
    for round in 0..scaled(2000) {
        let mut quiesced = trial.machine.quiesce(patience()).unwrap();
        if !mapped {
            // Early on the guest has no page tables of its own.
            mapped = quiesced.read(trial.site, &mut nop).is_ok();
            continue;
        }
        assert!(!trial.is_inside(&quiesced), "in round {round}");
        if round % scaled(400) == 0 {
            assert_eq!(
                saved_pointers(&quiesced, &trial.inside()),
                0,
                "in round {round}"
            );
        }
        trial.poke(&mut quiesced, if round % 2 == 0 { &JUMP } else { &nop });
    }
    assert!(mapped, "the guest never got to its page tables");
    assert_eq!(trial.end(), VcpuEventKind::GuestExit(0));
}

/// The same step where the site is one nop: it leads past all of it.
#[test]
fn no_instruction_begins_inside_a_site_that_was_made_one_nop() {
    let trial = Trial::stepped(true);
    stepped::step(&trial.machine);
    let (rip, _) = stepped::place(&trial.machine);
    assert_eq!(rip, trial.site.0 + JUMP.len() as u64);
}
